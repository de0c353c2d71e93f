"""The shape catalog: which weight matrices public models have, derived from their configurations in specs/models.

A matrix is N rows (output features) by K columns (input features). Sizes follow from the configuration; nothing here
is measured, and no model is downloaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.spec.keys import Key
from qgen.spec.reader import Node, read_toml

FILE = "catalog.toml"

_INT, _FLAG = "int", "bool"
ATTENTION = {
    "layers": Key(_INT, "layers with this attention", required=True, minimum=0),
    "heads": Key(_INT, "query heads", required=True, minimum=1),
    "kv_heads": Key(_INT, "key and value heads; 0: keys and values come from another layer", minimum=0),
    "dim": Key(_INT, "elements of a head", minimum=1),
    "gate": Key(_FLAG, "the query projection also makes a gate as wide as itself"),
    "k_is_v": Key(_FLAG, "values are the keys: no value projection"),
    "fused": Key(_FLAG, "q, k and v are stored as one matrix"),
    "q_rank": Key(_INT, "latent attention: rank of the query, 0 for a full one", minimum=0),
    "kv_rank": Key(_INT, "latent attention: rank of keys and values", minimum=1),
    "nope": Key(_INT, "latent attention: elements of a head without position", minimum=1),
    "rope": Key(_INT, "latent attention: elements of a head with position", minimum=1),
    "v_dim": Key(_INT, "latent attention: elements of a value head", minimum=1),
}
DELTA = {
    "layers": Key(_INT, "layers with gated delta attention", required=True, minimum=1),
    "k_heads": Key(_INT, "key heads", required=True, minimum=1),
    "v_heads": Key(_INT, "value heads", required=True, minimum=1),
    "k_dim": Key(_INT, "elements of a key head", required=True, minimum=1),
    "v_dim": Key(_INT, "elements of a value head", required=True, minimum=1),
    "fused": Key(_FLAG, "stored as two matrices (qkvz, ba) and not as four"),
}
FFN = {
    "layers": Key(_INT, "layers with this plain MLP", required=True, minimum=1),
    "width": Key(_INT, "inner features", required=True, minimum=1),
}
EXPERTS = {
    "layers": Key(_INT, "layers with experts", required=True, minimum=1),
    "count": Key(_INT, "experts of a layer", required=True, minimum=1),
    "used": Key(_INT, "experts a token visits", required=True, minimum=1),
    "width": Key(_INT, "inner features of an expert", required=True, minimum=1),
    "shared": Key(_INT, "inner features of the MLP every token visits", minimum=1),
    "shared_gate": Key(_FLAG, "that MLP has a gate of one row"),
}
_MODEL = {
    "name": Key("text", "the model's name", required=True),
    "id": Key("text", "its repository on the Hugging Face hub", required=True),
    "source": Key("text", "where the figures stand; codes at the top of the file", required=True),
    "hidden": Key(_INT, "features between layers", required=True, minimum=1),
    "vocab": Key(_INT, "rows of the LM head", required=True, minimum=1),
    "tied": Key(_FLAG, "LM head and embedding are one matrix"),
    "fused_gate_up": Key(_FLAG, "gate and up are stored as one matrix"),
    "per_layer_input": Key(_INT, "features of the per-layer embedding", minimum=1),
    "attention": Key("tables", "kinds of attention, with their layers", required=True),
    "delta": Key("tables", "gated delta layers"),
    "ffn": Key("tables", "plain MLPs, with their layers"),
    "experts": Key("tables", "expert layers"),
}


@dataclass(frozen=True)
class Matrix:
    """One kind of weight matrix of a model.

    role:  what it does ("q", "expert_down", "lm_head")
    N, K:  rows (output features) and columns (input features)
    count: matrix-vector products of one token; stored: matrices in the checkpoint (more, where experts rest)
    group: "main" (attention, MLPs, experts), "head", or "aux" (routers, gates, decay: small, often kept in f32)
    """

    role: str
    N: int
    K: int
    count: int
    stored: int
    group: str = "main"


@dataclass(frozen=True)
class Part:
    """One kind of attention, MLP or other part, and its matrices in the order in which a token meets them.

    kind:   "mixer" (attention of any sort), "mlp", "experts", "input" (the per-layer embedding) or "head"
    layers: how many layers have it
    """

    kind: str
    layers: int
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Model:
    """One model: its name, where its figures stand, its parts with their matrices as the checkpoint stores them."""

    name: str
    id: str
    source: str
    parts: tuple[Part, ...]

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Every kind of matrix, part by part."""
        return tuple(matrix for part in self.parts for matrix in part.matrices)


def load_models(path: Path | None = None) -> tuple[Model, ...]:
    """The shipped catalog (specs/models), or another file of its grammar.

    Raises QgenError for a missing, unknown or ill-typed key, and for two models of one name.
    """
    top = read_toml(path or data_dir("specs") / "models" / FILE, keys={"model": Key("tables", "models", required=True)})
    models: list[Model] = []
    for node in _inner(top, "model", _MODEL):
        name = node.text("name")
        if any(model.name == name for model in models):
            node.refuse("name", repr(name), "one entry a model")
        models.append(Model(name, node.text("id"), node.text("source"), tuple(_parts(node))))
    return tuple(models)


def model_named(name: str) -> Model:
    """The model of the shipped catalog with this name, in any case. Raises QgenError for a name it does not have."""
    known = {model.name.lower(): model for model in load_models()}
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3)
        raise QgenError(
            stage="models",
            subject=name,
            found="no such model in the catalog",
            allowed=", ".join(known[n].name for n in near) or ", ".join(model.name for model in known.values()),
            next=f"choose one of these, or add its sizes to specs/models/{FILE}",
        )
    return known[name.lower()]


