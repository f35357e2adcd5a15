"""The table of operators that are read, and how they run: docs/operators.md.

    python -m tests.frontends.support docs/operators.md

writes it from the importers, the schemas of ONNX, and plans of its node cases and of the samples of
this folder. Another format adds a function that gives its sections to FORMATS.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from tests.frontends.conformance import cases, reason
from tests.frontends.refusals import refusals
from tests.frontends.samples import samples
from tinsmith.codegen.target import level
from tinsmith.errors import TinsmithError
from tinsmith.formats.onnx import DTYPES, OnnxModel
from tinsmith.frontends import load
from tinsmith.frontends.onnx.call import IMPORTERS
from tinsmith.frontends.onnx.functions import schema_of
from tinsmith.graph import dtype_of
from tinsmith.passes import COURSE, run_passes
from tinsmith.plan.planner import make_plan

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "i8",
    "uint8": "u8", "int32": "i32", "int64": "i64", "bool": "bool", "object": "text",
}  # fmt: skip
"""The element types that are tried, in the order in which they are listed; others, which only cases
of ONNX have, come after them."""

RETYPED = 3
"""So many cases of an operator are tried with other element types as well."""


class Row(NamedTuple):
    """One operator. Element types, by their short names: all cases run in generated code (moving no
    data included), some do, none does; and what is to be said besides."""

    name: str
    versions: str
    native: str
    partly: str
    numpy: str
    notes: str


class Section(NamedTuple):
    title: str
    intro: str
    rows: list[Row]


# ---- how a model runs


def runs(proto: Any) -> str:
    """ "native", "both", "numpy", or "refused"; with fixed shapes, on a common machine (AVX2)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = load(proto)
            for stage in COURSE:
                run_passes(graph, stage, "cpu")
            kinds = {s.kind for s in make_plan(graph, level("avx2")).plan.steps} - {"view"}
    except TinsmithError:
        return "refused"
    return {"native": "native", "reference": "numpy"}.get(
        "".join(kinds), "both" if kinds else "native"
    )


def fixed(proto: Any, feeds: dict[str, Any]) -> Any:
    """The model with all inputs but the first known, as they are where a model holds them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for info in list(copy.graph.input)[1:]:
        array = feeds.get(info.name)
        if isinstance(array, np.ndarray):
            copy.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
            copy.graph.input.remove(info)
    return copy


def retyped(proto: Any, feeds: dict[str, Any], dtype: str) -> tuple[Any, dict[str, Any]] | None:
    """The model of one node with another element type for its first input and what must be alike;
    None where the schema has no such type."""
    node = proto.graph.node[0]
    schema = schema_of(node.op_type, proto.opset_import[0].version, node.domain)
    if schema is None or not schema.inputs:
        return None
    kind = schema.inputs[0].type_str
    allowed = next((t.allowed_type_strs for t in schema.type_constraints
                    if t.type_param_str == kind), [kind])  # fmt: skip
    names = {"float32": "float", "float64": "double", "object": "string"}
    if f"tensor({names.get(dtype, dtype)})" not in allowed:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    code = next(k for k, v in DTYPES.items() if v == dtype)
    alike = {n for i, n in enumerate(node.input) if _kind_at(schema, i) == kind}
    feeds = {n: _as(a, dtype) if n in alike else a for n, a in feeds.items()}
    for info in copy.graph.input:
        if info.name in alike and info.type.HasField("tensor_type"):
            info.type.tensor_type.elem_type = code
    for info in copy.graph.output:
        info.ClearField("type")
    return copy, feeds


def _kind_at(schema: Any, index: int) -> str:
    """The type variable of an input; the last formal input may be variadic."""
    return schema.inputs[min(index, len(schema.inputs) - 1)].type_str


def _as(array: Any, dtype: str) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    if dtype == "object" or array.dtype.kind in "OUS":
        return np.full(array.shape, "0" if dtype == "object" else 0, dtype_of(dtype))
    with np.errstate(all="ignore"):
        return array.astype(dtype_of(dtype))


# ---- what is tried


@cache
def tried() -> dict[str, list[tuple[Any, dict[str, Any]]]]:
    """Operator, with its domain -> models of that one node, with their inputs."""
    found: dict[str, list[Any]] = defaultdict(list)
    for case in cases():
        if len(case.model.graph.node) == 1:
            node = case.model.graph.node[0]
            names = [v.name for v in case.model.graph.input]
            arrays = [_array(a) for a in case.data_sets[0][0]]
            found[_name(node)].append((case.model, dict(zip(names, arrays, strict=False))))
    for name, models in samples().items():
        found[name] += models
    return found


def _array(data: Any) -> Any:
    return OnnxModel(None).tensor(data) if hasattr(data, "data_type") else data


def _tries(models: list[Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(element type, model, inputs): each model as it is, and a few with other element types."""
    for i, (proto, feeds) in enumerate(models):
        first = _first(feeds)
        yield first, proto, feeds
        for dtype in SHORT if i < RETYPED else ():
            other = retyped(proto, feeds, dtype) if dtype != first else None
            if other is not None:
                yield dtype, *other


