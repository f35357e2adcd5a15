"""What the commands that write models share: options, reading and writing, and the comparison of
the written model with the one read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinsmith.cli import _show
from tinsmith.cli._model import DIM, MODEL, READING, Number, as_batch, taken_as
from tinsmith.cli._sizes import sizes
from tinsmith.graph import Graph
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.compiler.compare import Difference
    from tinsmith.writers.registry import Writer

DIFFERS = 3
"""Exit code of a command that has compared outputs, if one differs."""
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1, "int8": 1e-1, "int4": 1.0}
"""Type of weights in the file -> greatest error that counts as equal, relative to the greatest
element of an output. Estimated: rounding to float16 changes every weight by up to 1 / 2048."""


@dataclass(frozen=True)
class Writing:
    """The options of a command that writes a model: the file to read (`model`), the part of its
    graph to keep (`outputs`, `cut`), the file to write (`out`) and the type of `weights` there, how
    to read (`random_weights`, `batch`, `input_shapes`, as in `load`), and for --verify how both are
    compared."""

    model: str
    out: str
    weights: str
    outputs: tuple[str, ...]
    cut: tuple[tuple[str, str], ...]
    random_weights: int | None
    batch: str | None
    input_shapes: dict[str, Any] | None
    verify: bool
    tolerance: float | None
    dims: tuple[str, ...]

    def load(self) -> Graph:
        """Read the graph of `model`, or the part that computes `outputs` and the ends of `cut`,
        pairs (start, end), from the starts; and check that `out` can be written. Raises what
        `tinsmith.load` raises; GraphError, UnknownName for the part; FileNameError if `out` has
        an unknown ending or is a file of `model`; ModelFileError if its folder is not writable."""
        import tinsmith as ts
        from tinsmith.compiler.write import part_of
        from tinsmith.writers.registry import check_out, files_at

        _ = self.writer  # before the model is read
        graph = ts.load(
            self.model, random_weights=self.random_weights, batch=as_batch(self.batch),
            input_shapes=self.input_shapes,
        )  # fmt: skip
        check_out(files_at(Path(self.out)), graph.files)
        return part_of(graph, self.outputs, self.cut)

    @property
    def writer(self) -> Writer:
        """The writer of the format that the name of the written file says. Raises FileNameError."""
        from tinsmith.writers.registry import writer_of

        return writer_of(Path(self.out))

    def write(self, graph: Graph) -> None:
        import tinsmith as ts

        ts.write(graph, self.out, weights=self.weights)

    def compared(self, graph: Graph) -> list[Difference]:
        """With --verify: compare the outputs of the written model with those of `graph`, the model
        that was read, on random inputs. Without: return []."""
        if not self.verify:
            return []
        import tinsmith as ts

        batch = None if self._has_batch() else as_batch(self.batch)
        written = ts.load(self.out, batch=batch)
        most = (
            TOLERANCES[self.weights.partition("/")[0]] if self.tolerance is None else self.tolerance
        )
        return differences(graph, written, self.dims, most)

    def _has_batch(self) -> bool:
        """Whether the written format has an axis for the batch, as all but ncnn's do."""
        return not self.out.endswith((".param", ".param.bin")) or self.out.endswith(".pnnx.param")

    def finish(
        self, graph: Graph, about: dict[str, Any], say: Callable[[dict[str, int]], None],
        json_: bool,
    ) -> None:  # fmt: skip
        """Report on the written file, after comparing it with `graph`, which was read, if --verify
        says so: as JSON, with the entries `about`, or as text, by `say`, which gets path -> bytes
        of the files. Exit with DIFFERS where an output differs."""
        files, found = files_of(self.out), self.compared(graph)
        if json_:
            rows = [
                {"name": d.name, "ok": d.ok, "maximum": d.maximum, "relative": d.relative}
                for d in found
            ]
            head = {"model": self.model, "written": self.out, "bytes": sum(files.values())}
            _show.as_json({**head, **about, "differences": rows})
        else:
            say(files)
            if found:
                click.echo(
                    f"{self.model} and {self.out}, as it is read again, both run by Tinsmith:"
                )
            for d in found:
                click.echo(f"  {'agrees ' if d.ok else 'DIFFERS'} {d}")
        if not all(d.ok for d in found):
            sys.exit(DIFFERS)


