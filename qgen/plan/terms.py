"""The value expression as work per unit: which float factors, which integer scales, which sums."""

from __future__ import annotations

from qgen import layout
from qgen.plan.lanes import LaneProgram, Names, code_flip
from qgen.plan.records import FloatScale, IntScale, LaneInt, ScalePiece, TermPlan
from qgen.plan.refuse import refuse
from qgen.spec import Activation, Field, Format, Term, load_activation

# scalar type -> (device helper, C type of the stored bits, bytes)
FLOAT_READERS = {
    "f16": ("qgen_f16_to_f32", "uint16_t", 2),
    "bf16": ("qgen_bf16_to_f32", "uint16_t", 2),
    "f32": ("__uint_as_float", "uint32_t", 4),
    "e8m0": ("qgen_e8m0_to_f32", "uint8_t", 1),
    "e8m0_half": ("qgen_e8m0_half_to_f32", "uint8_t", 1),
    "ue4m3": ("qgen_ue4m3_to_f32", "uint8_t", 1),
    "ue4m3_half": ("qgen_ue4m3_half_to_f32", "uint8_t", 1),
}


def code_field(format: Format) -> Field:
    """The one field that holds a code for every element. Refuses formats coded otherwise (grids, signs)."""
    fields = [f for f in format.fields if f.per == 1]
    if len(fields) != 1 or fields[0].grid or fields[0].type:
        refuse(
            format,
            "its codes are not one plain field: "
            + (
                ", ".join(f.name for f in format.fields if f.grid)
                or ", ".join(f.name for f in fields)
                or "no per-element field"
            )
            + " is coded by grid, sign or not at all",
            "one per-element field of bits or digits, with at most a 16-entry codebook",
        )
    codes = fields[0]
    if codes.base and codes.encoding != "fraction":
        refuse(format, f"digits in {codes.encoding} encoding", "digits in fraction encoding")
    if codes.width > 8:
        refuse(format, f"codes of {codes.width} bits", "codes of at most 8 bits: one byte of a dp4a each")
    if codes.base and codes.base > 128:
        refuse(format, f"digits in base {codes.base}, up to {codes.base - 1}", "a base of at most 128: digits are int8")
    if codes.base and codes.digits and 255 * codes.base**codes.digits >= 1 << 16:
        refuse(
            format,
            f"255 * {codes.base}^{codes.digits} = {255 * codes.base**codes.digits} needs more than 16 bits",
            "base ** digits that keeps 255 * base ** digits below 65536",
        )
    if codes.table and not (len(codes.parts) == 1 and codes.parts[0].width == 4):
        refuse(format, f"codebook {codes.table} is indexed by other than one 4-bit part", "a 4-bit codebook index")
    if codes.table:
        _check_codebook(format, codes, codes.table)
    if codes.mul != int(codes.mul) or codes.add != int(codes.add):
        refuse(format, f"codes map to mul {codes.mul}, add {codes.add}", "an integer affine map")
    return codes


def _check_codebook(format: Format, codes: Field, name: str) -> None:
    """That four looked-up codes fit one word, and that both nibbles of every byte are indices."""
    beyond = [v for v in format.codebook(name).numbers if v != int(v) or not -128 <= v <= 127]
    if beyond:
        refuse(format, f"codebook {name} holds {beyond[0]:g}", "codebooks of int8")
    nibbles = {layout.pieces(codes, e)[0].bit for e in range(format.block)}
    single = next((bit for bit in sorted(nibbles) if bit % 4 or bit ^ 4 not in nibbles), None)
    if single is not None:
        refuse(format, f"byte {single // 8} holds one codebook index", "codebook indices in both nibbles of a byte")


def integer_activation(format: Format) -> tuple[Activation, int]:
    """The int8 activation a format names, and its group. Refuses float activations and none at all."""
    if format.activation is None:
        refuse(format, "no activation", "an int8 activation of specs/activations, q8_g32 for one")
    activation = load_activation(format.activation)
    if activation.group is None or activation.bits != 8:
        refuse(
            format,
            f"activation {activation.name} is not int8",
            "an int8 activation of specs/activations, q8_g32 for one",
        )
    return activation, activation.group


def float_fields(format: Format, term: Term) -> list[Field]:
    """Float factors of a term, in source order."""
    return [f for f in map(format.field, term.factors) if f.type in FLOAT_READERS]


def scale_fields(format: Format, term: Term, codes: Field) -> list[Field]:
    """Integer sub-block scales of a term."""
    return [f for f in map(format.field, term.factors) if f.type not in FLOAT_READERS and f.name != codes.name]


def group_size(format: Format, codes: Field, unit: int) -> int:
    """Elements per integer scale, at most a unit."""
    per = [f.per for term in format.terms for f in scale_fields(format, term, codes)]
    return min([unit, *per])


