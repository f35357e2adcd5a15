"""Damaged files of ncnn and PNNX, by the kind of damage: refused in words, or read and compiled.

    python -m tests.fuzz.files 1000 3000       seeds 1,000 to 2,999: a table of what came of them,
                                               and whatever is no refusal in words
    python -m tests.fuzz.files --show 1234     the files of one seed, and what comes of them

ncnn's files are text or binary, given as a pair, in a zip, beside each other, or without weights;
PNNX's lie beside each other, or have no weights. Every mutant has one or two damages of one kind,
and one of four that are read is compiled and run.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz import cage
from tests.ncnn import rewrites
from tests.ncnn.cases import lines, model_of
from tinsmith.errors import TinsmithError
from tinsmith.formats.ncnn.param import Layer, param_bytes, read_param
from tinsmith.formats.ncnn.weights import read_weights

FOLDER = Path(__file__).parent.parent / "data" / "pnnx"
BUDGET = "nodes=20000,constants=64M,array=64M"
MEGABYTES = 512
PART = 500
COMPILED = 4
"""One of so many mutants that are read is compiled and run."""
LARGEST = 1 << 20
"""Elements of the inputs with which one is run."""
REFUSED, WRONG = "refused", "WRONG"

NEGATIVE = ("-1", "-2", "-7", "-233", "-99999999", "-2147483648", "-9" + "9" * 20)
GIANT = ("99999999", "2147483647", "1000000", "65536", "4294967296", "9" * 18, "9" * 40, "1e30")
WORDS = (
    "0", "-233", "", "()", "nan", "1e400", "None", "?", "@0", "$input=1", "#1=(1,2)f32",
    "@weight=(9,9)f64", "expr=size(@0)", "dim=7", "7=2", "-23300=3,1,2", "ReLU", "nn.ReLU",
    '9="0w"',
)  # fmt: skip
TYPES = ("ReLU", "Convolution", "Concat", "Input", "nn.Conv2d", "pnnx.Output", "None", "Split")

Rng = np.random.Generator
Lines = list[list[str]]


class Files:
    """A model's files. `lines` are the words of the .param file's lines, of which the first two
    are the magic number and the counts."""

    def __init__(self, form: str, text: str, weights: bytes, rng: Rng) -> None:
        self.form, self.weights, self.rng = form, weights, rng
        self.lines: Lines = [line.split(" ") for line in text.splitlines() if line.strip()]
        self.lines = [[w for w in line if w] for line in self.lines]
        self.tags: list[int] = []
        self.param, self.whole = b"", b""
        ways = ("beside", "none") if form == "pnnx" else ("pair", "pair", "zip", "beside", "none")
        self.way = one(rng, ways)

    def seal(self) -> None:
        """Make the bytes of the .param file; as numbers where it is asked for, and can be."""
        self.param = "\n".join(" ".join(line) for line in self.lines).encode() + b"\n"
        if self.form == "binary":
            try:
                self.param = param_bytes(read_param(memoryview(self.param), "net"))
            except (TinsmithError, OverflowError):
                self.form = "text"

    def pack(self) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", one(self.rng, (0, 0, 8))) as file:
            file.writestr("net.param" + ".bin" * (self.form == "binary"), self.param)
            file.writestr("net.bin", self.weights)
        self.whole = packed.getvalue()

    def operators(self) -> Lines:
        return [line for line in self.lines[2:] if len(line) > 4] or self.lines[2:] or self.lines


def one(rng: Rng, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def count(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 4 else 0


# ---- damages of lines, before the .param file is made


def reordered(files: Files) -> None:
    """Lines in another order, or words of one line."""
    rng, rows = files.rng, files.lines
    how = int(rng.integers(4))
    i, j = (int(rng.integers(min(2, len(rows) - 1), len(rows))) for _ in range(2))
    if how == 0:
        rows[i], rows[j] = rows[j], rows[i]
    elif how == 1:
        rows[2:] = [rows[2:][k] for k in rng.permutation(len(rows) - 2)]
    elif how == 2:
        rows.insert(j, rows.pop(i))
    else:
        row = rows[i]
        a, b = (int(rng.integers(len(row))) for _ in range(2))
        row[a], row[b] = row[b], row[a]


def operands(row: list[str]) -> tuple[list[str], list[str]]:
    """What a line reads, and what it makes."""
    ins, outs = map(count, (*row, "", "", "", "")[2:4])
    return row[4 : 4 + ins], row[4 + ins : 4 + ins + outs]


def cyclic(files: Files) -> None:
    """A layer reads what it makes, or what is computed from that."""
    rows = [row for row in files.operators() if all(operands(row))]
    if not rows:
        return missing(files)
    row = one(files.rng, rows)
    after, size = {*operands(row)[1]}, 0
    while size < len(after):
        size = len(after)
        after.update(v for r in rows if after & {*operands(r)[0]} for v in operands(r)[1])
    at, new = 4 + int(files.rng.integers(len(operands(row)[0]))), one(files.rng, sorted(after))
    old, row[at] = row[at], new
    row[:] = [w[: -len(old)] + new if w[0] == "$" and w.endswith(f"={old}") else w for w in row]
    return None


def missing(files: Files) -> None:
    """A layer reads what nobody makes: under another name, or since the layer is gone."""
    rows = files.operators()
    row = one(files.rng, rows)
    if len(row) > 4 and count(row[2]) and files.rng.integers(2):
        old = row[4]
        row[:] = [w.replace(old, "nobody") if w == old or "$" in w else w for w in row]
    else:
        files.lines = [line for line in files.lines if line is not row]
        if len(files.lines) > 1 and files.lines[1]:
            files.lines[1][0] = str(len(files.lines) - 2)


def words(files: Files) -> None:
    """Another word, a part of one, one more, one less, or a line twice."""
    rng, rows = files.rng, files.lines
    row = rows[int(rng.integers(min(2, len(rows) - 1), len(rows)))]
    at, how = int(rng.integers(len(row))), int(rng.integers(7))
    key, equals, _ = row[at].partition("=")
    if how == 0:
        row[at] = one(rng, (*WORDS, *NEGATIVE, *GIANT))
    elif how == 1:
        row[at] = row[at][: int(rng.integers(len(row[at]) + 1))]
    elif how == 2:
        row.append(one(rng, WORDS))
    elif how == 3 and len(row) > 1:
        del row[at]
    elif how == 4:
        row[at] = one(rng, row)
    elif how == 5 and equals:
        row[at] = f"{key}={one(rng, (*WORDS, *NEGATIVE, *GIANT))}"
    else:
        rows.append([*row])


def numbers(files: Files, made: tuple[str, ...], counts: bool) -> None:
    """A number of a line, or with `counts` one that counts, is another."""
    rng = files.rng
    if counts and rng.integers(3):
        row = files.lines[1] if not rng.integers(3) else one(rng, files.operators())
        at = int(rng.integers(2)) + (2 if row is not files.lines[1] else 0)
        if at < len(row):
            row[at] = one(rng, made)
            return
    row = one(rng, files.operators())
    spots = [i for i, w in enumerate(row) if "=" in w and any(c.isdigit() for c in w)]
    if not spots:
        row.append(f"{int(rng.integers(20))}={one(rng, made)}")
        return
    at = one(rng, spots)
    key, _, value = row[at].partition("=")
    parts = value.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    places = [i for i, part in enumerate(parts) if part.lstrip("-")[:1].isdigit()]
    if places:
        parts[one(rng, places)] = one(rng, made)
    row[at] = f"{key}={''.join(parts)}"


def negative_counts(files: Files) -> None:
    numbers(files, NEGATIVE, True)


def giant_dims(files: Files) -> None:
    numbers(files, GIANT, False)


def wrong_types(files: Files) -> None:
    """The magic number, or the type of a layer, is another."""
    row = one(files.rng, [files.lines[0], *files.operators()])
    row[0] = one(files.rng, (*TYPES, "7767518", "0", row[0].lower(), row[0][:-1]))


# ---- damages of bytes, after that


def part_of(files: Files) -> str:
    if files.way == "zip":
        return "whole"
    return "weights" if files.weights and not files.rng.integers(3) else "param"


def truncated(files: Files) -> None:
    name = "whole" if files.way == "zip" else "param"
    data = getattr(files, name)
    setattr(files, name, data[: int(files.rng.integers(max(len(data), 1)))])


def flipped(files: Files) -> None:
    """Bits, bytes, or eight bytes are others."""
    rng, name = files.rng, part_of(files)
    data = bytearray(getattr(files, name))
    at, how = int(rng.integers(max(len(data), 1))), int(rng.integers(4))
    if how == 0 and data:
        data[at] ^= 1 << int(rng.integers(8))
    elif how == 1 and data:
        data[at] = int(rng.integers(256))
    elif how == 2:
        data[at : at + 8] = rng.bytes(8)
    else:
        end = max(len(data) - min(at, 60) - 22, 0)
        data[end : end + 8] = rng.bytes(8)
    setattr(files, name, bytes(data))


def another_word(files: Files) -> None:
    """A 32-bit word of a binary .param file is negative, or giant."""
    data = np.frombuffer(files.param[: len(files.param) // 4 * 4], "<i4").copy()
    extremes = (-1, -2, -233, -23300, -23301, -23400, -(1 << 31), (1 << 31) - 1, 99999999, 65536)
    if data.size > 1:
        data[1 + int(files.rng.integers(data.size - 1))] = one(files.rng, extremes)
    files.param = data.tobytes()


def wrong_tags(files: Files) -> None:
    """The tag before weights, or the signature of an entry, is another."""
    data = bytearray(files.whole if files.way == "zip" else files.weights)
    spots = [i for i in range(len(data) - 4) if data[i : i + 2] == b"PK"]
    spots = spots or [at for at in files.tags if at + 4 <= len(data)]
    if not spots:
        return wrong_types_late(files)
    at, tags = one(files.rng, spots), (0x01306B47, 0x000D4B38, 0x0002C056, 1, 0xFFFFFFFF)
    new = one(files.rng, tags).to_bytes(4, "little")
    data[at : at + 4] = new if files.rng.integers(2) else files.rng.bytes(4)
    setattr(files, "whole" if files.way == "zip" else "weights", bytes(data))
    return None


def wrong_types_late(files: Files) -> None:
    files.param = files.rng.bytes(4) + files.param[4:]


def bin_short(files: Files) -> None:
    files.weights = files.weights[: int(files.rng.integers(max(len(files.weights), 1)))]


def bin_long(files: Files) -> None:
    at = one(files.rng, (0, len(files.weights) // 8 * 4, len(files.weights)))
    more = files.rng.bytes(int(files.rng.integers(1, 200)))
    files.weights = files.weights[:at] + more + files.weights[at:]


LINES: dict[str, Callable[[Files], None]] = {
    "reordered": reordered,
    "cyclic": cyclic,
    "missing producer": missing,
    "negative counts": negative_counts,
    "giant dims": giant_dims,
    "wrong types": wrong_types,
    "words": words,
}
BYTES: dict[str, Callable[[Files], None]] = {
    "wrong tags": wrong_tags,
    "bin too short": bin_short,
    "bin too long": bin_long,
    "truncated": truncated,
    "bytes": flipped,
    "words of numbers": another_word,
}
NEEDS_BIN = ("wrong tags", "bin too short", "bin too long")


# ---- the files that are damaged


@cache
def cases() -> tuple[list[str], list[tuple[str, bytes]], list[Any]]:
    """Layers of ncnn, networks of ncnn, and files of PNNX."""
    plain = [line for line in lines() if line.split()[0] != "Spectrogram"]
    nets = [text for case in rewrites.CASES.values() for text in (case.must, case.guard)]
    return plain, [rewrites.model_of(text) for text in nets], sorted(FOLDER.glob("*.pnnx.param"))


@cache
def layer_files(line: str) -> tuple[str, bytes]:
    return model_of(line)


def tags_of(layers: list[Layer]) -> list[int]:
    """Where the tags of weights are in a .bin file."""
    found, at = [], 0
    for row in layers:
        for slot in row.schema.slots(row.given, row.name):
            array = row.weights[slot.name]
            if slot.tagged and slot.count:
                found.append(at)
                at += 4
            at += -(-array.nbytes // 4) * 4
    return found


def mutant(seed: int) -> tuple[str, Files]:
    """The kind of damage, and the files."""
    rng = np.random.default_rng([seed, 7])
    plain, nets, pnnx = cases()
    form = one(rng, ("text", "text", "binary", "pnnx"))
    kind = one(rng, [k for k in (*LINES, *BYTES) if k != "words of numbers" or form == "binary"])
    if kind in NEEDS_BIN:
        nets = [case for case in nets if case[1]]
        plain = [line for line in plain if layer_files(line)[1]]
    if form == "pnnx":
        path = one(rng, pnnx)
        text, weights = path.read_text(), path.with_suffix(".bin").read_bytes()
    else:
        text, weights = one(rng, nets) if rng.integers(3) == 0 else layer_files(one(rng, plain))
    files = Files(form, text, weights, rng)
    if form != "pnnx":
        layers = read_param(memoryview(text.encode()), "net")
        read_weights(layers, memoryview(weights), "net")
        files.tags = tags_of(layers)
    if kind in NEEDS_BIN and files.way == "none":
        files.way = "beside"
    times = range(one(rng, (1, 1, 2)))
    for _ in times if kind in LINES else ():
        LINES[kind](files)
    files.seal()
    before = kind in ("bin too short", "bin too long", "words of numbers")
    for _ in times if before else ():
        BYTES[kind](files)
    files.pack()
    for _ in times if kind in BYTES and not before else ():
        BYTES[kind](files)
    return kind, files


def source(files: Files, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What is loaded, and the options."""
    seed = {"random_weights": 1} if files.way == "none" else {}
    if files.way == "pair":
        return (files.param, files.weights), seed
    if files.way == "zip":
        return files.whole, seed
    path = folder / ("net.pnnx.param" if files.form == "pnnx" else "net.param")
    path.write_bytes(files.param)
    path.with_suffix(".bin").write_bytes(files.weights)
    return path, seed


