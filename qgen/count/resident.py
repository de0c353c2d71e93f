"""How many CTAs of a kernel a multiprocessor holds at once, from the compiler's report."""

from __future__ import annotations

from qgen.archs import Arch
from qgen.build import Resources
from qgen.dispatch.checks import REGISTER_UNIT

_PARTS = 4  # of a multiprocessor, each with a quarter of its registers and warps
_SHARED_UNIT = 128  # bytes


def resident_ctas(arch: Arch, resources: Resources, *, warps: int, shared_bytes: int) -> int:
    """As many as registers, warps and shared memory allow; what the driver's occupancy call says on a device.

    warps: of a CTA; shared_bytes: that a launch asks for. 0 where not even one fits.
    """
    a_warp = -(-resources.registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = arch.registers_per_sm // _PARTS // a_warp * _PARTS // warps
    shared = shared_bytes + resources.static_shared + arch.shared_reserved
    by_shared = arch.shared_per_sm // (-(-shared // _SHARED_UNIT) * _SHARED_UNIT)
    return min(by_registers, arch.max_warps_per_sm // warps, by_shared, arch.max_blocks_per_sm)
