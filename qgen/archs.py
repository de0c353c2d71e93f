"""GPU architectures as frozen records: limits and instructions, one file of specs/archs each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.spec.keys import Key
from qgen.spec.reader import close, listed, read_toml


@dataclass(frozen=True)
class Instructions:
    """What an architecture can execute beyond the common base: its plain target (sm_90), or for `wgmma` the
    architecture-specific one (sm_90a).

    mma_mMnNkK_T: mma.sync.aligned.mMnNkK on inputs of type T (s8 -> s32 sums, f16 and bf16 -> f32 sums)
    """

    dp4a: bool  # four-way int8 dot product
    ldmatrix: bool  # 8x8 matrices from shared memory into mma fragments
    cp_async: bool  # global -> shared copies of 4, 8 or 16 bytes past the registers, and mbarriers they arrive at
    redux: bool  # warp-wide integer reduction in one instruction
    mma_m8n8k16_s8: bool
    mma_m16n8k16_s8: bool
    mma_m16n8k32_s8: bool
    mma_m16n8k8_f16: bool
    mma_m16n8k16_f16: bool
    mma_m16n8k16_bf16: bool
    pdl: bool  # programmatic dependent launch: griddepcontrol
    tma: bool  # bulk asynchronous copies tracked by an mbarrier
    cluster: bool  # thread block clusters and their shared memory
    wgmma: bool  # wgmma.mma_async of a warpgroup on int8, and setmaxnreg


@dataclass(frozen=True)
class Arch:
    """One architecture. Memory sizes are bytes; registers are 32 bits wide.

    capability:             compute capability (major, minor) the machine code is made for
    serves:                 capabilities of all devices that should load it, its own included
    shared_per_block_optin: most shared memory a block may ask for, static and dynamic together
    shared_reserved:        what the driver takes per resident block beside that
    """

    name: str
    doc: str
    capability: tuple[int, int]
    serves: tuple[tuple[int, int], ...]
    max_threads_per_block: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    max_registers_per_thread: int
    shared_per_sm: int
    shared_per_block_optin: int
    shared_reserved: int
    instructions: Instructions


_LIMITS = {
    "max_threads_per_block": "threads a block may have",
    "max_warps_per_sm": "warps resident on a multiprocessor",
    "max_blocks_per_sm": "blocks resident on a multiprocessor",
    "registers_per_sm": "32-bit registers of a multiprocessor",
    "max_registers_per_thread": "32-bit registers a thread may have",
    "shared_per_sm": "bytes of shared memory of a multiprocessor",
    "shared_per_block_optin": "bytes of shared memory a block may ask for",
    "shared_reserved": "bytes of shared memory the driver takes per block",
}
_KEYS = {
    "name": Key("text", "the compiler's name of the architecture (sm_90); the file is called the same", required=True),
    "doc": Key("text", "generation and devices, one line", required=True),
    "serves": Key("texts", 'compute capabilities of the devices that load its code ("9.0")', required=True),
    "instructions": Key("texts", "what it can execute: fields of qgen.archs.Instructions", required=True),
    **{name: Key("int", doc, required=True, minimum=0) for name, doc in _LIMITS.items()},
}


def load_arch(path: Path) -> Arch:
    """Read one file of specs/archs.

    Raises QgenError for a missing, unknown or ill-typed key, an unknown instruction, or limits that contradict
    each other.
    """
    node = read_toml(path, keys=_KEYS)
    name = node.text("name")
    if name != path.stem or not name.startswith("sm_") or not name[3:].isdigit():
        node.refuse("name", repr(name), f"{path.stem!r}, as the file is called: sm_ and digits")
    known = [item.name for item in fields(Instructions)]
    given = node.texts("instructions")
    for item in given:
        if item not in known:
            node.refuse("instructions", f"{item!r}{close(item, known)}", listed(known))
    capability = (int(name[3:-1]), int(name[-1]))
    serves = []
    for item in node.texts("serves"):
        major, _, minor = item.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            node.refuse("serves", repr(item), 'capabilities written "9.0"')
        serves.append((int(major), int(minor)))
    # Machine code runs on devices of its own major capability with the same or a later minor one.
    wrong = [pair for pair in serves if pair[0] != capability[0] or pair[1] < capability[1]]
    if wrong or capability not in serves:
        node.refuse("serves", repr(serves), f"{capability} and, where it applies, later capabilities of the same major")
    limits = {limit: node.integer(limit) for limit in _LIMITS}
    total = limits["shared_per_block_optin"] + limits["shared_reserved"]
    if total > limits["shared_per_sm"]:
        node.refuse(
            "shared_per_block_optin",
            f"{limits['shared_per_block_optin']} + {limits['shared_reserved']} reserved = {total}",
            f"at most shared_per_sm = {limits['shared_per_sm']}",
        )
    return Arch(
        name=name,
        doc=node.text("doc"),
        capability=capability,
        serves=tuple(serves),
        instructions=Instructions(**{item: item in given for item in known}),
        **limits,
    )


def load_archs() -> dict[str, Arch]:
    """Every architecture of specs/archs by name, oldest first.

    Raises QgenError when there is none, a file is wrong, or two files serve one device.
    """
    folder = data_dir("specs") / "archs"
    archs = sorted((load_arch(path) for path in folder.glob("*.toml")), key=lambda arch: arch.capability)
    if not archs:
        raise QgenError(
            stage="spec",
            subject=str(folder),
            found="no architecture files",
            allowed="at least one sm_XX.toml",
            next="reinstall qgen, or restore the folder from git",
        )
    owner: dict[tuple[int, int], str] = {}
    for arch in archs:
        for pair in arch.serves:
            if owner.setdefault(pair, arch.name) != arch.name:
                raise QgenError(
                    stage="spec",
                    subject=str(folder / f"{arch.name}.toml"),
                    found=f"serves {pair[0]}.{pair[1]}, which {owner[pair]} serves already",
                    allowed="one architecture a device",
                    next="take it out of one of the two files",
                )
    return {arch.name: arch for arch in archs}


def arch_of(capability: tuple[int, int]) -> Arch:
    """The architecture whose machine code a device of this compute capability loads.

    Raises QgenError for a device that no file serves.
    """
    archs = load_archs()
    for arch in archs.values():
        if capability in arch.serves:
            return arch
    served = ", ".join(f"{major}.{minor}" for arch in archs.values() for major, minor in arch.serves)
    raise QgenError(
        stage="spec",
        subject=f"device of compute capability {capability[0]}.{capability[1]}",
        found="no architecture in specs/archs serves it",
        allowed=served,
        next="use another device, or add its file to specs/archs and run qgen build",
    )
