"""What raw entries mean: number types, codes, codebooks and signs, exactly, in float32 and int32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qgen.codec.bits import Raw
from qgen.errors import QgenError
from qgen.spec.records import Field, Format

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def float_values(type_name: str, raw: Raw) -> F32:
    """float32 of raw bits of a float type (qgen.spec.types has the rules); same shape. Exact, NaN for NaN."""
    if type_name == "f16":
        return raw.astype(np.uint16).view(np.float16).astype(np.float32)
    if type_name == "bf16":
        return (raw << np.uint32(16)).view(np.float32)
    if type_name == "f32":
        return raw.view(np.float32)
    return np.take(_eight_bit_table(type_name), raw)


def _eight_bit_table(type_name: str) -> F32:
    """The 256 numbers of an 8-bit float type."""
    byte = np.arange(256)
    if type_name in ("e8m0", "e8m0_half"):
        if type_name == "e8m0_half":
            return np.ldexp(np.float32(1), byte - 128).astype(np.float32)
        return np.where(byte == 255, np.nan, np.ldexp(np.float32(1), np.minimum(byte, 254) - 127)).astype(np.float32)
    exponent, mantissa = byte >> 3 & 15, (byte & 7).astype(np.float32)
    subnormal = np.ldexp(mantissa, -9)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    table = np.where(exponent == 0, subnormal, normal).astype(np.float32)
    if type_name == "e4m3":
        table[byte & 0x7F == 0x7F] = np.nan
        return np.where(byte & 0x80, -table, table)
    # ggml's unsigned E4M3 takes only the byte 0x7F (not 0xFF) for its one special value, and makes it zero.
    table[0x7F] = 0
    return table / np.float32(2) if type_name == "ue4m3_half" else table


def raw_of_floats(type_name: str, values: F32) -> Raw:
    """The raw bits nearest to `values` (ties to even for f16 and bf16); same shape. Inverse of float_values."""
    with np.errstate(over="ignore"):
        if type_name == "f16":
            return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    bits = values.view(np.uint32)
    if type_name == "f32":
        return bits.copy()
    if type_name == "bf16":
        rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint32)
    table = _eight_bit_table(type_name).astype(np.float64)
    distance = np.abs(np.where(np.isfinite(table), table, np.inf) - values[..., np.newaxis].astype(np.float64))
    nearest: Raw = np.argmin(distance, axis=-1).astype(np.uint32)
    return nearest


def integers(format: Format, field: Field, raw: Raw) -> I32:
    """int32 numbers of a code, table, grid or sign field: [n, entries], or [n, entries*lanes] for grids and sign7.

    Raises QgenError for float fields and for codes that do not mean integers.
    """
    if field.kind == "sign":
        return _signs(field, raw)
    name = field.table or field.grid
    if name is not None and format.codebook(name).integral:
        return np.array(format.codebook(name).values, dtype=np.int32)[raw].reshape(len(raw), -1)
    if field.kind != "code" or field.mul != int(field.mul) or field.add != int(field.add):
        meaning = field.type or (f"codebook {name}" if name else f"{field.mul:g}*code + {field.add:g}")
        raise QgenError(
            stage="codec",
            subject=f"{format.name}.{field.name}",
            found=f"{meaning}: no integers",
            allowed="a field whose entries are integers",
            next="ask qgen.codec.scalars for its numbers, or qgen.codec.raw for its bits",
        )
    return _signed(field, raw) * np.int32(field.mul) + np.int32(field.add)


def floats(format: Format, field: Field, raw: Raw) -> F32:
    """float32 numbers of any field, shaped as `integers` says."""
    if field.kind == "float":
        assert field.type is not None
        return float_values(field.type, raw)
    if field.kind == "sign":
        return _signs(field, raw).astype(np.float32)
    name = field.table or field.grid
    if name is not None:
        return np.array(format.codebook(name).values, dtype=np.float32)[raw].reshape(len(raw), -1)
    return _signed(field, raw).astype(np.float32) * np.float32(field.mul) + np.float32(field.add)


def _signed(field: Field, raw: Raw) -> I32:
    code = raw.astype(np.int32)
    if field.signed is None:
        return code
    half = np.int32(1 << (field.signed - 1))
    return (code ^ half) - half


def _signs(field: Field, raw: Raw) -> I32:
    if field.lanes == 1:
        return 1 - 2 * raw.astype(np.int32)
    lanes = np.arange(7, dtype=np.uint32)
    bits = raw[..., np.newaxis] >> lanes & np.uint32(1)
    parity = bits.sum(axis=-1, keepdims=True, dtype=np.uint32) & np.uint32(1)
    return 1 - 2 * np.concatenate([bits, parity], axis=-1).astype(np.int32).reshape(len(raw), -1)
