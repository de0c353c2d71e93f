"""Architectures: instruction flags held against the compiler, and every wrong file refused with its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from qgen import archs
from qgen.archs import Instructions, arch_of, load_arch, load_archs
from qgen.build import nvrtc
from qgen.errors import QgenError
from qgen.paths import data_dir

ARCHS = load_archs()

SPECIFIC = ("wgmma",)  # of the architecture-specific target: for sm_90 that is sm_90a

# One use of each instruction; ptxas refuses it where the architecture lacks it.
USES = {
    "dp4a": 'asm volatile("dp4a.s32.s32 %0, %1, %1, %1;" : "=r"(r[0]) : "r"(a));',
    "ldmatrix": 'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(a));',
    "cp_async": (
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" '
        ':: "r"(a), "l"(r));'
    ),
    "redux": 'asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(r[0]) : "r"(a));',
    "pdl": 'asm volatile("griddepcontrol.wait;");',
    "tma": (
        'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%0];" '
        ':: "r"(a), "l"(r));'
    ),
    "cluster": 'asm volatile("barrier.cluster.arrive.aligned;");',
    "wgmma": (
        'asm volatile("wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0,%1,%2,%3}, '
        '{%4,%4,%4,%4}, %5, 1; setmaxnreg.dec.sync.aligned.u32 24;" '
        ': "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(a), "l"(f));'
    ),
    "mma_m8n8k16_s8": (
        'asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%2}, {%0,%1};" '
        ': "+r"(r[0]), "+r"(r[1]) : "r"(a));'
    ),
    "mma_m16n8k16_s8": (
        'asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%4}, {%4}, {%0,%1,%2,%3};" '
        ': "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(a));'
    ),
    "mma_m16n8k32_s8": (
        'asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, '
        '{%0,%1,%2,%3};" : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(a));'
    ),
    "mma_m16n8k8_f16": (
        'asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4}, {%4}, {%0,%1,%2,%3};" '
        ': "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(a));'
    ),
    "mma_m16n8k16_f16": (
        'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, '
        '{%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(a));'
    ),
    "mma_m16n8k16_bf16": (
        'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, '
        '{%0,%1,%2,%3};" : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3]) : "r"(a));'
    ),
}


def compiles(body: str, arch: str) -> bool:
    text = f'extern "C" __global__ void k(int* r, float* f, unsigned a) {{ {body} }}'
    output = nvrtc.load().compile(text=text, name="k.cu", headers={}, options=[f"--gpu-architecture={arch}"])
    return bool(output.cubin)


@pytest.mark.parametrize("arch", ARCHS)
def test_instruction_flags_are_what_the_compiler_says(arch: str) -> None:
    assert USES.keys() == {item.name for item in fields(Instructions)}
    flags = ARCHS[arch].instructions
    assert compiles("r[0] = a;", arch)
    does = {name: compiles(use, arch + "a" * (name in SPECIFIC)) for name, use in USES.items()}
    assert does == {name: getattr(flags, name) for name in USES}


@pytest.mark.parametrize("name", SPECIFIC)
def test_the_plain_target_does_not_have_it(name: str) -> None:
    assert not any(compiles(USES[name], arch) for arch in ARCHS)


def test_the_architectures_shipped() -> None:
    assert list(ARCHS) == ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
    for arch in ARCHS.values():
        # So it is on every architecture so far: one block may have all shared memory but the driver's part.
        assert arch.shared_per_block_optin + arch.shared_reserved == arch.shared_per_sm


def test_limits_of_hopper_as_an_h200_reports_them() -> None:
    arch = ARCHS["sm_90"]
    assert (arch.max_warps_per_sm, arch.max_blocks_per_sm) == (64, 32)
    assert (arch.shared_per_sm, arch.shared_per_block_optin, arch.shared_reserved) == (233472, 232448, 1024)


@pytest.mark.parametrize(("capability", "name"), [((9, 0), "sm_90"), ((10, 3), "sm_100"), ((12, 1), "sm_120")])
def test_arch_of_a_device(capability: tuple[int, int], name: str) -> None:
    assert arch_of(capability).name == name


@pytest.mark.parametrize("capability", [(7, 0), (8, 7), (11, 0), (99, 9)])
def test_a_device_nobody_serves(capability: tuple[int, int]) -> None:
    with pytest.raises(QgenError, match="9.0, 10.0, 10.3"):
        arch_of(capability)


GOOD = (data_dir("specs") / "archs" / "sm_86.toml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_warps_per_sm", "max_warp_per_sm", "unknown key.*did you mean 'max_warps_per_sm'"),
        ('"cp_async"', '"cp_asinc"', "did you mean 'cp_async'"),
        ('name = "sm_86"', 'name = "sm_89"', "as the file is called"),
        ('name = "sm_86"', "", "name.*missing"),
        ("max_blocks_per_sm = 16", "", "max_blocks_per_sm.*missing"),
        ("max_blocks_per_sm = 16", 'max_blocks_per_sm = "16"', "an integer"),
        ("max_blocks_per_sm = 16", "max_blocks_per_sm = -1", ">= 0"),
        ("max_blocks_per_sm = 16", "max_blocks_per_sm = 1.5", "an integer"),
        ("shared_per_block_optin = 101376", "shared_per_block_optin = 101377", r"101377 \+ 1024 reserved = 102401"),
        ('serves = ["8.6"]', 'serves = ["8.0", "8.6"]', "later capabilities of the same major"),
        ('serves = ["8.6"]', 'serves = ["8.6", "9.0"]', "later capabilities of the same major"),
        ('serves = ["8.6"]', 'serves = ["8.9"]', "later capabilities of the same major"),
        ('serves = ["8.6"]', 'serves = ["86"]', 'written "9.0"'),
        ('serves = ["8.6"]', "serves = [8.6]", "a list of texts"),
        ("[", "", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in GOOD
    path = tmp_path / "sm_86.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(QgenError, match="(?s)" + words) as caught:
        load_arch(path)
    assert "sm_86.toml" in caught.value.subject


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    def fill(files: dict[str, str]) -> None:
        (tmp_path / "archs").mkdir()
        for name, text in files.items():
            (tmp_path / "archs" / name).write_text(text)
        monkeypatch.setattr(archs, "data_dir", lambda name: tmp_path)

    return fill


def test_two_files_for_one_device(folder: Callable[[dict[str, str]], None]) -> None:
    text = GOOD.replace('name = "sm_86"', 'name = "sm_80"').replace('["8.6"]', '["8.0", "8.6"]')
    folder({"sm_86.toml": GOOD, "sm_80.toml": text})
    with pytest.raises(QgenError, match="serves 8.6, which sm_80 serves already"):
        load_archs()


def test_no_files_at_all(folder: Callable[[dict[str, str]], None]) -> None:
    folder({})
    with pytest.raises(QgenError, match="no architecture files"):
        load_archs()
