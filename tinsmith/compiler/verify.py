"""`verify`: compares a compiled model's outputs with the reference, another engine, or a file."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.compiler import engine
from tinsmith.compiler.bisect import Bisection, Culprit
from tinsmith.compiler.compare import Difference, compare, compare_all
from tinsmith.compiler.compile import READING, ModelLike, load
from tinsmith.compiler.compile import compile as compile_model
from tinsmith.compiler.expected import (
    ONNXRUNTIME,
    REFERENCE,
    expected_of,
    is_path,
    parts_of,
    wanted_of,
)
from tinsmith.compiler.fixed import fixed_values, with_fixed
from tinsmith.compiler.hints import hints_of
from tinsmith.compiler.options import check_keywords, keywords_of
from tinsmith.compiler.quanta import rounded
from tinsmith.compiler.verify_sizes import UNFIT, made_for, sizes_for, text
from tinsmith.errors import FEW, InputNameError, InputTypeError, OptionError
from tinsmith.formats.npz import whole
from tinsmith.graph import Array, Graph, Holder, OptionalType, Type
from tinsmith.ops.interpret import run_graph
from tinsmith.records import dataclass
from tinsmith.runtime.net import Net

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Verification:
    """The result of `verify`: true where all outputs agree; `str` gives a report.

    against  the source of the expected outputs, in words
    culprit  the pass or node that makes the results differ; None if none was looked for or found
    note     text for the user, "" if there is none
    """

    model: str
    against: str
    tolerance: float
    outputs: tuple[Difference, ...]
    culprit: Culprit | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        return all(d.ok for d in self.outputs)

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        lines = [f"{self.model} against {self.against}, within {self.tolerance:g} of the greatest"]
        lines += [f"  {'agrees ' if d.ok else 'DIFFERS'} {d}" for d in self.outputs]
        lines += [self.note] if self.note else []
        lines += [str(self.culprit)] if self.culprit is not None else []
        return "\n".join(lines)


def verify(
    model: ModelLike,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    against: str | os.PathLike[str] | Mapping[str, Any] = REFERENCE,
    tolerance: float = TOLERANCE,
    bisect: bool = True,
    save: str | os.PathLike[str] | None = None,
    seed: int = 0,
    **options: Any,
) -> Verification:
    """Run a model in generated code and compare every output with the expected one.

    inputs    by name or in order; those not given are taken from `against` (.npz or mapping), else
              random (free dimensions are then 1; with shapes="free", the reference and no inputs,
              they have several sizes in turn: typical ones, 1, odd ones, both ends of `sizes`)
    against   "reference" (numpy), "onnxruntime", an .npz file of expected outputs by name, a .npy
              or .csv file of the only one, or a mapping of names to arrays or such files;
              "y[0,5]" is a part of the output y
    bisect    on a difference, find the first node that differs, or the pass that changed the result
    tolerance the greatest error that counts as equal, relative to the greatest element of the
              output (of each tensor of a sequence or map). Integers and text must be equal
    save      a folder for files with the node that `bisect` finds and its inputs, to run it again
    options   those of `compile`

    Raises InputError, ImportFailed, MissingPackage, EngineFailed.
    """
    _check_numbers(tolerance, seed)
    check_keywords("verify", options, (*keywords_of(verify), *keywords_of(compile_model)))
    graph = load(model, **{name: options.get(name) for name in READING})
    graph, fixed = with_fixed(graph, fixed_values(options.get("fixed")))
    expected, against_name = expected_of(against)
    held = {n: v for n, v in expected.items() if not is_path(v)}
    name = _name_of(graph)
    if options.get("shapes") == "free" and inputs is None and against_name == REFERENCE:
        return _at_sizes(model, graph, tolerance, bisect, save, seed, options)
    arrays, drawn = arrays_for(graph, inputs, held, seed)
    for input_, a in arrays.items() if inputs is not None else ():
        if (kept := whole(input_, held)) is not None and not compare(input_, a, kept, 1e-6).ok:
            raise InputNameError(
                f"{against_name} holds another {input_!r} than this run is given, so that its "
                "outputs are those of other inputs: leave the inputs out, and its own are taken"
            )
    net = compile_model(model, **options)
    got = dict(zip(net.output_names, net.run(arrays), strict=True))
    quantised, by_engine = bool(rounded(graph)), against_name == ONNXRUNTIME
    exact = _reference(graph, arrays) if against_name == REFERENCE else None
    if exact is not None:
        want = exact
    elif by_engine:
        want = engine.computed(model, {**arrays, **fixed}, list(got), quantised)
        against_name += engine.EXACT_SUMS * quantised
    else:
        want = wanted_of(expected, against_name, got)
    outputs = tuple(compare_all(parts_of(got, want), want, tolerance))
    found = Verification(name, against_name, tolerance, outputs)
    if found.ok or not (bisect or quantised):
        return found
    exact = _reference(graph, arrays) if exact is None else exact
    parts = parts_of(exact, want)
    wrong = [d for d in compare_all(parts, want, tolerance) if not d.ok]
    culprit = None
    if wrong and by_engine:
        culprit = engine.first_unlike(model, graph, {**arrays, **fixed}, tolerance)
    if wrong and (culprit is not None or not (by_engine and quantised)):
        note = _unlike(wrong, parts, want, () if by_engine else drawn)
    else:
        search = _search(net, arrays, tolerance)
        outputs, culprit, note = _cause(search, outputs, got, exact, save, bisect)
    return Verification(name, against_name, tolerance, outputs, culprit, note)


def _cause(
    search: Bisection,
    outputs: tuple[Difference, ...],
    got: Mapping[str, Array],
    want: Mapping[str, Array],
    save: Any,
    bisect: bool,
) -> tuple[tuple[Difference, ...], Culprit | None, str]:
    """Find the cause of differences. `outputs`: how each output in `got` differs from the expected
    one; `want`: the reference's outputs. Return (outputs, culprit, note); if rounding of a
    quantised model allows the differences, all outputs are `ok`."""
    if all(d.ok or not d.note for d in outputs) and (note := search.allowed(got)):
        return tuple(replace(d, ok=True) for d in outputs), None, note
    if not bisect:
        return outputs, None, ""
    culprit = search.find(want, Path(save) if save is not None else None)
    return outputs, culprit, UNSEEN if culprit is None else ""


UNSEEN = "the difference does not show where the program is cut: memory or threads"


def _name_of(graph: Graph) -> str:
    return graph.name or graph.file or "model"


def _at_sizes(
    model: ModelLike,
    graph: Graph,
    tolerance: float,
    bisect: bool,
    save: Any,
    seed: int,
    options: Mapping[str, Any],
) -> Verification:
    """Compare a program for free sizes with the reference, on random inputs of several sizes. The
    cause is searched at the first sizes that differ."""
    net = compile_model(model, **options)
    found: list[Difference] = []
    culprit, notes, failed = None, [], None
    for sizes, shaped in sizes_for(graph, hints_of(options.get("sizes"))):
        arrays, _ = arrays_for(shaped, None, {}, seed)
        try:
            want = _reference(graph, arrays)
            got = dict(zip(net.output_names, net.run(arrays), strict=True))
        except UNFIT as error:  # types allow these sizes, but the run does not
            notes.append(f"not compared at {text(sizes)}: {error}")
            failed = error
            continue
        new = [replace(d, at=text(sizes)) for d in compare_all(got, want, tolerance)]
        if all(d.ok for d in found) and not all(d.ok for d in new):
            search = _search(net, arrays, tolerance)
            new, culprit, note = _cause(search, tuple(new), got, want, save, bisect)
            notes += [note] if note and note not in notes else []
        found += new
    if not found and failed is not None:
        raise failed
    note, name = "; ".join(notes), _name_of(graph)
    return Verification(name, REFERENCE, tolerance, tuple(found), culprit, note)


def were_random(names: Iterable[str]) -> str:
    """Return "x was random" or "x, y were random"; of more than FEW names the first FEW, and how
    many more."""
    listed = list(names)
    shown = ", ".join(listed[:FEW]) + (f" and {len(listed) - FEW} more" if listed[FEW:] else "")
    return f"{shown} {'was' if len(listed) == 1 else 'were'} random"


def _unlike(
    wrong: Sequence[Difference],
    exact: Mapping[str, Any],
    want: Mapping[str, Any],
    drawn: Collection[str],
) -> str:
    """Return a sentence on the probable reason why even the reference's outputs (`exact`) differ
    from the expected ones (`want`); `wrong` has the differences. `drawn`: inputs that were random,
    so that `want` cannot be of them."""
    if drawn:
        return f"{were_random(drawn)}: are the expected outputs those of other inputs?"
    for name in (d.name for d in wrong):
        got, wanted = (getattr(a.get(name), "shape", None) for a in (exact, want))
        if got is not None and wanted is not None and got != wanted:
            shapes = f"{list(got)}, not {list(wanted)}"
            return f"the reference gives {name} as {shapes}: are the outputs those of other inputs?"
    return "the reference differs as well: the importer, or an operator's definition"


def _check_numbers(tolerance: Any, seed: Any) -> None:
    if not isinstance(tolerance, float | int | np.floating) or not 0 <= tolerance < math.inf:
        raise OptionError(f"tolerance must be a number from 0, not {tolerance!r}")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise OptionError(f"seed must be a whole number from 0, not {seed!r}")


def _search(net: Net, arrays: Mapping[str, Array], tolerance: float) -> Bisection:
    model: Any = net._model
    return Bisection(model.compilation, arrays, tolerance, made_for(net.program_for(**arrays)))


# ---- inputs


def arrays_for(
    graph: Graph, inputs: Any, expected: Mapping[str, Any], seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Return (arrays, drawn): a value for every input by name, and the names of those that were
    drawn at random. Others are given in `inputs` (an array, a list in the order of the graph's
    inputs, a dict by name, or None), else in `expected` under the input's name. Optional inputs
    that are not given are None. Raises InputError."""
    names = [v.name for v in graph.inputs]
    if inputs is None:
        inputs = {}
    if isinstance(inputs, np.ndarray):
        inputs = [inputs]
    if not isinstance(inputs, Mapping | list | tuple):
        raise InputTypeError(
            f"inputs must be arrays in a list, or in a dict by name, not {type(inputs).__name__}"
        )
    if len(inputs) > len(names):
        raise InputNameError(
            f"{len(inputs)} arrays are given; {graph.name} takes {', '.join(names) or 'none'}"
        )
    given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
    if unknown := [n for n in given if n not in names]:
        raise InputNameError(
            f"{graph.name} has no input named {unknown[0]!r}; its inputs are {', '.join(names)}"
        )
    random = np.random.default_rng(seed)
    found, drawn = {}, []
    for v in graph.inputs:
        value = given[v.name] if v.name in given else whole(v.name, expected)
        if value is None and not isinstance(v.type, OptionalType):
            drawn.append(v.name)
            value = draw(v.name, v.type, random)
        found[v.name] = value if isinstance(v.type, Holder) else np.asarray(value)
    return found, drawn


def draw(name: str, type: Type, random: np.random.Generator | None) -> Array:
    """Return a random array of a type, or zeros if `random` is None. Free dimensions are 1. uint8
    are 0 to 255, as pixels; other integers 0 to 9, since most are indices. Raises InputTypeError
    for text and unknown ranks."""
    if type.shape is None or type.dtype == object:
        raise InputTypeError(
            f"cannot make up the input {name!r}: it is a {type}; give it an array ({name}=FILE)"
        )
    dims = tuple(d if isinstance(d, int) else 1 for d in type.shape)
    if random is None:
        return np.zeros(dims, type.dtype)
    if type.dtype.kind == "b":
        return random.random(dims) < 0.5
    if type.dtype.kind in "iu":
        return random.integers(0, 256 if type.dtype == np.uint8 else 10, dims).astype(type.dtype)
    return np.asarray(random.standard_normal(dims, np.float32)).astype(type.dtype)


# ---- expected outputs


def _reference(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    results = run_graph(graph, [arrays[v.name] for v in graph.inputs])
    return {v.name: a for v, a in zip(graph.outputs, results, strict=True)}
