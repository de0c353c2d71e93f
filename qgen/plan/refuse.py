"""How a planner says no: one place, so that every refusal has the same shape and dispatch can show its reason."""

from __future__ import annotations

from typing import NoReturn

from qgen.errors import QgenError
from qgen.spec.records import Format


def refuse(format: Format, found: str, allowed: str) -> NoReturn:
    """Raise the QgenError (stage "plan") that says why no kernel can be planned for `format`."""
    raise QgenError(
        stage="plan",
        subject=format.name,
        found=found,
        allowed=allowed,
        next="decode it with qgen.codec, or change the layout; `qgen formats` lists what has kernels",
    )
