"""generated/ as a set: only what changed is written, nobody else's file is touched, nothing stays half-written."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from qgen import tree
from qgen.errors import QgenError
from qgen.tree import File

FIRST = {
    "a.cu": File("a1\n", "kernel", {"format": "Q4_K", "entries": ["a_r1", "a_r2"]}),
    "deep/er/b.cu": File("b1\n", "kernel"),
    "gone/c.cu": File("c1\n", "kernel"),
    "same.h": File("same\n", "header"),
}
SECOND = {
    "a.cu": File("a2\n", "kernel"),
    "deep/er/b.cu": File("b2\n", "kernel"),
    "new/d.cu": File("d2\n", "kernel"),
    "same.h": File("same\n", "header"),
}


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file and (with a slash) every folder below the root."""
    return {
        str(path.relative_to(root)) + ("/" if path.is_dir() else ""): b"" if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "generated"


def test_first_write_and_its_manifest(root: Path) -> None:
    written = tree.write(root, FIRST)
    assert written.changed == (*sorted(FIRST), "manifest.json") and written.removed == ()
    assert {path: (root / path).read_text() for path in FIRST} == {path: file.text for path, file in FIRST.items()}
    lines = (root / "manifest.json").read_text().splitlines()
    assert lines[0] == "[" and lines[-1] == "]" and len(lines) == len(FIRST) + 2
    rows = tree.read_manifest(root)
    assert [row.path for row in rows] == sorted(FIRST)
    assert rows[0].kind == "kernel" and rows[0].fields == {"format": "Q4_K", "entries": ["a_r1", "a_r2"]}
    assert rows[0].digest == "sha256:0111f7554519f7126c570c154b894f1fbcddf4faa126f6d644b974dab6c77411"  # sha256sum
    assert tree.check(root, FIRST) == []


def test_manifest_does_not_depend_on_the_order_of_the_files(root: Path, tmp_path: Path) -> None:
    tree.write(root, FIRST)
    other = tmp_path / "other"
    tree.write(other, dict(reversed(FIRST.items())))
    assert snapshot(root) == snapshot(other)


def test_only_changed_files_are_written(root: Path) -> None:
    tree.write(root, FIRST)
    for path in root.rglob("*"):
        os.utime(path, ns=(0, 0))
    assert tree.write(root, FIRST) == tree.Written(changed=(), removed=())
    assert all(path.stat().st_mtime_ns == 0 for path in root.rglob("*"))
    written = tree.write(root, SECOND)
    assert written.changed == ("a.cu", "deep/er/b.cu", "new/d.cu", "manifest.json")
    assert written.removed == ("gone/c.cu",)
    assert (root / "same.h").stat().st_mtime_ns == 0
    assert not (root / "gone").exists()
    assert tree.check(root, SECOND) == []
    assert sorted(path.name for path in root.iterdir()) == ["a.cu", "deep", "manifest.json", "new", "same.h"]


def test_an_edited_file_is_put_right(root: Path) -> None:
    tree.write(root, FIRST)
    (root / "a.cu").write_text("edited\n")
    (root / "same.h").unlink()
    assert tree.write(root, FIRST).changed == ("a.cu", "same.h")
    assert tree.check(root, FIRST) == []


def test_other_peoples_files_stay(root: Path) -> None:
    tree.write(root, FIRST)
    (root / "notes.txt").write_text("mine")
    (root / "gone" / "mine.cu").write_text("mine")
    tree.write(root, SECOND)
    assert (root / "notes.txt").read_text() == "mine" and (root / "gone" / "mine.cu").read_text() == "mine"
    assert [(found.kind, found.path) for found in tree.check(root, SECOND)] == [
        ("foreign", "gone/mine.cu"),
        ("foreign", "notes.txt"),
    ]


def test_a_foreign_file_in_the_way_is_refused(root: Path) -> None:
    tree.write(root, FIRST)
    (root / "new").mkdir()
    (root / "new" / "d.cu").write_text("mine")
    before = snapshot(root)
    with pytest.raises(QgenError, match="did not write"):
        tree.write(root, SECOND)
    assert snapshot(root) == before


def test_a_foreign_file_that_is_equal_anyway_is_adopted(root: Path) -> None:
    root.mkdir()
    (root / "same.h").write_text("same\n")
    tree.write(root, FIRST)
    assert tree.check(root, FIRST) == []


@pytest.mark.parametrize("obstacle", ["folder", "file", "link"])
def test_nothing_is_written_through_an_obstacle(obstacle: str, root: Path, tmp_path: Path) -> None:
    root.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    if obstacle == "folder":
        (root / "a.cu").mkdir()
    elif obstacle == "file":
        (root / "deep").write_text("mine")
    else:
        (root / "deep").symlink_to(outside)
    before = snapshot(root)
    with pytest.raises(QgenError, match="did not write"):
        tree.write(root, FIRST)
    assert snapshot(root) == before and list(outside.iterdir()) == []


def test_nothing_is_removed_through_a_link(root: Path, tmp_path: Path) -> None:
    tree.write(root, FIRST)
    (root / "gone").rename(tmp_path / "gone")
    (root / "gone").symlink_to(tmp_path / "gone")
    tree.write(root, SECOND)
    assert (tmp_path / "gone" / "c.cu").read_text() == "c1\n"


# ---- check ---------------------------------------------------------------------------------------------------


def test_check_names_every_difference_and_touches_nothing(root: Path) -> None:
    tree.write(root, FIRST)
    (root / "deep/er/b.cu").write_text("b1\nmore\n")
    (root / "same.h").unlink()
    (root / "mine.txt").write_text("")
    before = snapshot(root)
    found = {(difference.kind, difference.path): difference.detail for difference in tree.check(root, SECOND)}
    assert set(found) == {
        ("changed", "a.cu"),
        ("changed", "deep/er/b.cu"),
        ("stale", "gone/c.cu"),
        ("changed", "manifest.json"),
        ("foreign", "mine.txt"),
        ("missing", "new/d.cu"),
        ("missing", "same.h"),
    }
    assert found["changed", "a.cu"] == r"line 1: found 'a1\n', expected 'a2\n'"
    assert snapshot(root) == before


@pytest.mark.parametrize(
    ("found", "expected", "words"),
    [
        ("x\ny\n", "x\nz\n", r"line 2: found 'y\n', expected 'z\n'"),
        ("x\ny\n", "x\n", r"line 2: found 'y\n', expected the end of the file"),
        ("", "x\n", r"line 1: found the end of the file, expected 'x\n'"),
        ("x", "x\n", r"line 1: found 'x', expected 'x\n'"),
        ("x\r\n", "x\n", r"line 1: found 'x\r\n', expected 'x\n'"),
    ],
)
def test_the_first_differing_line(found: str, expected: str, words: str, root: Path) -> None:
    files = {"f": File(expected, "kernel")}
    tree.write(root, files)
    (root / "f").write_bytes(found.encode())
    assert [difference.detail for difference in tree.check(root, files)] == [words]


def test_check_of_nothing_at_all(root: Path) -> None:
    assert {difference.kind for difference in tree.check(root, FIRST)} == {"missing"}
    assert not root.exists()


@pytest.mark.parametrize("damage", ["", "[", "{}", "[1]", '[{"path": "a"}]', '[{"path": 1}]', "<<<<<<< HEAD\n"])
def test_a_damaged_manifest_stops_a_write_and_shows_in_check(damage: str, root: Path) -> None:
    tree.write(root, FIRST)
    (root / "manifest.json").write_text(damage)
    before = snapshot(root)
    assert ("changed", "manifest.json") in {(found.kind, found.path) for found in tree.check(root, FIRST)}
    with pytest.raises(QgenError, match="damaged") as caught:
        tree.write(root, SECOND)
    assert caught.value.stage == "tree"
    assert snapshot(root) == before


def test_a_manifest_cannot_reach_outside(root: Path, tmp_path: Path) -> None:
    tree.write(root, FIRST)
    (tmp_path / "precious").write_text("precious")
    row = {"path": "../precious", "kind": "kernel", "digest": "sha256:0"}
    (root / "manifest.json").write_text(json.dumps([row]))
    with pytest.raises(QgenError, match="not usable as a path"):
        tree.write(root, FIRST)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    "path", ["", ".", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a\\b", "manifest.json", ".qgen-staging/a"]
)
def test_unusable_paths_are_refused_before_anything_is_written(path: str, root: Path) -> None:
    with pytest.raises(QgenError, match="not usable as a path"):
        tree.write(root, {"good": File("", "kernel"), path: File("", "kernel")})
    assert not root.exists()


@pytest.mark.parametrize("fields", [{"path": "x"}, {"x": object()}, {"x": float("nan")}])
def test_unusable_manifest_fields_are_refused(fields: dict[str, object], root: Path) -> None:
    with pytest.raises(QgenError, match="manifest field"):
        tree.write(root, {"a": File("", "kernel", fields)})
    assert not root.exists()


# ---- interruption --------------------------------------------------------------------------------------------


def break_at(nth: int, fail: Callable[[], None]) -> Callable[[Path, Path], None]:
    """A stand-in for os.replace that fails at its nth call."""
    original, calls = os.replace, [0]

    def replace(source: Path, target: Path) -> None:
        calls[0] += 1
        if calls[0] == nth:
            fail()
        original(source, target)

    return replace


def fill_disk() -> None:
    raise OSError(28, "No space left on device")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("fail", [fill_disk, interrupt])
@pytest.mark.parametrize("start", ["nothing", "first"])
def test_any_failure_puts_everything_back(
    fail: Callable[[], None], start: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if start == "first":
        tree.write(root, FIRST)
        (root / "mine.txt").write_text("mine")
    before = snapshot(root)
    for nth in range(1, 50):
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", break_at(nth, fail))
            try:
                tree.write(root, SECOND)
                break  # it needed fewer than nth renames
            except (QgenError, KeyboardInterrupt):
                pass
        assert snapshot(root) == before, f"rename {nth}"
        assert root.exists() == (start == "first")
    assert 5 < nth < 49
    assert [found for found in tree.check(root, SECOND) if found.kind != "foreign"] == []


def test_a_disk_full_while_staging_touches_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(root, FIRST)
    before = snapshot(root)
    original, calls = Path.write_bytes, [0]

    def write_bytes(self: Path, data: bytes) -> int:
        calls[0] += 1
        if calls[0] == 3:
            original(self, data[: len(data) // 2])
            raise OSError(28, "No space left on device", str(self))
        return original(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_bytes)
        with pytest.raises(QgenError, match="No space left"):
            tree.write(root, SECOND)
    assert snapshot(root) == before


def write_and_die(root: Path, nth: int) -> None:
    os.replace = break_at(nth, lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[assignment]
    tree.write(root, SECOND)


def test_after_a_kill_every_file_is_whole_and_the_next_build_finishes(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for nth in range(1, 7):
        tree.write(root, FIRST)
        process = context.Process(target=write_and_die, args=(root, nth))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        for path in FIRST.keys() | SECOND.keys():
            if (root / path).exists():
                texts = {files[path].text for files in (FIRST, SECOND) if path in files}
                assert (root / path).read_text() in texts
        assert {found.path for found in tree.check(root, FIRST) if found.kind == "foreign"} <= {
            path for path in snapshot(root) if path.startswith(".qgen-staging")
        }
        tree.write(root, FIRST if nth % 2 else SECOND)
        assert tree.check(root, FIRST if nth % 2 else SECOND) == []


def test_two_builds_at_once_are_refused(root: Path) -> None:
    tree.write(root, FIRST)
    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(QgenError, match="another qgen build"):
            tree.write(root, SECOND)
    finally:
        os.close(handle)
    tree.write(root, SECOND)


def test_a_root_that_is_a_file_is_named(root: Path) -> None:
    root.write_text("")
    with pytest.raises(QgenError, match="generated"):
        tree.write(root, FIRST)
    assert root.read_text() == ""


def test_no_manifest_is_a_clear_error(root: Path) -> None:
    with pytest.raises(QgenError, match="run `qgen build`"):
        tree.read_manifest(root)