# ---- what comes of them


def check(seed: int) -> str:
    """The files, the kind of damage, and what came of it."""
    os.environ["TINSMITH_BUDGET"] = BUDGET
    kind, files = mutant(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with np.errstate(all="ignore"):
            said = outcome(files, Path(folder), not seed % COMPILED)
    return f"{files.form} {files.way}|{kind}|{said}"


def outcome(files: Files, folder: Path, run: bool) -> str:
    import tinsmith as ts

    stage = "reading"
    try:
        given, options = source(files, folder)
        graph = ts.load(given, **options)
        str(graph)
        shapes = [
            tuple(d if isinstance(d, int) else 2 for d in v.shape or ()) for v in graph.inputs
        ]
        if not run or sum(np.prod(s, dtype=float) for s in shapes) > LARGEST:
            return "read"
        stage = "compiling"
        net = ts.compile(graph, cache=False, threads=1, progress=False)
        kinds = [v.type.dtype for v in graph.inputs]
        net.run([np.ones(s, k) for s, k in zip(shapes, kinds, strict=True)])
    except TinsmithError as error:
        if not str(error).strip():
            return f"{WRONG}: {type(error).__name__} without words"
        return f"{REFUSED} {stage}: {type(error).__name__}"
    except Exception as error:
        return f"{WRONG} {stage}: {type(error).__name__}: {str(error)[:300]}"
    return "read, compiled and run"


def bad(verdict: str) -> bool:
    return verdict.startswith((cage.CRASHED, cage.LATE)) or WRONG in verdict


def table(found: Counter[tuple[str, str]]) -> str:
    """Kinds of damage, and how often each outcome came."""
    outcomes = sorted({said for _, said in found})
    rows = [f"| kind | mutants | {' | '.join(outcomes)} |", "|---" * (len(outcomes) + 2) + "|"]
    for kind in [*LINES, *BYTES, "lost"]:
        numbers = [found[kind, said] for said in outcomes]
        rows.append(f"| {kind} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    sums = [sum(n for (_, s), n in found.items() if s == said) for said in outcomes]
    return "\n".join([*rows, f"| all | {sum(sums)} | {' | '.join(map(str, sums))} |"])


def main(start: int, stop: int) -> None:
    found: Counter[tuple[str, str]] = Counter()
    for at in range(start, stop, PART):
        for seed, verdict in cage.run("tests.fuzz.files", range(at, min(at + PART, stop))).items():
            _, kind, said = verdict.split("|", 2) if not bad_process(verdict) else ("", "lost", "")
            if bad(verdict):
                print(f"{seed}\t{verdict}", flush=True)
                said = verdict.split(":")[0] if bad_process(verdict) else WRONG
            found[kind, said] += 1
        print(f"{at + PART - start} of {stop - start}", flush=True)
        if not (at - start) % (20 * PART):
            print(table(found), flush=True)
    print(table(found))


def bad_process(verdict: str) -> bool:
    return verdict.startswith((cage.CRASHED, cage.LATE))


if __name__ == "__main__":
    if sys.argv[1] == "--show":
        kind, files = mutant(int(sys.argv[2]))
        print(kind, files.form, files.way, len(files.weights), "bytes of weights")
        print(files.param.decode("utf-8", "backslashreplace"))
        print(check(int(sys.argv[2])))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