def shapes(models: tuple[Model, ...] | None = None) -> tuple[tuple[int, int], ...]:
    """Every distinct (N, K) of the catalog, in order."""
    known = load_models() if models is None else models
    return tuple(sorted({(m.N, m.K) for model in known for m in model.matrices}))


def _inner(node: Node, name: str, keys: dict[str, Key]) -> Iterator[Node]:
    """The tables of a list of tables, each checked against `keys`."""
    base = f"{node.path}.{name}" if node.path else name
    for index, item in enumerate(node.data.get(name, ())):
        yield Node(item, file=node.file, path=f"{base}[{index}]", keys=keys)


def _parts(model: Node) -> Iterator[Part]:
    hidden = model.integer("hidden")
    depth = 0
    for attention in _inner(model, "attention", ATTENTION):
        layers = attention.integer("layers")
        depth += layers
        made = _latent(attention, hidden) if attention.has("kv_rank") else _grouped(attention, hidden)
        yield Part("mixer", layers, tuple(made))
    for delta in _inner(model, "delta", DELTA):
        depth += delta.integer("layers")
        yield Part("mixer", delta.integer("layers"), tuple(_delta(delta, hidden)))
    fused = model.flag("fused_gate_up")
    for ffn in _inner(model, "ffn", FFN):
        layers = ffn.integer("layers")
        yield Part("mlp", layers, tuple(_mlp("", ffn.integer("width"), hidden, layers, fused=fused)))
    for experts in _inner(model, "experts", EXPERTS):
        yield Part("experts", experts.integer("layers"), tuple(_experts(experts, hidden, fused)))
    if model.has("per_layer_input"):
        width = model.integer("per_layer_input")
        small = (
            Matrix("ple_model_proj", depth * width, hidden, 1, 1, "aux"),
            Matrix("ple_gate", width, hidden, depth, depth, "aux"),
            Matrix("ple_proj", hidden, width, depth, depth, "aux"),
        )
        yield Part("input", depth, small)
    yield Part("head", 1, (Matrix("lm_head", model.integer("vocab"), hidden, 1, 1, "head"),))


def _every(role: str, n: int, k: int, layers: int, group: str = "main") -> Iterator[Matrix]:
    """One matrix in each of `layers` layers; none where there are no layers."""
    if layers:
        yield Matrix(role, n, k, layers, layers, group)


def _grouped(a: Node, hidden: int) -> Iterator[Matrix]:
    layers, dim = a.integer("layers"), a.integer("dim")
    out = a.integer("heads") * dim
    q, kv = out * (2 if a.flag("gate") else 1), a.integer("kv_heads") * dim
    if a.flag("fused"):
        yield from _every("qkv", q + 2 * kv, hidden, layers)
    else:
        yield from _every("q", q, hidden, layers)
        if kv:
            yield from _every("k", kv, hidden, layers)
            if not a.flag("k_is_v"):
                yield from _every("v", kv, hidden, layers)
    yield from _every("o", hidden, out, layers)


def _latent(a: Node, hidden: int) -> Iterator[Matrix]:
    layers, heads, rank, rope = a.integer("layers"), a.integer("heads"), a.integer("q_rank"), a.integer("rope")
    q = heads * (a.integer("nope") + rope)
    if rank:
        yield from _every("q_a", rank, hidden, layers)
        yield from _every("q_b", q, rank, layers)
    else:
        yield from _every("q", q, hidden, layers)
    yield from _every("kv_a", a.integer("kv_rank") + rope, hidden, layers)
    yield from _every("kv_b", heads * (a.integer("nope") + a.integer("v_dim")), a.integer("kv_rank"), layers)
    yield from _every("o", hidden, heads * a.integer("v_dim"), layers)


def _delta(d: Node, hidden: int) -> Iterator[Matrix]:
    layers, v_heads = d.integer("layers"), d.integer("v_heads")
    keys, values = d.integer("k_heads") * d.integer("k_dim"), v_heads * d.integer("v_dim")
    if d.flag("fused"):
        yield from _every("gdn_qkvz", 2 * keys + 2 * values, hidden, layers)
        yield from _every("gdn_ba", 2 * v_heads, hidden, layers, "aux")
    else:
        yield from _every("gdn_qkv", 2 * keys + values, hidden, layers)
        yield from _every("gdn_z", values, hidden, layers)
        yield from _every("gdn_b", v_heads, hidden, layers, "aux")
        yield from _every("gdn_a", v_heads, hidden, layers, "aux")
    yield from _every("gdn_out", hidden, values, layers)


def _mlp(
    prefix: str, width: int, hidden: int, layers: int, *, fused: bool, used: int = 1, stored: int = 1
) -> Iterator[Matrix]:
    count, kept = layers * used, layers * stored
    if fused:
        yield Matrix(f"{prefix}gate_up", 2 * width, hidden, count, kept)
    else:
        yield Matrix(f"{prefix}gate", width, hidden, count, kept)
        yield Matrix(f"{prefix}up", width, hidden, count, kept)
    yield Matrix(f"{prefix}down", hidden, width, count, kept)


def _experts(e: Node, hidden: int, fused: bool) -> Iterator[Matrix]:
    layers = e.integer("layers")
    used, stored = e.integer("used"), e.integer("count")
    yield from _mlp("expert_", e.integer("width"), hidden, layers, fused=fused, used=used, stored=stored)
    if e.has("shared"):
        yield from _mlp("shared_", e.integer("shared"), hidden, layers, fused=fused)
    yield from _every("router", stored, hidden, layers, "aux")
    if e.flag("shared_gate"):
        yield from _every("shared_expert_gate", 1, hidden, layers, "aux")
