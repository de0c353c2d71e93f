"""The layer as the live peer uses it: weights quantised to integers of a group, products only after `transform`."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


class _Layer:
    def __init__(self, *, shape_n: int, shape_k: int, weight_config: dict[str, Any], torch_dtype: Any) -> None:
        assert torch_dtype is torch.float16 and weight_config.keys() == {"dtype", "group_size"}
        self.shape, self.group = (shape_n, shape_k), weight_config["group_size"]
        self.top = 2 ** (int(weight_config["dtype"].removeprefix("int")) - 1)
        self.ready = False
        self.weight_schema = SimpleNamespace(dequant_tensors=lambda tensors: tensors["weight"])

    def cuda(self) -> _Layer:
        return self

    def load_from_unquantized(self, weight: Any) -> None:
        assert weight.shape == self.shape
        groups = weight.host.astype(np.float32).reshape(-1, self.group)
        scale = np.abs(groups).max(1, keepdims=True) / self.top
        codes = np.clip(np.round(groups / scale), -self.top, self.top - 1)
        self.weight = torch.from_numpy((codes * scale).reshape(self.shape).astype(np.float16))

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def parameters(self) -> list[Any]:
        return [self.weight]

    def transform(self) -> None:
        self.ready = True

    def __call__(self, x: Any) -> Any:
        assert self.ready
        return torch.mm(x, self.weight.t(), out=torch.empty((len(x), self.shape[0]), torch.float16, "cuda"))


if os.environ.get("FAKE_HUMMING") != "old":
    HummingLayer = _Layer
