"""Damaged PNNX files: refused in words, or read as a graph; never a crash."""

from __future__ import annotations

import warnings
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz.seeds import chunks
from tinsmith.errors import ImportFailed, TinsmithError

FOLDER = Path(__file__).parent.parent / "data" / "pnnx"
ALONE = 400
MOST_REFUSED = 0.97  # of the files of a chunk: most words of a line matter
HUGE = ("-1", "0", "99999999999", "2147483647", "9" * 30, "1e400", "nan", "?", "()", "", "None")
WORDS = ("@0", "$input=1", "#1=(1,2)f32", "@weight=(9,9)f64", "expr=size(@0)", "dim=7", "nn.ReLU")


@cache
def seeds() -> list[tuple[str, bytes]]:
    paths = sorted(FOLDER.glob("*.pnnx.param"))
    return [(p.read_text(), p.with_suffix(".bin").read_bytes()) for p in paths]


def damaged(text: str, rng: np.random.Generator) -> str:
    """A few changes, each of which keeps most of the file."""
    lines = [line.split(" ") for line in text.splitlines()]
    for _ in range(int(rng.integers(1, 4))):
        line = lines[int(rng.integers(2, len(lines)))]
        word, how = int(rng.integers(len(line))), int(rng.integers(9))
        if how == 0:
            line[word] = HUGE[int(rng.integers(len(HUGE)))]
        elif how == 1:
            line[word] = line[word][: int(rng.integers(len(line[word]) + 1))]
        elif how == 2:
            line.append(WORDS[int(rng.integers(len(WORDS)))])
        elif how == 3:
            del line[word]
        elif how == 4:
            other = int(rng.integers(2, len(lines)))
            lines[other], lines[2] = lines[2], lines[other]
        elif how == 5:
            digits = [i for i, c in enumerate(line[word]) if c.isdigit()]
            if digits:
                at = digits[int(rng.integers(len(digits)))]
                line[word] = line[word][:at] + str(rng.integers(10**6)) + line[word][at + 1 :]
        elif how == 6:
            line[word] = line[int(rng.integers(len(line)))]
        elif how == 7 and "=" in line[word]:
            key = line[word].partition("=")[0]
            line[word] = f"{key}={HUGE[int(rng.integers(len(HUGE)))]}"
        elif how == 8:
            lines.append(line)
    made = "\n".join(" ".join(line) for line in lines)
    if rng.integers(12) == 0:
        made = made[: int(rng.integers(len(made)))]
    return made


def damaged_bin(data: bytes, rng: np.random.Generator) -> bytes:
    made = bytearray(data)
    at, how = int(rng.integers(len(made))), int(rng.integers(4))
    if how == 0:
        del made[at:]
    elif how == 1:
        made[at] ^= 1 << int(rng.integers(8))
    elif how == 2:
        made[-min(at, 60) - 22 :][:8] = rng.bytes(8)
    else:
        made += rng.bytes(30)
    return bytes(made)


def reads(seed: int, folder: Path) -> bool:
    """Whether the damaged files are read as a graph. It is neither compiled nor run."""
    rng = np.random.default_rng(seed)
    text, data = seeds()[seed % len(seeds())]
    path = folder / "damaged.pnnx.param"
    text = damaged(text, rng) if rng.integers(4) else text
    path.write_text(text)
    path.with_suffix(".bin").write_bytes(damaged_bin(data, rng) if rng.integers(3) == 0 else data)
    weights = int(seed) if rng.integers(4) == 0 else None
    batch = "free" if rng.integers(4) == 0 else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            str(ts.load(path, random_weights=weights, batch=batch))
    except TinsmithError as error:
        assert str(error).strip()
        return False
    return True


@pytest.mark.parametrize("part", chunks(ALONE), ids=str)
def test_damaged_files(part: range, tmp_path: Path) -> None:
    read = sum(reads(seed, tmp_path) for seed in part)
    assert len(part) - read <= MOST_REFUSED * len(part)


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
