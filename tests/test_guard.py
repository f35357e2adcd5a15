"""Guard pages see what they should: kernels that read or write where the contract forbids it end
the process, or are told of; those that keep it run.

The kernels are wrong on purpose: they copy a matrix (in the place of an operator that would do
more), with one access too many.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tests.fuzz import cage
from tests.guard import SIDES, SLACK, Overrun, guarded
from tinsmith import ops
from tinsmith.codegen.types import F32
from tinsmith.graph import Graph, Type
from tinsmith.kernels._kernel import KERNELS, PLAIN, Choice, Packed, Tier, kernel, one_phase

SHAPE = 5, 37
LAST = 5 * 37
LINES = 192  # elements of the whole lines of 64 bytes that hold the matrix
FAULT, TOLD, FINE = f"{cage.CRASHED}: signal 11", "Overrun", "fine"

Row = tuple[str, str, str, int, str, str]
CASES: list[Row] = [  # where the matrix lies ("given": results are wanted in an array of the
    # caller), operand, access, element, what comes of it: by side
    ("ports", "in", "read", LAST - 1, FINE, FINE),
    ("ports", "in", "read", LAST, FAULT, FINE),
    ("ports", "in", "read", -1, FINE, FAULT),
    ("ports", "in", "write", 1, FAULT, FAULT),
    ("ports", "out", "write", LAST, FAULT, TOLD),
    ("ports", "out", "write", -1, TOLD, FAULT),
    ("given", "out", "write", LAST, FAULT, TOLD),
    ("given", "out", "write", -1, TOLD, FAULT),
    ("arena", "in", "read", LINES + SLACK // 4 - 1, FINE, FINE),
    ("arena", "in", "read", LINES + SLACK // 4, FAULT, FINE),
    ("arena", "in", "read", -1, FINE, FAULT),
    ("arena", "out", "write", LINES - 1, FINE, FINE),
    ("arena", "out", "write", LINES, FAULT, TOLD),
    ("arena", "out", "write", -1, TOLD, FAULT),
    ("arena", "packed", "read", LINES + SLACK // 4, FAULT, FINE),
    ("arena", "packed", "read", -1, FINE, FAULT),
    ("arena", "packed", "write", 0, FAULT, FAULT),
    ("arena", "workspace", "write", LINES - 1, FINE, FINE),
    ("arena", "workspace", "write", LINES, FAULT, TOLD),
    ("arena", "workspace", "write", -1, TOLD, FAULT),
    ("arena", "scratch", "write", LINES, FAULT, TOLD),
    ("arena", "scratch", "write", -1, TOLD, FAULT),
]


def copy_and_more(operand: str, access: str, at: int) -> str:
    """Register a kernel that copies a matrix, and touches the element `at` of an operand."""

    def emit(em: Any) -> None:
        spots = {"in": em.ins[0].at(0, 0), "out": em.outs[0].at(0, 0), "packed": em.packed[0]}
        spots |= {"workspace": em.workspace, "scratch": em.scratch}
        spot = spots[operand].cast(F32) + at
        with em.b.loop(em.begin, em.end) as row, em.b.loop(0, SHAPE[1]) as i:
            em.finish(em.ins[0].at(row, i).load(), (row, i))
        if access == "write":
            spot.store(em.ins[0].at(0, 0).load())
        else:
            em.outs[0].at(0, 0).store(spot.load())

    def copy(site: Any) -> Choice:
        """One access too many."""
        return Choice(
            cost=1e-6, reads=site.reads([PLAIN], PLAIN), writes=(PLAIN,),
            phases=one_phase(SHAPE[0], emit), workspace=4 * LAST, scratch=4 * LAST,
            packed=(Packed("p", np.ones, (LAST, "float32")),),
        )  # fmt: skip

    copy.__name__ = "copy_and_more"
    kernel("Softmax", Tier.VECTOR, dtypes="float32")(copy)
    return copy.__name__


def check(seed: int) -> str:
    """What comes of one case, for `cage`."""
    where, operand, access, at, *_ = CASES[seed // 2]
    name = copy_and_more(operand, access, at)
    graph = Graph("guarded")
    x = graph.input("x", Type("float32", SHAPE))
    inner = where == "arena"
    y = ops.Softmax(ops.Softmax(x) if inner else x, name="wrong")
    graph.outputs = [ops.Softmax(y) if inner else y]
    out = {"out": np.empty(SHAPE, np.float32)} if where == "given" else {}
    with guarded(SIDES[seed % 2]):
        net = ts.compile(graph, cache=False, threads=1, kernels=f"wrong={name}")
        try:
            net(np.ones(SHAPE, np.float32), **out)
        except Overrun:
            return TOLD
        finally:
            KERNELS.remove(name)
    return FINE


@cache
def found() -> dict[int, str]:
    return cage.run(__name__, range(2 * len(CASES)))


@pytest.mark.parametrize("side", [0, 1], ids=SIDES)
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: "-".join(map(str, CASES[i][:4])))
def test_what_is_forbidden_is_seen(case: int, side: int) -> None:
    assert found()[2 * case + side] == CASES[case][4 + side]