def _first(feeds: dict[str, Any]) -> str:
    """The element type of the first tensor."""
    name = next((a.dtype.name for a in feeds.values() if isinstance(a, np.ndarray)), "-")
    return "object" if name.startswith("str") else name


# ---- ONNX


def row(name: str) -> Row:
    """What is known of an ONNX operator."""
    domain, _, op = name.rpartition(".")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    computed = False
    for dtype, proto, feeds in _tries(tried().get(name, [])):
        known = runs(fixed(proto, feeds))
        counts[dtype][known] += 1
        computed |= known == "native" and runs(proto) in ("numpy", "both")
    lists: dict[str, list[str]] = {"native": [], "partly": [], "numpy": []}
    for dtype in [*SHORT, *sorted(counts.keys() - SHORT.keys())]:
        kinds = counts[dtype].keys() - {"refused"}
        if kinds:
            how = "native" if kinds == {"native"} else "numpy" if kinds == {"numpy"} else "partly"
            lists[how].append(SHORT.get(dtype, dtype))
    notes = ["numpy where inputs but the first are computed"] if computed else []
    if name not in IMPORTERS:
        notes.append("by the operators that define it")
    notes += [f"refused: {why}" for why in refusals(name)]
    notes += sorted(_excluded().get(name, ()))
    columns = (" ".join(lists[k]) for k in ("native", "partly", "numpy"))
    return Row(op, _versions(domain, op), *columns, "; ".join(notes))


@cache
def _excluded() -> dict[str, set[str]]:
    """Operator -> why cases of it alone are excluded from the conformance run."""
    found: dict[str, set[str]] = defaultdict(set)
    for case in cases():
        if (why := reason(case.name)) and len(case.model.graph.node) == 1:
            found[_name(case.model.graph.node[0])].add(why)
    return found


def _name(node: Any) -> str:
    return f"{node.domain}.{node.op_type}".removeprefix(".")


def _versions(domain: str, op: str) -> str:
    return ", ".join(map(str, _history().get((domain, op), [1])))


@cache
def _history() -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        found[schema.domain, schema.name].append(schema.since_version)
    return {k: sorted(v) for k, v in found.items()}


DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft")


def names(domain: str) -> tuple[list[str], list[str]]:
    """The operators of a domain that are read, by importers or by what defines them, and those
    that are not."""
    prefix = f"{domain}." if domain else ""
    read = {n for n in IMPORTERS if n.rpartition(".")[0] == domain}
    rest = {prefix + op for d, op in _history() if d == domain} - read
    defined = {n for n in rest if _is_defined(domain, n.removeprefix(prefix))}
    return sorted(read | defined), sorted(rest - defined)


def _is_defined(domain: str, op: str) -> bool:
    schema = schema_of(op, max(_history()[domain, op]), domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def onnx_sections(chosen: Callable[[str], bool]) -> Iterable[Section]:
    for domain in DOMAINS:
        read, rest = names(domain)
        missing = ", ".join(n.rpartition(".")[2] for n in rest)
        intro = f"{len(read)} operators." + (f" Not read: {missing}." if rest else "")
        yield Section(f"ONNX: {domain or 'ai.onnx'}", intro, [row(n) for n in read if chosen(n)])


# ---- the page

FORMATS: tuple[Callable[[Callable[[str], bool]], Iterable[Section]], ...] = (onnx_sections,)
"""For each format, what gives the sections with the rows of the operators that are chosen."""

INTRO = """# Operators

What is read of each format, and how it runs. Written by `python -m tests.frontends.support
docs/operators.md` from the importers and from plans of the node cases of ONNX {onnx} and of the
project's samples, with fixed shapes, the first input free and the others known; a test holds the
page to that.

- *versions*: those that ONNX has of the operator; an importer is told which one a model means.
- *generated code*: element types of the first input with which all cases run in machine code (or
  move no data); *in part*: some cases, or some of their steps, do; *numpy*: all run by the
  operator's reference. In short:
  {types}; - where there is no tensor.
- *notes*: ... stands for what depends on the model. A model of which anything is refused is
  declined as a whole, with the names of those nodes (`ImportFailed`).

`tinsmith explain MODEL` tells how each node of a model runs; `tinsmith ops` lists the engine's own
operators, to which these are translated.
"""

COLUMNS = ("operator", "versions", "generated code", "in part", "numpy", "notes")


def line(row: Row) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def page(chosen: Callable[[str], bool] = lambda _: True) -> str:
    """The whole page, or one with the rows of the operators that are chosen."""
    types = ", ".join(f"{v} {k}" for k, v in SHORT.items() if v != k and k != "object")
    text = [INTRO.format(types=types, onnx=onnx.__version__)]
    for section in (s for sections in FORMATS for s in sections(chosen)):
        head = [f"## {section.title}", "", section.intro, "", f"| {' | '.join(COLUMNS)} |"]
        text.append("\n".join([*head, "|---" * len(COLUMNS) + "|", *map(line, section.rows), ""]))
    return "\n".join(text)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
