"""The shape of the house: which way imports point, what importing may do, how long files get, what README promises."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "qgen"
README = (ROOT / "README.md").read_text(encoding="utf-8")

# Along the flow: a room may import those to its left. A new room gets a place here, or this test fails.
ORDER = """
    errors paths progress spec archs layout codec gguf plan weights storage name contract contract_float emit tree build
    emulate models dispatch emulated emulated_wgmma generate count operands run verify measure bench cli __main__
""".split()

# Rooms that must know still less than their place in the order allows.
KNOWS_ONLY = {
    "errors": set[str](),
    "paths": set[str](),
    "progress": set[str](),
    "spec": {"errors", "paths"},
    "codec": {"errors", "spec", "layout"},  # the oracle stays independent of what it judges
    "tree": {"errors"},
    "build": {"errors", "paths", "progress"},
    "emulate": {"errors", "paths"},
}

THIRD_PARTY = {
    "cupy": {"run", "measure", "bench"},
    "jinja2": {"emit"},
    "networkx": {"dispatch"},
    "numpy": {
        "codec", "gguf", "weights", "storage", "contract", "contract_float", "emulate", "emulated", "emulated_wgmma",
        "operands", "run", "verify", "measure", "bench",
    },
    "tqdm": {"progress"},
}  # fmt: skip

MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every dotted name a module imports, wherever in the file, with its line. `from qgen import x` is qgen.x."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            if node.module == "qgen":
                yield from ((f"qgen.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield str(node.module), node.lineno


def ids(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("path", MODULES, ids=ids(MODULES))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    for name, line in imports(path):
        top, _, rest = name.partition(".")
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        if top == "qgen" and room != "__init__":
            other = rest.partition(".")[0]
            assert room in ORDER and other in ORDER, f"{where}: give the room its place in ORDER"
            assert ORDER.index(other) <= ORDER.index(room), f"{where}, which comes later in the flow"
            assert other in KNOWS_ONLY.get(room, ORDER) or other == room, f"{where}; it may know {KNOWS_ONLY[room]}"
        elif top != "qgen" and top not in sys.stdlib_module_names:
            assert top in THIRD_PARTY, f"{where}, which pyproject.toml does not bring"
            assert room in THIRD_PARTY[top], f"{where}; only {sorted(THIRD_PARTY[top])} may"


IMPORT_ALL = """
import sys
for name in {libraries!r}:
    __import__(name)  # what they do on import is theirs
loaded = set(sys.modules)
def watch(event, arguments):
    if event == "open":
        quiet = str(arguments[0]).endswith((".py", ".pyc"))
    else:
        quiet = not event.startswith(("subprocess.", "socket.", "ctypes.dlopen", "os.system", "os.mkdir", "os.re"))
    if not quiet:
        raise RuntimeError(f"on import: {{event}} {{arguments}}")
sys.addaudithook(watch)
for name in {modules!r}:
    __import__(name)
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - loaded}}))
"""


def tops_loaded(modules: list[str], libraries: list[str]) -> set[str]:
    """Import the modules in a fresh interpreter that forbids files, processes, sockets and libraries meanwhile."""
    code = IMPORT_ALL.format(modules=modules, libraries=libraries)
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_qgen_loads_nothing_heavy() -> None:
    assert tops_loaded(["qgen"], []).isdisjoint(THIRD_PARTY)


def test_importing_every_module_does_nothing() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES]
    libraries = ["ctypes", "multiprocessing", "numpy", "jinja2", "networkx"]
    tops = tops_loaded([name for name in names if not name.endswith("__main__")], libraries)
    assert tops.isdisjoint({"cupy", "tqdm"})


LIMITS = {".py": 400, ".j2": 250, ".cuh": 250, ".h": 400}
SIZED = sorted(
    path for folder in ("qgen", "tests", "templates") for path in (ROOT / folder).rglob("*") if path.suffix in LIMITS
)


@pytest.mark.parametrize("path", SIZED, ids=ids(SIZED))
def test_a_file_stays_readable_at_one_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LIMITS[path.suffix], f"{path.relative_to(ROOT)} has {lines} lines: split it by what it does"


# ---- README --------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def paths() -> list[str]:
    """What README writes in backticks and means as a path of the repository: it has a slash, or is a top folder."""
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    words = {word for words in re.findall(r"`([^`\n]+)`", prose) for word in words.split()}
    folders = {"specs", "templates", "qgen", "generated", "tests", "docs", "LICENSE"}
    return sorted(word for word in words if ("/" in word and not word.startswith(".venv")) or word in folders)


@pytest.mark.parametrize("path", paths())
def test_a_path_in_readme_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("command", commands())
def test_a_command_in_readme_works(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == ".venv/bin/pytest":
        assert all((ROOT / argument).exists() for argument in arguments)
    elif program == ".venv/bin/pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert arguments[-1].removeprefix(".[").removesuffix("]") in extras
    else:
        assert program == ".venv/bin/qgen", "a command this test does not know how to check"
        code = "import sys; from qgen.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", code, arguments[0], "--help"], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        assert all(flag in done.stdout for flag in arguments if flag.startswith("--"))


def test_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 120


# ---- the wheel -----------------------------------------------------------------------------------------------


def test_the_wheel_carries_specs_templates_generated_and_host_headers(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    for folder in ("specs", "templates", "generated"):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        assert files
        expected |= {f"qgen/_data/{path.relative_to(ROOT).as_posix()}" for path in files}
    assert names == {name for name in expected if "__pycache__" not in name}
    assert any(name.startswith("qgen/emulate/host/") for name in names)
