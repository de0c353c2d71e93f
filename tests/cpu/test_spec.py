"""Format files: good ones load to what they say, bad ones are refused in words that help."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bad_specs import DIGITS, PARTS, PLANES, REFUSED, TOY, edited, write
from spec_text import at, dump_file, places

from qgen.errors import QgenError
from qgen.paths import data_dir
from qgen.spec import Term, keys, load_activation, load_codebook, load_format, load_formats, schema
from qgen.spec.expr import ExpressionError, expand, parse
from qgen.spec.types import TYPES

FORMATS = data_dir("specs") / "formats"
SHIPPED = sorted(FORMATS.glob("*.toml"))


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_refused_in_words_that_help(case: str, tmp_path: Path) -> None:
    base, changes, fragments = REFUSED[case]
    path = write(tmp_path, edited(base, *changes))
    with pytest.raises(QgenError) as refusal:
        load_format(path)
    message = str(refusal.value)
    assert refusal.value.stage == "spec" and "toy.toml" in refusal.value.subject
    for fragment in fragments:
        assert fragment in message, message
    assert refusal.value.allowed and refusal.value.next


@pytest.mark.parametrize("base", [TOY, DIGITS, PLANES, PARTS], ids=["toy", "digits", "planes", "parts"])
def test_the_texts_the_bad_files_are_made_from_are_good(base: str, tmp_path: Path) -> None:
    assert load_format(write(tmp_path, base)).name == "TOY"


def test_a_missing_file_names_its_neighbours() -> None:
    with pytest.raises(QgenError, match=r"(?s)no such file \(did you mean 'mxfp4.toml'\?\).*q4_0.toml"):
        load_format(FORMATS / "mxpf4.toml")


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QgenError, match="cannot be read"):
        load_format(tmp_path)
    path = tmp_path / "toy.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(QgenError, match="not UTF-8: byte 0xff at offset 8"):
        load_format(path)
    path.write_text("a = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(QgenError, match="not TOML"):
        load_format(path)


def test_two_formats_with_one_id_are_refused(tmp_path: Path) -> None:
    text = edited(TOY, ("block = 32", "block = 32\nid = 7"))
    write(tmp_path, text)
    write(tmp_path, text.replace("TOY", "TOZ"), "toz.toml")
    with pytest.raises(QgenError, match=r"(?s)toz.toml: id.*7, which toy.toml has too"):
        load_formats(tmp_path / "formats")


def test_a_format_copied_under_another_file_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path, TOY, "copy.toml")
    with pytest.raises(QgenError, match=r"(?s)copy.toml: name.*'TOY'.*toy.toml"):
        load_formats(tmp_path / "formats")


def test_a_folder_without_formats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QgenError, match="no \\*.toml file"):
        load_formats(tmp_path)
    with pytest.raises(QgenError, match="no such folder"):
        load_formats(tmp_path / "none")


def test_the_shipped_formats_are_all_there() -> None:
    formats = load_formats()
    wanted = (
        "Q1_0 Q2_0 PQ2_0 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 PTQ1_0 TQ2_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS "
        "MXFP4 NVFP4 IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M Q4G64_F16S Q5G64_F16S Q6G64_F16S W8G32_F16S"
    )
    assert list(formats) == sorted(wanted.split())
    assert all(format.activation for format in formats.values())


def test_codebooks_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "iq4_nl.toml"
    own.write_text((FORMATS / "iq4_nl.toml").read_text())
    assert load_format("iq4_nl.toml").codebook("iq4_nl") == load_codebook("iq4_nl")


def test_the_example_of_the_guide_is_the_shipped_format(tmp_path: Path) -> None:
    guide = (data_dir("specs") / "README.md").read_text()
    example = guide.split("```toml\n")[1].split("```")[0]
    loaded = load_format(write(tmp_path, example, "q4_0.toml"))
    assert loaded == load_formats()["Q4_0"]


@pytest.mark.parametrize("word", [*keys.FORMAT, *keys.FIELD, *keys.SEGMENT, *keys.PADDING, *TYPES])
def test_the_guide_speaks_of_every_key_and_type(word: str) -> None:
    assert re.search(rf"\b{word}\b", (data_dir("specs") / "README.md").read_text())


def test_terms_are_the_value_multiplied_out() -> None:
    formats = load_formats()
    assert formats["Q4_K"].terms == (Term(1.0, ("d", "sc", "q")), Term(-1.0, ("dmin", "mn")))
    assert formats["IQ2_XXS"].terms == (Term(0.125, ("d", "q", "sg")), Term(0.25, ("d", "sc", "q", "sg")))
    assert expand(parse("-(a - 2*b)*c - -d")) == (Term(-1.0, ("a", "c")), Term(2.0, ("b", "c")), Term(1.0, ("d",)))
    assert expand(parse("a - b - c")) == (Term(1.0, ("a",)), Term(-1.0, ("b",)), Term(-1.0, ("c",)))


@pytest.mark.parametrize("text", ["", "a b", "a*", "(", ")", "a**b", "1e5", "a+*b", "2a", "9" * 60, "-" * 200 + "a"])
def test_what_is_no_expression_says_so(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text)


def test_records_are_frozen() -> None:
    format = load_formats()["Q4_0"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        format.block = 64  # type: ignore[misc]
    assert hash(format) == hash(load_formats()["Q4_0"])
    with pytest.raises(KeyError, match="no field 'x'"):
        format.field("x")


def test_activations() -> None:
    grouped = load_activation("q8_g32")
    assert (grouped.kind, grouped.group, grouped.bits, grouped.scale) == ("integer", 32, 8, "f32")
    assert grouped.rounding == "nearest_even" and load_activation("q8_g256").group == 256
    plain = load_activation("bf16")
    assert (plain.kind, plain.group, plain.bits, plain.type) == ("float", None, 16, "bf16")
    with pytest.raises(QgenError, match=r"(?s)did you mean 'q8_g32'.*bf16, f16, q8_g128, q8_g256, q8_g32, q8_g64"):
        load_activation("q8_g23")


CODEBOOK = 'name = "own"\ndoc = "mine"\ntype = "int8"\n'
BAD_CODEBOOKS = {
    "values = [1, 2, 3]": "3 entries",
    "values = [1, 200]": "200",
    "values = [1, 2.5]": "2.5",
    "values = [1, true]": "a list of numbers",
    "lanes = 4": "levels is missing",
    'values = [1, 2]\nvectors = "00"': "`values` only",
    'lanes = 2\nlevels = [1, 3]\nvectors = "00 12"': "word 1 is '12'",
    'lanes = 2\nlevels = [1, 3]\nvectors = "00 011"': "word 1 is '011'",
    'lanes = 2\nlevels = [1]\nvectors = "00 00"': "1 levels",
    "value = [1, 2]": "did you mean 'values'",
}


@pytest.mark.parametrize("text", BAD_CODEBOOKS)
def test_bad_codebooks_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "codebooks").mkdir()
    (tmp_path / "codebooks" / "own.toml").write_text(CODEBOOK + text)
    with pytest.raises(QgenError) as refusal:
        load_codebook("own", beside=tmp_path / "formats" / "toy.toml")
    assert BAD_CODEBOOKS[text] in str(refusal.value) and "own.toml" in refusal.value.subject


def test_bad_activations_are_refused(tmp_path: Path) -> None:
    (tmp_path / "activations").mkdir()
    path = tmp_path / "activations" / "own.toml"
    head = 'name = "own"\ndoc = "mine"\nrounding = "nearest_even"\n'
    for text, fragment in {
        'kind = "integer"\ntype = "int8"': "group is missing",
        'kind = "integer"\ntype = "f16"\ngroup = 32\nscale = "f32"': "int8",
        'kind = "float"\ntype = "bf16"\ngroup = 32': "only integer activations",
        'kind = "float"\ntype = "int8"': "'int8'",
        'kind = "flat"\ntype = "bf16"': "did you mean 'float'",
    }.items():
        path.write_text(head + text)
        with pytest.raises(QgenError) as refusal:
            load_activation("own", beside=tmp_path / "formats" / "toy.toml")
        assert fragment in str(refusal.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_schema_takes_every_shipped_format(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(tomllib.loads(path.read_text()))


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for case in (
        "unknown key",
        "unknown top key",
        "missing key",
        "wrong type",
        "bool is no integer",
        "below the minimum",
        "unsupported type",
        "shape without stride",
        "no address",
        "no encoding",
        "unknown encoding",
        "segments without base",
        "unknown key of a part",
        "at beside parts",
        "k_pad without planes",
        "padding without width",
        "field is no table",
        "bad field name",
    ):
        base, changes, _ = REFUSED[case]
        assert not validator.is_valid(tomllib.loads(edited(base, *changes))), case


JUNK: list[Any] = [
    0,
    -1,
    7,
    2**40,
    0.5,
    float("inf"),
    float("nan"),
    "",
    "q",
    "d*",
    True,
    [],
    {},
    [1, [2]],
    [{}],
    {"q": 1},
]


@pytest.mark.parametrize("seed", range(4))
def test_junk_anywhere_never_ends_in_a_traceback(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    refused = 0
    for _ in range(150):
        path = rng.choice(SHIPPED)
        data = copy.deepcopy(tomllib.loads(path.read_text()))
        place = rng.choice(places(data))
        holder = at(data, place[:-1])
        if rng.random() < 0.2:
            del holder[place[-1]]
        else:
            holder[place[-1]] = rng.choice(JUNK)
        try:
            load_format(write(tmp_path, dump_file(data), path.name))
        except QgenError:
            refused += 1
    assert refused > 75


def test_a_file_cut_anywhere_never_ends_in_a_traceback(tmp_path: Path) -> None:
    text = (FORMATS / "q5_k.toml").read_text()
    for length in range(0, len(text.rstrip()), 7):
        with pytest.raises(QgenError):
            load_format(write(tmp_path, text[:length], "q5_k.toml"))
