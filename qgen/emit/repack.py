"""The record that templates/repack.cu.j2 prints."""

from __future__ import annotations

from dataclasses import dataclass

from qgen.plan import Place, RepackPlan

WIDTH = 8  # places to a line


@dataclass(frozen=True)
class RepackKernel:
    """What the template receives under the name `k`."""

    header: tuple[str, ...]
    plan: RepackPlan
    threads: int
    place_rows: tuple[tuple[Place, ...], ...]


def repack_kernel(plan: RepackPlan, header: tuple[str, ...]) -> RepackKernel:
    """The finished record."""
    places = plan.places
    return RepackKernel(
        header=header,
        plan=plan,
        threads=32 * plan.warps,
        place_rows=tuple(places[i : i + WIDTH] for i in range(0, len(places), WIDTH)),
    )


def repack_facts(plan: RepackPlan) -> list[str]:
    """The header's lines about the two storages."""
    pieces = ", ".join(str(piece.bytes) for piece in plan.layout.pieces)
    bytes = " and ".join(f"{plane.bytes} bytes in {plane.name}" for plane in plan.planes)
    return [
        f"native      rows of blocks of {bytes}, NAME_stride bytes apart, at any address",
        f"tiled       [row tile of {plan.tile_rows} rows][block]: pieces of {pieces} bytes of a block one after the",
        f"            other, of each piece the {plan.tile_rows} rows; rows that only fill up the last tile are zero",
        "",
    ]
