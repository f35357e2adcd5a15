"""Where drawn nodes lie in their model: at the top, in a function, in a branch, in a body.

Each place adds what it needs to be fed to the sketch, and returns a `Place`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.cores import Sketch, f32
from tests.fuzz.lies import element_type

Say = Callable[[str], Any]
"""What is declared of a name: a ValueInfoProto."""
Parts = tuple[list[Any], list[Any], list[Any]]
"""The nodes at the top, what is declared of their results, and functions."""


@dataclass
class Place:
    outputs: list[str]
    parts: Callable[[Say], Parts]


def inner(m: Sketch, outputs: Sequence[str]) -> list[str]:
    """The values that no graph output is."""
    return [o for node in m.nodes for o in node.output if o not in outputs]


def declared(names: Sequence[str], say: Say) -> list[Any]:
    return [v for v in map(say, names) if v.HasField("type")]


def at_the_top(m: Sketch, outputs: list[str], known: dict[str, Any]) -> Place:
    return Place(outputs, lambda say: (m.nodes, declared(inner(m, outputs), say), []))


def in_a_function(m: Sketch, outputs: list[str], known: dict[str, Any]) -> Place:
    given = [*m.feeds, *(w.name for w in m.weights)]
    results = [f"{o}_f" for o in outputs]
    call = helper.make_node("F", given, results, domain="local")
    opsets = [helper.make_opsetid(d, v) for d, v in {"": 21, "ai.onnx.ml": 3}.items()]

    def parts(say: Say) -> Parts:
        found = helper.make_function("local", "F", given, outputs, m.nodes, opsets)
        names = [*given, *inner(m, outputs), *outputs]
        found.value_info.extend(declared(names, say))
        return [call], [], [found]

    return Place(results, parts)


def body(m: Sketch, outputs: list[str], say: Say, name: str) -> Any:
    """The nodes as a graph without inputs, which reads those of the model."""
    info = declared(inner(m, outputs), say)
    return helper.make_graph(m.nodes, name, [], list(map(say, outputs)), value_info=info)


def numeric(known: dict[str, Any], outputs: list[str]) -> bool:
    found = [known[o] for o in outputs]
    return all(isinstance(a, np.ndarray) and a.dtype != object for a in found)


def in_a_branch(m: Sketch, outputs: list[str], known: dict[str, Any]) -> Place:
    """The other branch is the same, or gives what has another shape."""
    condition = m.feed(np.array(True), np.array(False))
    results = [f"{o}_f" for o in outputs]
    same = m.dice.chance(0.6) or not numeric(known, outputs)
    flipped = m.dice.chance(0.3)
    zeros = [
        helper.make_node("Constant", [], [o], value=_zeros(known[o])) for o in outputs if not same
    ]

    def parts(say: Say) -> Parts:
        yes = body(m, outputs, say, "yes")
        no = body(m, outputs, say, "no") if same else helper.make_graph(
            zeros, "no", [], list(map(say, outputs))
        )  # fmt: skip
        if flipped:
            yes, no = no, yes
        node = helper.make_node("If", [condition], results, then_branch=yes, else_branch=no)
        return [node], [], []

    return Place(results, parts)


def _zeros(like: Any) -> Any:
    shape = (2, *like.shape[1:]) if like.ndim else ()
    return helper.make_tensor("z", element_type(like.dtype), shape, np.zeros(shape).reshape(-1))


def in_a_loop(m: Sketch, outputs: list[str], known: dict[str, Any]) -> Place:
    """What the nodes give is stacked over the iterations, or is the next state."""
    if not numeric(known, outputs):
        return in_a_branch(m, outputs, known)
    iterations = m.feed(np.array(2), np.array(1), np.array(3))
    states = [m.feed(np.zeros_like(known[o])) for o in outputs] if m.dice.chance(0.5) else []
    results = [f"{o}_f" for o in outputs]
    last = helper.make_node("Identity", ["go"], ["on"])

    def parts(say: Say) -> Parts:
        info = helper.make_tensor_value_info
        flags = [info("i", 7, []), info("go", 9, [])]
        before = []
        for k, o in enumerate(outputs if states else []):
            said = say(o)
            before.append(info(f"s{k}", element_type(known[o].dtype), None))
            if said.type.WhichOneof("value") == "tensor_type":
                before[-1].type.CopyFrom(said.type)
        held = helper.make_graph(
            [last, *m.nodes], "body", [*flags, *before],
            [info("on", 9, []), *map(say, outputs)], value_info=declared(inner(m, outputs), say),
        )  # fmt: skip
        return [helper.make_node("Loop", [iterations, "", *states], results, body=held)], [], []

    return Place(results, parts)


def in_a_scan(m: Sketch, outputs: list[str], known: dict[str, Any]) -> Place:
    if not numeric(known, outputs):
        return in_a_function(m, outputs, known)
    rows = m.feed(f32(2), f32(3))
    results = [f"{o}_f" for o in outputs]

    def parts(say: Say) -> Parts:
        held = body(m, outputs, say, "body")
        held.input.append(helper.make_tensor_value_info("row", 1, []))
        node = helper.make_node("Scan", [rows], results, body=held, num_scan_inputs=1)
        return [node], [], []

    return Place(results, parts)


PLACES = [at_the_top] * 5 + [in_a_function] * 2 + [in_a_branch] * 2 + [in_a_loop] * 2 + [in_a_scan]
