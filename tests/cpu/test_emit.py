"""The emitter: one strict environment, templates that refuse what they were not written for, sober headers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from jinja2 import meta, nodes
from kernel_cases import FORMATS

from qgen import emit, paths, plan
from qgen.errors import QgenError
from qgen.plan import MatvecPlan, QuantizePlan, RepackPlan

ENVIRONMENT = emit.environment()
TEMPLATES = sorted(name for name in ENVIRONMENT.list_templates() if name.endswith(".j2"))
PLANS = plan.plan_all(FORMATS)[0]
TQ1 = plan.plan_matvec(FORMATS["TQ1_0"])


def tree_of(template: str) -> nodes.Template:
    assert ENVIRONMENT.loader is not None
    return ENVIRONMENT.parse(ENVIRONMENT.loader.get_source(ENVIRONMENT, template)[0])


def named(kinds: tuple[type[Any], ...]) -> set[str]:
    """Templates that others name in statements of these kinds."""
    found = {node.template.value for name in TEMPLATES for node in tree_of(name).find_all(kinds)}
    assert found <= set(TEMPLATES)
    return found


IMPORTED = named((nodes.Import, nodes.FromImport))
INCLUDED = named((nodes.Include,))


# ---- the environment -------------------------------------------------------------------------------------------------


def test_there_is_one_strict_environment() -> None:
    assert emit.environment() is ENVIRONMENT
    assert ENVIRONMENT.undefined is jinja2.StrictUndefined and set(ENVIRONMENT.globals) == {"fail"}
    kernel = emit._matvec(TQ1)
    for text in ("{{ kernel }}", "{{ k.thread }}", "{{ k.plan.blocks }}", "{% if k.plan.blok %}{% endif %}"):
        with pytest.raises(jinja2.UndefinedError):
            ENVIRONMENT.from_string(text).render(k=kernel)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_knows_nothing_but_k(template: str) -> None:
    """Also in branches that no plan of today takes, where StrictUndefined would not look."""
    undeclared = meta.find_undeclared_variables(tree_of(template))
    if template in IMPORTED:
        assert undeclared == set()
    elif template in INCLUDED:
        assert undeclared <= {"k"}
    else:
        assert {"k"} <= undeclared <= {"k", "guards"}


@pytest.mark.parametrize("template", sorted(IMPORTED))
def test_a_part_is_imported_without_context(template: str) -> None:
    assert "part/decode.cuh.j2" in IMPORTED
    assert vars(ENVIRONMENT.get_template(template).module), "it defines nothing"
    for name in TEMPLATES:
        for node in tree_of(name).find_all((nodes.Import, nodes.FromImport)):
            assert isinstance(node, nodes.Import | nodes.FromImport)
            assert not node.with_context, f"{name} imports {template} with its own variables"


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_stays_readable(template: str) -> None:
    lines = (paths.data_dir("templates") / template).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    assert _depth(tree_of(template)) <= 3, "conditions nested too deeply"


def _depth(node: nodes.Node) -> int:
    """How many conditions are open at the deepest place; a macro starts anew."""
    below = max((_depth(child) for child in node.iter_child_nodes()), default=0)
    return 0 if isinstance(node, nodes.Macro) else below + isinstance(node, nodes.If)


# ---- guards ----------------------------------------------------------------------------------------------------------


def rendered(template: str, kernel: emit.Kernel) -> str:
    return ENVIRONMENT.get_template(template).render(k=kernel)


WRONG: dict[str, tuple[str, emit.Kernel, str]] = {
    "another family": ("matvec.cu.j2", emit._matvec(replace(TQ1, family="multirow")), "not multirow/native"),
    "another storage": ("matvec.cu.j2", emit._matvec(replace(TQ1, storage="tiled")), "not matvec/tiled"),
    "another op": ("quantize.cu.j2", emit._matvec(TQ1), "not mul_mat"),
    "unknown step": (
        "matvec.cu.j2",
        emit._matvec(replace(TQ1, steps=(SimpleNamespace(kind="grid"),))),  # type: ignore[arg-type]
        "decode step of unknown kind grid",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_template_refuses_a_plan_it_was_not_written_for(name: str) -> None:
    template, kernel, found = WRONG[name]
    with pytest.raises(QgenError) as caught:
        rendered(template, kernel)
    assert caught.value.stage == "emit" and found in caught.value.found and caught.value.next


def test_a_quantisers_plan_does_not_fit_the_matvec_template() -> None:
    with pytest.raises((QgenError, jinja2.UndefinedError)):
        rendered("matvec.cu.j2", emit._quantize(plan.plan_quantize(TQ1)))


# ---- what comes out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", PLANS, ids=[p.file for p in PLANS])
def test_a_file_says_where_it_comes_from_and_holds_its_kernels(planned: MatvecPlan | QuantizePlan) -> None:
    made = emit.emit(planned)
    assert emit.emit(planned) == made, "two runs differ"
    head = [line for line in made.text.split("\n#include")[0].splitlines() if line]
    assert all(line.startswith("//") for line in head)
    joined = " ".join(head)
    template = re.search(r"templates/(\S+\.j2)", joined)
    spec = re.search(r"specs/formats/(\S+\.toml)", joined)
    assert template and spec and template[1] in TEMPLATES and "qgen build" in joined
    assert (paths.data_dir("specs") / "formats" / spec[1]).is_file()
    assert not re.search(r"\b20\d\d-\d\d|/home/|/root|/tmp|/work", made.text), "a date or a machine's path"
    names = re.findall(r'extern "C" __global__ .*?\n?(\w+)\(const', made.text)
    assert tuple(names) == made.kernels and made.path == f"{planned.family}/{planned.file}.cu"
    assert "\n\n\n" not in made.text and not re.search(r"[ \t]\n", made.text) and made.text.endswith("}\n")
    assert not re.search(r"//[%#]|\{[{%]|[%}]\}(?!,| )", made.text.replace("};", "")), "a tag of the template is left"


def test_who_lets_the_next_kernel_begin_waits_itself_and_writes_no_weight() -> None:
    """Dependent launches read weights before they wait, and rely on the kernel in front having waited for its own."""
    for planned in PLANS:
        text = emit.emit(planned).text
        waits = "qgen_wait_for_inputs();" in text
        assert waits or "qgen_let_next_begin();" not in text, planned.file
        assert waits != isinstance(planned, RepackPlan), planned.file


@pytest.mark.parametrize("planned", [p for p in PLANS if isinstance(p, MatvecPlan)], ids=lambda p: p.format)
def test_the_header_states_traffic_contract_and_bound(planned: MatvecPlan) -> None:
    head = " ".join(emit.emit(planned).text.split("#include")[0].replace("//", "").split())
    assert f"read factor {planned.read_factor:.2f}" in head
    assert planned.contract.name in head and all(term in head for term in planned.contract.terms)
    assert f"no sum of a unit exceeds {planned.largest_sum}" in head


# ---- no CUDA outside templates ---------------------------------------------------------------------------------------

_CUDA = re.compile(
    r"__(global|device|shared|forceinline|launch_bounds|syncwarp|syncthreads|dp4a|shfl\w*|fmaf_rn)__?"
    r"|#pragma|#include|\bthreadIdx\b|\bblockIdx\b|\basm volatile\b|\bfor \(int\b|\bconst(expr)? \w+ \w+ ="
)


def is_cuda(text: str) -> bool:
    """A heuristic: words of CUDA in something that is a statement, not a sentence."""
    return bool(_CUDA.search(text)) and bool(re.search(r"[;{]|#pragma", text))


# The emulator's room speaks C++ and reads CUDA: it wraps a text into a translation unit.
SOURCES = sorted(
    path
    for path in Path(emit.__file__).parent.rglob("*.py")
    if "emulate" not in path.relative_to(Path(emit.__file__).parent).parts
)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module that is no docstring, with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


@pytest.mark.parametrize("path", SOURCES, ids=[path.relative_to(SOURCES[0].parent).as_posix() for path in SOURCES])
def test_no_python_string_holds_cuda(path: Path) -> None:
    assert not [f"{path.name}:{line}: {text!r}" for line, text in strings(path) if is_cuda(text)]


def test_the_search_for_cuda_finds_it() -> None:
    statements = ("__global__ void k() {", "  const int x = 3;", "#pragma unroll", "v += __shfl_xor_sync(m, v, 1);")
    assert all(map(is_cuda, (*statements, "for (int i = 0; i < 4; ++i)", "x = threadIdx.x;")))
    assert not any(map(is_cuda, ('one extern "C" __global__ function', '#include "', "3 + 4 * group")))
