"""`tinsmith optimize`: write a smaller model that computes the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from tinsmith.cli import _show
from tinsmith.cli._facts import changes_of, facts_of
from tinsmith.cli._files import Writing, layers_in, print_files, writing_options
from tinsmith.cli._sizes import sizes
from tinsmith.graph import Graph
from tinsmith.passes import Report


@click.command(short_help="Write a smaller model that computes the same.")
@writing_options
@click.option("--passes", help="Choose passes: '-merge-common'. See `tinsmith passes`.")
@_show.json_option
def command(writing: Writing, passes: str | None, json_: bool) -> None:
    """Write MODEL to OUT after the passes that are the same for every machine, and those of the
    stage "files"; and say what changed. The ending of OUT says the format: .onnx, .tin, .param
    (ncnn), .pnnx.param.

    Constants are folded, norms, factors and terms go into weights, activations into the layers
    before them where the format has that, what does nothing is gone. No pass changes what comes
    out, or the outputs; where one does not apply, `tinsmith explain` says why.

    \b
    Examples:
      tinsmith optimize model.param smaller.param --verify
      tinsmith optimize model.onnx smaller.onnx --passes=-dense-after-pool
      tinsmith optimize model.onnx model.param --weights fp16 --outputs features
    """
    from tinsmith.compiler.write import optimized

    with _show.working(f"optimizing {writing.model}"):
        graph, layers = writing.load(), layers_in(writing.model)
        smaller, reports = optimized(graph, passes, writing.writer)
        writing.write(smaller)
    changed = Changed(graph, smaller, reports, writing.dims)
    changed.add_layers(layers, layers_in(writing.out))
    writing.finish(graph, changed.row(), partial(print_changes, changed), json_)


class Changed:
    """Counts of a graph before and after the passes, and the changes of each pass."""

    def __init__(
        self, before: Graph, after: Graph, reports: list[Report], dims: tuple[str, ...] = ()
    ) -> None:
        self.chosen = sizes(dims, {v.name: v.type for v in before.inputs})
        self.before, self.after = self.facts(before), self.facts(after)
        self.passes = changes_of(reports)

    def add_layers(self, before: int | None, after: int | None) -> None:
        """Add the numbers of layers in the files; None for a file that is no .param file."""
        self.before["layers"], self.after["layers"] = before, after

    def row(self) -> dict[str, Any]:
        """The entries of --json: before, after, changes."""
        return {"before": self.before, "after": self.after, "changes": self.passes}

    def facts(self, graph: Graph) -> dict[str, Any]:
        """The counts of a graph. `memory`: the peak of activations, in bytes, in an engine that
        frees each after its last reader."""
        from tinsmith.plan.alive import allocate_and_free, peak_of

        found = facts_of(graph, self.chosen)
        moments = allocate_and_free(found.graph)
        return {
            "nodes": found.nodes,
            "parameters": found.parameters,
            "parameter_bytes": found.parameter_bytes,
            "flops": found.total_flops,
            "memory": peak_of(moments),
        }


def print_changes(changed: Changed, files: dict[str, int]) -> None:
    """Print what changed, and the written files with their bytes."""
    shown = {"layers": str, "nodes": str, "parameters": _show.count, "parameter_bytes": _show.size,
             "flops": _show.count, "memory": _show.size}  # fmt: skip
    titles = {"layers": "layers of the file", "parameter_bytes": "bytes of parameters",
              "flops": "operations a run", "memory": "activations alive at once"}  # fmt: skip
    rows = [
        (titles.get(n, n), *("-" if x is None else say(x) for x in pair))
        for n, say in shown.items()
        if (pair := (changed.before[n], changed.after[n])) != (None, None)
    ]
    _show.table("", ["", "before", "after"], rows)
    click.echo(f"changed: {', '.join(f'{n} {k}' for n, k in changed.passes.items()) or 'nothing'}")
    print_files(files)
