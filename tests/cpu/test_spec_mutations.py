"""One wrong number in a format file is noticed: it is refused, or blocks have another size, or decode otherwise."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spec_text import Place, at, dump_file, places

from qgen import codec
from qgen.errors import QgenError
from qgen.layout import Matrix, matrix
from qgen.paths import data_dir
from qgen.spec import Format, load_format

SHIPPED = sorted((data_dir("specs") / "formats").glob("*.toml"))
NOT_LAYOUT = ("name", "id", "doc", "source", "activation")
OTHER_TYPE = {"f16": "bf16", "e8m0_half": "e8m0", "ue4m3_half": "ue4m3", "sign": "sign7", "sign7": "sign"}
OTHER_BOOK = {"iq4_nl": "e2m1_doubled", "e2m1_doubled": "iq4_nl", "iq2_xxs": "iq3_xxs"}


def others(place: Place, value: Any) -> list[Any]:
    """The wrong values to try at a place of a format file."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value - 1, value + 1, 2 * value]
    if isinstance(value, float):
        return [-value, 2 * value]
    if place[-1] == "encoding":
        return ["positional"]
    if place[-1] == "type":
        return [OTHER_TYPE[value]]
    if place[-1] in ("table", "grid"):
        return [OTHER_BOOK.get(value, "iq2_xxs")]
    if place[-1] == "value":
        return [value.replace("-", "+"), value.replace("+", "-"), value.replace("0.5", "0.25"), f"2*({value})"]
    return []


def placed(format: Format) -> list[Matrix]:
    return [matrix(format, rows=rows, columns=300 if format.split else 256) for rows in (1, 3)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_one_wrong_number_is_noticed(path: Path, tmp_path: Path) -> None:
    data = tomllib.loads(path.read_text())
    right = load_format(path)
    rng = np.random.default_rng(3)
    planes = {plane.name: rng.integers(0, 256, (48, plane.bytes), dtype=np.uint8) for plane in right.planes}
    blocks: codec.Blocks = planes if right.split else planes["block"]
    wanted = codec.decode(right, blocks)
    tried, unnoticed = 0, []
    for place in places(data):
        if place[0] in NOT_LAYOUT:
            continue
        for value in others(place, at(data, place)):
            if value == at(data, place):
                continue
            changed = copy.deepcopy(data)
            at(changed, place[:-1])[place[-1]] = value
            (tmp_path / path.name).write_text(dump_file(changed))
            tried += 1
            try:
                wrong = load_format(tmp_path / path.name)
            except QgenError:
                continue
            if (wrong.block, wrong.planes) != (right.block, right.planes) or placed(wrong) != placed(right):
                continue
            if np.array_equal(codec.decode(wrong, blocks), wanted, equal_nan=True):
                unnoticed.append((place, at(data, place), value))
    assert tried >= 20
    assert unnoticed == []