def files_of(model: str) -> dict[str, int]:
    """Path -> bytes of the files of a model that exist: `model`, and its weights beside it."""
    from tinsmith.writers.registry import files_at

    return {str(f): f.stat().st_size for f in files_at(Path(model)) if f.is_file()}


def print_files(files: dict[str, int]) -> None:
    for name, nbytes in files.items():
        click.echo(f"{name}: {_show.size(nbytes)}")


def layers_in(model: str) -> int | None:
    """The number of layers of a .param file, ncnn's or PNNX's; None for other formats."""
    from tinsmith.formats.ncnn.param import BINARY_MAGIC, MAGIC

    with open(model, "rb") as file:
        head = file.read(64)
    if head[:4] == BINARY_MAGIC:
        return int.from_bytes(head[4:8], "little")
    magic, count, *_ = [*head.split(), b"", b""]
    return int(count) if magic == str(MAGIC).encode() and count.isdigit() else None


def differences(
    one: Graph, other: Graph, dims: Sequence[str], tolerance: float
) -> list[Difference]:
    """Run two graphs on the same random inputs, of the sizes of --dim, and compare the outputs of
    `other` with those of `one`: by name, or in order if they have other names. Raises NotWritable
    if their numbers of inputs or outputs differ."""
    import numpy as np

    import tinsmith as ts
    from tinsmith.compiler.compare import compare
    from tinsmith.compiler.hints import sized
    from tinsmith.compiler.verify import draw
    from tinsmith.errors import NotWritable

    types = {v.name: v.type for v in one.inputs}
    if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
        raise NotWritable(
            f"what was written has {len(other.inputs)} inputs and {len(other.outputs)} outputs, "
            f"not {len(one.inputs)} and {len(one.outputs)}"
        )
    chosen, rng = sizes(tuple(dims), types), np.random.default_rng(0)
    arrays = [draw(n, sized(t, chosen), rng) for n, t in types.items()]
    with _show.working("running both"):
        want, got = (ts.compile(g, cache=False).run(arrays) for g in (one, other))
    names, theirs = ([v.name for v in g.outputs] for g in (one, other))
    if set(names) == set(theirs):  # ncnn's files know no order of outputs
        got = [got[theirs.index(n)] for n in names]
    return [compare(n, g, w, tolerance) for n, g, w in zip(names, got, want, strict=True)]


def known_weights(_: click.Context, __: click.Parameter, text: str) -> str:
    """Check the value of --weights, and return it. Raises OptionError."""
    from tinsmith.passes.weights import parse

    parse(text)
    return text


OPTIONS = (
    click.argument("model", type=MODEL),
    click.argument("out", type=click.Path(dir_okay=False)),
    click.option(
        "--weights",
        default="fp32",
        show_default=True,
        metavar="[fp32|fp16|bf16|int8|int4]",
        callback=known_weights,
        help="How the file keeps large weights, which count as the fp32 that they stand for; "
        "int4/32: a scale for each 32 weights.",
    ),
    click.option(
        "--outputs",
        multiple=True,
        metavar="NAME",
        help="Write what computes this value, or that of this node, instead of the model's own "
        "outputs; several times for several.",
    ),
    click.option(
        "--cut",
        type=(str, str),
        multiple=True,
        metavar="START END",
        help="Write the part from one value to another: START becomes an input, END an output.",
    ),
    *READING,
    click.option("--verify", is_flag=True, help="Run both, and compare what comes out."),
    click.option(
        "--tolerance",
        type=Number(1e6),
        help="Greatest error of --verify, relative to the greatest element; 0.001, for fp16 0.02, "
        "for bf16 and int8 0.1, for int4 1.",
    ),
    click.option(
        "--dim",
        "dims",
        multiple=True,
        metavar=DIM,
        help="Size of a free dimension for --verify, or a range that it is in the middle of.",
    ),
)


writing_options = taken_as("writing", Writing, OPTIONS)
"""Adds the arguments and options of `Writing`; the command gets one as `writing`."""
