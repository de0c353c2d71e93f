"""What the kernel tests run: every kernel of generated/manifest.json, operands with every code, shapes from tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qgen import codec, contract, emulate, generate, layout, tree
from qgen.codec import bits
from qgen.plan import ActivationLayout, Instance, MatvecPlan, Plan, QuantizePlan, plan_all
from qgen.spec import Field, Format, load_formats

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

GENERATED = generate.generated_dir()
ROWS = 140  # of the largest operands: two CTAs of the largest tile and a tail; 4,900 blocks or more
FORMATS = load_formats()


@dataclass(frozen=True)
class Kernel:
    """One entry of the manifest."""

    entry: str
    path: str
    family: str


def kernels(family: str | None = None) -> list[Kernel]:
    """Every kernel the manifest lists, or those of one family. Raises QgenError without a manifest."""
    rows = [row for row in tree.read_manifest(GENERATED) if row.kind == "kernel"]
    found = [Kernel(entry, row.path, row.fields["family"]) for row in rows for entry in row.fields["entries"]]
    return [kernel for kernel in found if family in (None, kernel.family)]


@cache
def _plans() -> dict[str, Plan]:
    return {f"{plan.family}/{plan.file}.cu": plan for plan in plan_all(FORMATS)[0]}


def plan_of(kernel: Kernel) -> Plan | None:
    """The plan that makes the kernel's file, if there is one."""
    return _plans().get(kernel.path)


def matvec_of(kernel: Kernel) -> tuple[MatvecPlan, Instance]:
    """The plan and instance behind an entry of the manifest."""
    plan = plan_of(kernel)
    assert isinstance(plan, MatvecPlan)
    (instance,) = (i for i in plan.instances if i.name == kernel.entry)
    return plan, instance


def quantize_of(kernel: Kernel) -> QuantizePlan:
    """The plan behind a quantiser of the manifest."""
    plan = plan_of(kernel)
    assert isinstance(plan, QuantizePlan) and plan.name == kernel.entry
    return plan


def text_of(kernel: Kernel) -> str:
    """The file under generated/ as it lies there."""
    return (GENERATED / kernel.path).read_text(encoding="utf-8")


@cache
def _compiled(path: str, arch: int) -> emulate.Program:
    return emulate.compile((GENERATED / path).read_text(encoding="utf-8"), Path(path).stem, arch=arch)


def program(kernel: Kernel, arch: int = 900) -> emulate.Program:
    """The file that holds the kernel, compiled for the emulator as for an architecture."""
    return _compiled(kernel.path, arch)


# ---- operands ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Operands:
    """A product and what is known of it, for any number of leading rows."""

    format: Format
    packed: U8  # [ROWS, blocks, block bytes]
    x: F32  # [K]
    wanted: F32  # [ROWS]: the contract's bits
    exact: NDArray[np.float64]  # [ROWS]: the oracle's dot product
    bound: NDArray[np.float64]  # [ROWS]: how far from it any kernel may be

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return int(self.packed.shape[1])


def make_operands(format: Format, packed: U8, x: F32) -> Operands:
    """The product of packed uint8[N, blocks, bytes] and x float32[K] with its contract and reference."""
    exact, bound = contract.reference(format, packed, x)
    wanted = contract.mul_mat(format, packed, x)
    return Operands(format=format, packed=packed, x=x, wanted=wanted, exact=exact, bound=bound)


@cache
def operands(format: Format, blocks: int) -> Operands:
    """ROWS rows of random blocks with moderate scales, and an x of like numbers with a few groups that are special."""
    packed = codec.random_blocks(format, ROWS * blocks, seed=blocks).reshape(ROWS, blocks, -1)
    return make_operands(format, packed, vector(blocks * format.block, seed=blocks))


