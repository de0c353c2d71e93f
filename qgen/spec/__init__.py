"""Spec files -> frozen records: `load_format` reads one file, `load_formats` a folder; bad files are refused."""

from __future__ import annotations

from qgen.spec.expr import Binary, Expression, Name, Negate, Number, Term
from qgen.spec.load import load_format, load_formats
from qgen.spec.records import Activation, Codebook, DigitSegment, Field, Format, Padding, Part, Plane
from qgen.spec.schema import schema
from qgen.spec.tables import load_activation, load_codebook

__all__ = [
    "Activation",
    "Binary",
    "Codebook",
    "DigitSegment",
    "Expression",
    "Field",
    "Format",
    "Name",
    "Negate",
    "Number",
    "Padding",
    "Part",
    "Plane",
    "Term",
    "load_activation",
    "load_codebook",
    "load_format",
    "load_formats",
    "schema",
]