def plan_terms(
    format: Format, codes: Field, program: LaneProgram, unit: int, group: int, names: Names
) -> tuple[TermPlan, ...]:
    """Each term of the value with its factors placed. Raises QgenError where a term has no integer form."""
    planned = []
    for term in format.terms:
        if abs(term.constant) != 1.0:
            refuse(format, f"term {'*'.join(term.factors)} has constant {term.constant}", "a constant of 1 or -1")
        scales = scale_fields(format, term, codes)
        if len(scales) > 1:
            refuse(
                format, f"{len(scales)} integer scales in one term: {', '.join(f.name for f in scales)}", "at most one"
            )
        planned.append(
            TermPlan(
                label="*".join(term.factors),
                negative=term.constant < 0,
                codes=codes.name in term.factors,
                floats=tuple(
                    tuple(_float(format, f, u * unit // f.per) for f in float_fields(format, term))
                    for u in range(format.block // unit)
                ),
                scales=tuple(
                    tuple(_scale(format, f, program, local, group, names) for f in scales)
                    for local in range(len(program.group_words) - 1)
                ),
            )
        )
    return tuple(planned)


def _float(format: Format, field: Field, entry: int) -> FloatScale:
    reader, stored, size = FLOAT_READERS[field.type or ""]
    pieces = layout.pieces(field, entry)
    if len(pieces) != 1 or pieces[0].bit % 8:
        refuse(
            format, f"scale {field.name} is scattered over {len(pieces)} places", "a scale in whole neighbouring bytes"
        )
    at = pieces[0].bit // 8
    if size > 1 and (at % size or format.alignment < size):
        refuse(
            format,
            f"scale {field.name} at byte {at} of a block aligned to {format.alignment}",
            f"a {size}-byte scale on a multiple of {size}",
        )
    return FloatScale(name=field.name, reader=reader, stored=stored, at=str(at))


def _scale(format: Format, field: Field, program: LaneProgram, local: int, group: int, names: Names) -> IntScale:
    entries = [groups[local] * group // field.per for groups in program.lane_groups]
    per_lane = [layout.pieces(field, e) for e in entries]
    if field.mul != int(field.mul) or field.add != int(field.add) or (field.signed or 8) != 8 or field.table:
        refuse(format, f"scale {field.name} is not a plain integer", "unsigned, int8 or integer-affine scales")
    if field.type is not None:
        refuse(format, f"scale {field.name} is of type {field.type}", ", ".join((*FLOAT_READERS, "or an integer")))
    if field.signed and not all(len(ps) == 1 and ps[0].bit % 8 == 0 for ps in per_lane):
        refuse(format, f"signed scale {field.name} is not one whole byte", "signed scales that are a byte each")
    pieces = []
    for lane_pieces in zip(*per_lane, strict=True):
        first = lane_pieces[0]
        shift = LaneInt(tuple(p.bit % 8 for p in lane_pieces))
        if max(shift.values) + first.width > 8:
            refuse(format, f"scale {field.name} crosses a byte", "scale parts inside one byte")
        pieces.append(
            ScalePiece(
                at=names.at(LaneInt(tuple(p.bit // 8 for p in lane_pieces))),
                shift=names.text(shift),
                mask=(1 << first.width) - 1,
                left=first.shl,
            )
        )
    return IntScale(
        name=field.name, pieces=tuple(pieces), signed_byte=field.signed == 8, mul=int(field.mul), add=int(field.add)
    )


def needs_sums(format: Format, codes: Field) -> bool:
    """Whether the activation sums are read: for an affine offset of the codes or a term without codes."""
    return code_offset(codes) != 0 or any(codes.name not in t.factors for t in format.terms)


def code_offset(codes: Field) -> int:
    """What a code means beyond code_mul times the (flipped) integer that a kernel multiplies."""
    flip = code_flip(codes)
    return int(codes.add) + int(codes.mul) * (-flip if codes.signed else flip)


def largest_sum(format: Format, codes: Field, unit: int, table: tuple[int, ...]) -> int:
    """A bound on |integer sum of a unit|: elements * largest |code| * 127 * largest |scale|, partial sums included."""
    if codes.table:
        code = max(abs(v) for v in table)
    elif codes.base:
        code = (codes.base - 1) * abs(int(codes.mul)) + abs(code_offset(codes))
    else:
        bits = sum(p.width for p in codes.parts)
        code = (128 if bits == 8 else (1 << bits) - 1) * abs(int(codes.mul)) + abs(code_offset(codes))
    scale = 1
    for term in format.terms:
        for f in scale_fields(format, term, codes):
            bits = sum(p.width for p in f.parts)
            scale = max(scale, (128 if f.signed else (1 << bits) - 1) * abs(int(f.mul)) + abs(int(f.add)))
    return unit * code * 127 * scale
