"""The shape catalog: derived shapes against published sizes, and the grammar of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from qgen import models
from qgen.errors import QgenError

# Billions of weights as published (text part, embedding counted once where it is tied).
PUBLISHED = {
    "Qwen2.5-7B": 7.6,
    "Qwen3-8B": 8.2,
    "Qwen3-30B-A3B": 30.5,
    "Llama-3.1-8B": 8.0,
    "Llama-3.1-405B": 405,
    "Mixtral-8x7B": 46.7,
    "DeepSeek-V3": 671,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "gemma-4-31B": 30.7,
    "Ternary-Bonsai-8B": 8.19,
    "SmolLM2-135M": 0.1345,
    "SmolLM2-360M": 0.3618,
    "Qwen3.5-9B": 8.95,
}


@pytest.fixture(scope="module")
def catalog() -> dict[str, models.Model]:
    return {model.name: model for model in models.load_models()}


def test_the_catalog_is_whole(catalog: dict[str, models.Model]) -> None:
    assert len(catalog) == 61
    assert len(models.shapes()) == 268
    assert all(model.source and "/" in model.id for model in catalog.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_add_up_to_the_published_size(name: str, catalog: dict[str, models.Model]) -> None:
    model = catalog[name]
    total = sum(m.N * m.K * m.stored for m in model.matrices)
    head = next(m for m in model.matrices if m.role == "lm_head")
    tied = name.startswith(("SmolLM2", "gemma"))
    total += 0 if tied else head.N * head.K
    assert total / 1e9 == pytest.approx(PUBLISHED[name], rel=0.013)


@pytest.mark.parametrize(
    ("name", "role", "n", "k"),
    [
        ("gemma-3-270m", "lm_head", 262144, 640),
        ("gemma-3-270m", "q", 1024, 640),
        ("Qwen3-8B", "down", 4096, 12288),
        ("Qwen3-30B-A3B", "expert_gate", 768, 2048),
        ("gpt-oss-20b", "expert_down", 2880, 2880),
        ("DeepSeek-V3", "kv_b", 32768, 512),
        ("Qwen3.5-27B", "gdn_qkv", 10240, 5120),
        ("Phi-3.5-mini", "gate_up", 16384, 3072),
    ],
)
def test_known_shapes(name: str, role: str, n: int, k: int, catalog: dict[str, models.Model]) -> None:
    assert (n, k) in {(m.N, m.K) for m in catalog[name].matrices if m.role == role}


def test_experts_are_stored_more_often_than_they_are_used(catalog: dict[str, models.Model]) -> None:
    experts = [m for m in catalog["Qwen3-30B-A3B"].matrices if m.role == "expert_up"]
    assert [(m.count, m.stored) for m in experts] == [(48 * 8, 48 * 128)]


SOUND = """
[[model]]
name = "tiny"
id = "me/tiny"
source = "me"
hidden = 64
vocab = 100
attention = [{ layers = 2, heads = 4, kv_heads = 2, dim = 16 }]
ffn = [{ layers = 2, width = 128 }]
"""


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SOUND)
    (model,) = models.load_models(path)
    assert [(m.role, m.N, m.K, m.count) for m in model.matrices] == [
        ("q", 64, 64, 2),
        ("k", 32, 64, 2),
        ("v", 32, 64, 2),
        ("o", 64, 64, 2),
        ("gate", 128, 64, 2),
        ("up", 128, 64, 2),
        ("down", 64, 128, 2),
        ("lm_head", 100, 64, 1),
    ]


@pytest.mark.parametrize(
    ("old", "new", "place", "found"),
    [
        ("hidden = 64", "hiden = 64", "model[0].hiden", "did you mean 'hidden'"),
        ("hidden = 64", "hidden = 0", "model[0].hidden", "0"),
        ("vocab = 100", "", "model[0].vocab", "missing"),
        ("width = 128", "width = 1.5", "model[0].ffn[0].width", "1.5"),
        ("heads = 4", "head = 4", "model[0].attention[0].head", "did you mean 'heads'"),
        ("[[model]]", SOUND + "[[model]]", "model[1].name", "'tiny'"),
        ("[[model]]", "[[modle]]", "modle", "did you mean 'model'"),
    ],
)
def test_wrong_files(old: str, new: str, place: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SOUND.replace(old, new, 1))
    with pytest.raises(QgenError) as caught:
        models.load_models(path)
    assert place in caught.value.subject and found in caught.value.found