def vector(columns: int, seed: int) -> F32:
    """float32[columns]: normal numbers, with a group of 32 that is zero, one negative, one large and one very small."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(columns, dtype=np.float32)
    groups = x.reshape(-1, 32)
    kinds = rng.permutation(len(groups))[: len(groups) // 2]
    for number, group in enumerate(kinds):
        if number % 4 == 0:
            groups[group] = 0
        elif number % 4 == 1:
            groups[group] = -np.abs(groups[group])
        else:
            groups[group] *= np.float32(48) if number % 4 == 2 else np.float32(1e-3)
    return x


@cache
def wild_operands(format: Format, blocks: int) -> Operands:
    """As `operands`, with groups of x from 1e-44 to 1e30, so that scales are subnormal, zero and huge."""
    usual = operands(format, blocks)
    groups = usual.x.copy().reshape(-1, 32)
    rng = np.random.default_rng(blocks + 1)
    with np.errstate(under="ignore"):
        groups *= (10.0 ** rng.uniform(-44, 30, (len(groups), 1))).astype(np.float32)
    return make_operands(format, usual.packed, groups.reshape(-1))


# Raw bits of each kind of number a float type has: zeros, subnormal, least and largest normal, Inf, NaN, usual ones.
_SPECIAL = {
    "f16": [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFC01, 0x3C00, 0xB555],
    "bf16": [0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFF81, 0x3F80, 0xBEAA],
    "f32": [0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000],
}


@cache
def special_operands(format: Format, blocks: int) -> Operands:
    """For each special number of each float scale (all 256 bytes of 8-bit types) two rows: one has it in one of its
    blocks, the other in all of them, so that nothing larger hides it."""
    fields = [f for f in format.fields if f.kind == "float"]
    wanted = [
        (field, raw, everywhere)
        for field in fields
        for raw in _SPECIAL.get(field.type or "", range(256))
        for everywhere in (False, True)
    ]
    packed = codec.random_blocks(format, len(wanted) * blocks, seed=blocks).reshape(len(wanted), blocks, -1)
    for row, (field, raw, everywhere) in enumerate(wanted):
        first = 0 if everywhere else row % blocks
        chosen = packed[row, first : blocks if everywhere else first + 1]
        raws = codec.raw(format, field.name, chosen)
        raws[:, slice(None) if everywhere else row % field.entries] = raw
        bits.write(field, raws, {"block": chosen})
    return make_operands(format, packed, vector(blocks * format.block, seed=blocks))


X_SPECIALS = (0.0, -0.0, 1e-45, -1e-40, 3e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan)


@cache
def special_x_operands(format: Format, blocks: int, special: int) -> Operands:
    """A few rows times an x in which one number of a middle block is X_SPECIALS[special]; for 0.0, all of x is."""
    usual = operands(format, blocks)
    x = usual.x.copy()
    if special == 0:
        x[:] = 0
    x[blocks // 2 * usual.format.block + 7] = X_SPECIALS[special]
    return make_operands(usual.format, usual.packed[:9], x)


def missing_codes(format: Format, packed: U8) -> list[str]:
    """What `packed` uint8[..., bytes] lacks of: every code value at every place of every integer field, and all 256
    values of every byte of digits."""
    flat = packed.reshape(-1, packed.shape[-1])
    missing = []
    for field in format.fields:
        if field.kind == "float":
            continue
        for place, column in _columns(format, field, flat):
            levels = 256 if field.segments else field.levels
            lacking = levels - len(np.unique(column))
            if lacking:
                missing.append(f"{field.name} at {place}: {lacking} of {levels} values")
    return missing


def _columns(format: Format, field: Field, flat: U8) -> Iterator[tuple[str, NDArray[np.uint32]]]:
    if field.segments:
        for byte in sorted({layout.digit(field, entry).byte for entry in range(field.entries)}):
            yield f"byte {byte}", flat[:, byte].astype(np.uint32)
    else:
        raw = codec.raw(format, field.name, flat)
        for entry in range(field.entries):
            yield f"entry {entry}", raw[:, entry]


# ---- activations as the layout record places them ---------------------------------------------------------------


def place(placed: ActivationLayout, quantised: contract.Quantised, blocks: int, *, fill: int) -> U8:
    """The workspace of a launch by the words of ActivationLayout, with `fill` in every byte of blocks past the end."""
    tiles, lanes, tile_blocks = placed.tiles(blocks), placed.lanes, placed.tile_blocks
    padded = tiles * tile_blocks
    codes = np.zeros((blocks, placed.block + 1), dtype=np.int8)
    codes[:, :-1] = quantised.codes.reshape(blocks, placed.block)  # the last one stands for an empty place
    order = np.full((lanes, 4 * placed.chunks, 4), placed.block)
    for t in range(lanes):
        order[t, : len(placed.words[t])] = placed.words[t]
    words = codes[:, order]  # [block, lane, word, 4]

    memory = np.full(placed.bytes(blocks), fill, dtype=np.uint8)
    first, last = placed.scale_offset(blocks), placed.sums_offset(blocks)
    by_block = np.full((padded, lanes, placed.chunks, 16), fill, dtype=np.uint8)
    by_block[:blocks] = words.view(np.uint8).reshape(blocks, lanes, placed.chunks, 16)
    by_tile = by_block.reshape(tiles, tile_blocks * lanes, placed.chunks, 16).transpose(0, 2, 1, 3)
    memory[:first] = by_tile.reshape(-1)
    memory[first : first + 4 * quantised.scales.size] = quantised.scales.view(np.uint8)
    if placed.sum_slots:
        sums = np.zeros((blocks, lanes, placed.sum_slots), dtype=np.int32)
        for group in range(placed.groups):
            begin, end = placed.group_words[group : group + 2]
            sums[:, :, group] = words[:, :, begin:end].sum(axis=(2, 3), dtype=np.int32)
        memory[last : last + sums.nbytes] = sums.view(np.uint8).reshape(-1)
    return memory


# ---- shapes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One shape of a launch: rows `pad` bytes apart behind each other, the first `offset` bytes past 16-byte alignment.

    multiprocessors: of the imagined device, which decides how many row tiles a warp walks
    """

    rows: int
    blocks: int
    pad: int
    offset: int
    multiprocessors: int


def cases(plan: MatvecPlan, instance: Instance) -> list[Case]:
    """Ends and tails of every tile, in rows and in blocks, at every alignment the format allows."""
    warp, tile = instance.warp_rows, instance.warp_rows * plan.warps
    step, slices = instance.team_blocks, plan.contract.slices
    rows = sorted({1, warp - 1, warp + 1, tile - 1, 2 * tile + 3} - {0})
    blocks = sorted({1, step - 1, step, step + 1, slices - 1, slices + 1, 2 * slices + 3} - {0})
    found = [(n, k) for k in blocks for n in rows] + [(ROWS, 2 * slices + 3)]
    starts = 16 // plan.alignment
    return [
        Case(
            rows=n,
            blocks=k,
            pad=plan.alignment * (number * 3 % 5),
            offset=plan.alignment * (number % starts),
            multiprocessors=(1, 1000, 2)[number % 3],
        )
        for number, (n, k) in enumerate(found)
    ]
