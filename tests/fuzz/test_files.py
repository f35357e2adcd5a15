"""Damaged files of ncnn and PNNX: refused in words, or read, compiled and run; never a crash."""

from __future__ import annotations

import resource
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz import cage
from tests.fuzz.files import BYTES, LINES, REFUSED, bad
from tests.fuzz.seeds import chunks
from tinsmith.errors import ImportFailed, TinsmithError

ALONE = 800
MOST_REFUSED = 0.95  # of the files of a chunk: most words of a line matter


@pytest.mark.parametrize("part", chunks(ALONE, 400), ids=str)
def test_damaged_files(part: range) -> None:
    found = cage.run("tests.fuzz.files", part)
    assert not {seed: verdict for seed, verdict in found.items() if bad(verdict)}
    said = Counter(verdict.split("|")[1] for verdict in found.values())
    assert len(part) < 400 or set(said) == {*LINES, *BYTES}
    refused = sum(REFUSED in verdict for verdict in found.values())
    assert refused <= MOST_REFUSED * len(part)


def test_a_reflection_of_giant_size_is_refused_before_memory_is_taken() -> None:
    pad = "nn.ReflectionPad2d p 1 1 x y padding=(1,2,3,2147483647)"
    text = HEAD.format(pad).replace("(2,3)f32", "(1,3,6,7)f32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TinsmithError):
        ts.compile(text.encode(), cache=False)(np.ones((1, 3, 6, 7), np.float32))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kilobytes


HEAD = "7767517\n3 2\npnnx.Input i 0 1 x #x=(2,3)f32\n{}\npnnx.Output o 1 0 y\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("pnnx.Attribute a 0 1 y @data=(99999999999,99999999999)f32", "TINSMITH_BUDGET"),
        ("torch.full f 0 1 y size=(999999999,999999999) fill_value=1", ""),
        ("Tensor.repeat f 1 1 x y sizes=(999999999,999999999)", ""),
        ("nn.AdaptiveAvgPool1d f 1 1 x y output_size=(99999999)", "nodes"),
        ("torch.chunk f 1 1 x y chunks=-3 dim=1", "into how many parts"),
        ("torch.split f 1 1 x y split_size_or_sections=-1 dim=1", "into how many parts"),
        ("torch.tensor_split f 1 1 x y sections=99999999999 dim=1", ""),
        ("nn.Linear f 1 1 x y @weight=(4,?)f32", "is not known"),
        ("pnnx.Expression f 1 1 x y expr=" + "[" * 10000, "too few values"),
        ("pnnx.Expression f 1 1 x y expr=" + "add(@0," * 10000, "too few values"),
        ("pnnx.Expression f 1 1 x y expr=" + "mul(999999999999999999," * 2000 + "@0", ""),
    ],
)
def test_giants_are_refused_or_left_to_the_run(line: str, told: str) -> None:
    try:
        ts.load(HEAD.format(line).encode(), random_weights=0)
    except TinsmithError as error:
        assert told in str(error)
    else:
        assert not told


def test_a_zip_that_would_unpack_to_much_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "n.param").write_text(HEAD.format("nn.Linear f 1 1 x y @weight=(4,3)f32"))
    with zipfile.ZipFile(tmp_path / "n.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("f.weight", bytes(200_000_000))
    with pytest.raises(ImportFailed, match="is compressed"):
        ts.load(tmp_path / "n.param")
