"""Small models that ask for much: more nodes, memory or time than anybody has.

python -m tests.fuzz.hostile [NAME...]     what comes of each: seconds, and the error in words
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MEMORY = 2 << 30
"""Bytes of address space: what Python, numpy, onnx and LLVM take is below one."""

SECONDS = 60
"""Of one model, on a machine that does other things; alone none takes two."""

BUDGET = "nodes=2000,constants=64M,array=256M,states=5000"

HUGE = 10**12
Feeds = dict[str, Any]
Case = tuple[onnx.ModelProto, Feeds]
CASES: dict[str, Callable[[], Case]] = {}
node = helper.make_node
info = helper.make_tensor_value_info
FLOAT, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


def model(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, Any] | None = None,
    functions: list[Any] | None = None,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "hostile", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions or [])


X, Y = info("x", FLOAT, [4]), info("y", FLOAT, None)
ONES = np.ones(4, np.float32)
LAST = helper.make_graph([node("Identity", ["x"], ["y"])], "last", [], [Y])

# ---- nodes


def calling(depth: int, innermost: list[Any]) -> list[Any]:
    """Functions of which each calls the next twice."""
    ops = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    made = [helper.make_function("f", f"F{depth}", ["a"], ["b"], innermost, ops)]
    for i in range(depth):
        body = [
            node(f"F{i + 1}", ["a"], ["m"], domain="f"),
            node(f"F{i + 1}", ["m"], ["b"], domain="f"),
        ]
        made.append(helper.make_function("f", f"F{i}", ["a"], ["b"], body, ops))
    return made


@case
def functions_that_call_the_next_twice() -> Case:
    functions = calling(30, [node("Relu", ["a"], ["b"])])
    return model([node("F0", ["x"], ["y"], domain="f")], [X], [Y], functions=functions), {"x": ONES}


@case
def a_constant_in_such_functions() -> Case:
    big = numpy_helper.from_array(np.ones(1 << 20, np.float32), "c")
    inner = [node("Constant", [], ["c"], value=big), node("ReduceMax", ["c"], ["d"], keepdims=0)]
    functions = calling(11, [*inner, node("Add", ["a", "d"], ["b"])])
    return model([node("F0", ["x"], ["y"], domain="f")], [X], [Y], functions=functions), {"x": ONES}


@case
def loops_in_loops() -> Case:
    """Bodies whose states lose a size in every iteration of importing them."""
    rank = 6
    made = [node("Concat", ["s", "s"], ["t"], axis=0)]
    for i in range(10):
        state = info("s", FLOAT, [1] * rank)
        tail = [
            info("i", INT64, []), info("go", BOOL, []), state,
        ]  # fmt: skip
        nodes = [node("Identity", ["go"], ["more"]), *made]
        body = helper.make_graph(
            nodes, f"b{i}", tail, [info("more", BOOL, []), info("t", FLOAT, None)]
        )
        made = [
            node("Loop", ["n", "", "s"], ["u"], body=body),
            node("Concat", ["u", "u"], ["t"], axis=i % rank),
        ]
    made[-1].output[0], made[0].input[2] = "y", "x"
    x = info("x", FLOAT, [1] * rank)
    return model(made, [x], [Y], {"n": np.array(1)}), {"x": np.ones([1] * rank, np.float32)}


# ---- constants


@case
def constants_joined_with_themselves() -> Case:
    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(40)]
    nodes += [node("Gather", ["c40", "i"], ["g"]), node("Add", ["x", "g"], ["y"])]
    weights = {"c0": np.ones(1 << 10, np.float32), "i": np.array(0)}
    return model(nodes, [X], [Y], weights), {"x": ONES}


@case
def constants_joined_with_the_one_before() -> Case:
    nodes = [node("Concat", [f"c{i + 1}", f"c{i}"], [f"c{i + 2}"], axis=0) for i in range(60)]
    nodes += [node("Gather", ["c61", "i"], ["g"]), node("Add", ["x", "g"], ["y"])]
    weights = {"c0": np.ones(9, np.float32), "c1": np.ones(9, np.float32), "i": np.array(0)}
    return model(nodes, [X], [Y], weights), {"x": ONES}


@case
def text_joined_with_itself() -> Case:
    nodes = [node("StringConcat", [f"c{i}", f"c{i}"], [f"c{i + 1}"]) for i in range(45)]
    made = model(nodes, [], [info("c45", STRING, [1])], {"c0": np.array(["ab"], object)})
    return made, {}


@case
def sparse_initializers() -> Case:
    nodes, sparse = [], []
    for i in range(10):
        values = numpy_helper.from_array(np.ones(1, np.float32), f"s{i}")
        places = numpy_helper.from_array(np.zeros(1, np.int64), f"i{i}")
        sparse.append(helper.make_sparse_tensor(values, places, [1 << 29]))
        nodes.append(node("Add", ["x" if i == 0 else f"y{i}", f"s{i}"], [f"y{i + 1}"]))
    made = model(nodes, [X], [info("y10", FLOAT, None)])
    made.graph.sparse_initializer.extend(sparse)
    return made, {"x": ONES}


# ---- ranks and counts that are declared

BY_SIZES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "Reshape": (["x", "s"], {}),
    "Expand": (["x", "s"], {}),
    "Tile": (["x", "s"], {}),
    "Unsqueeze": (["x", "s"], {}),
    "Squeeze": (["x", "s"], {}),
    "ConstantOfShape": (["s"], {}),
    "SplitToSequence": (["x", "s"], {}),
    "Slice": (["x", "s", "s"], {}),
    "Pad": (["x", "s"], {}),
    "ReduceSum": (["x", "s"], {}),
    "Resize": (["x", "", "", "s"], {}),
    "CenterCropPad": (["x", "s"], {}),
    "Col2Im": (["x", "s", "s"], {}),
    "AffineGrid": (["x", "s"], {}),
    "Shape": (["s"], {}),
}


def declared(op: str) -> Case:
    names, attrs = BY_SIZES[op]
    s = info("s", INT64, [HUGE])
    outputs = ["y", "z"] if op == "Split" else ["y"]
    made = model([node(op, names, outputs, **attrs)], [X, s], [onnx.ValueInfoProto(name="y")])
    return made, {"x": ONES, "s": np.ones(2, np.int64)}


for _op in BY_SIZES:
    CASES[f"declared_sizes_of_{_op}"] = lambda op=_op: declared(op)


@case
def sizes_of_a_split_that_are_declared() -> Case:
    made = model([node("Split", ["x", "s"], ["y", "z"])], [X, info("s", INT64, [HUGE])], [Y])
    return made, {"x": ONES, "s": np.ones(2, np.int64)}


@case
def a_sequence_of_a_declared_axis() -> Case:
    nodes = [node("SplitToSequence", ["x"], ["s"]), node("SequenceLength", ["s"], ["y"])]
    return model(nodes, [info("x", FLOAT, [HUGE])], [info("y", INT64, [])]), {"x": ONES}


@case
def a_declared_input() -> Case:
    made = model(
        [node("CumSum", ["x", "a"], ["y"])], [info("x", FLOAT, [HUGE])], [Y], {"a": np.array(0)}
    )
    return made, {"x": ONES}


@case
def a_reshape_to_more_dims_than_there_are() -> Case:
    shape = np.ones(71, np.int64)
    shape[0] = 4
    return model([node("Reshape", ["x", "s"], ["y"])], [X], [Y], {"s": shape}), {"x": ONES}


@case
def a_reshape_to_as_many_in_the_run() -> Case:
    s = np.ones(71, np.int64)
    s[0] = 4
    made = model([node("Reshape", ["x", "s"], ["y"])], [X, info("s", INT64, ["n"])], [Y])
    return made, {"x": ONES, "s": s}


@case
def an_input_of_more_dims_than_there_are() -> Case:
    return model([node("Relu", ["x"], ["y"])], [info("x", FLOAT, [1] * 71)], [Y]), {"x": ONES}


# ---- sizes

N = 10**11
BIG = np.array([N])
MAKERS: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "ConstantOfShape": (["s"], {"s": BIG}, {}),
    "Range": (["a", "s", "b"], {"a": np.array(0), "s": np.array(N), "b": np.array(1)}, {}),
    "Expand": (["c", "s"], {"c": np.ones(1, np.float32), "s": BIG}, {}),
    "Tile": (["c", "s"], {"c": np.ones(2, np.float32), "s": BIG}, {}),
    "OneHot": (
        ["i", "s", "v"],
        {"i": np.array([1]), "s": np.array(N), "v": np.ones(2, np.float32)},
        {},
    ),
    "Pad": (["c", "s"], {"c": np.ones(2, np.float32), "s": np.array([0, N])}, {}),
    "Resize": (["c", "", "", "s"], {"c": np.ones(2, np.float32), "s": BIG}, {"mode": "nearest"}),
    "CenterCropPad": (["c", "s"], {"c": np.ones(2, np.float32), "s": BIG}, {}),
    "HannWindow": (["s"], {"s": np.array(N)}, {}),
    "DFT": (["c", "s"], {"c": np.ones((1, 2, 1), np.float32), "s": np.array(N)}, {}),
    "RandomNormal": ([], {}, {"shape": [N]}),
    "AffineGrid": (
        ["c", "s"],
        {"c": np.ones((1, 2, 3), np.float32), "s": np.array([1, 1, 10**6, 10**6])},
        {},
    ),
}


def sized(op: str, where: str) -> Case:
    """The maker of a large array: by constants, in a branch, or by sizes given in the run."""
    names, weights, attrs = MAKERS[op]
    made = node(op, names, ["big"], **attrs)
    tail = [node("Cast", ["big"], ["f"], to=FLOAT), node("ReduceMax", ["f"], ["m"], keepdims=0)]
    end = node("Add", ["x", "m"], ["y"])
    if where == "constant":
        return model([made, *tail, end], [X], [Y], weights), {"x": ONES}
    if where == "run":
        given = [info("s", INT64, np.shape(weights["s"]))] if "s" in weights else []
        rest = {n: a for n, a in weights.items() if n != "s"}
        feeds = {"x": ONES, **({"s": weights["s"]} if given else {})}
        return model([made, *tail, end], [X, *given], [Y], rest), feeds
    m, other = info("m", FLOAT, []), info("o", FLOAT, [])
    yes = helper.make_graph([made, *tail], "yes", [], [m])
    no = helper.make_graph([node("Identity", ["one"], ["o"])], "no", [], [other])
    choice = node("If", ["c0"], ["m"], then_branch=yes, else_branch=no)
    weights = {**weights, "one": np.array(1, np.float32)}
    made = model([choice, end], [X, info("c0", BOOL, [])], [Y], weights)
    return made, {"x": ONES, "c0": np.array(True)}


for _op in MAKERS:
    for _where in ("constant", "branch", "run"):
        CASES[f"{_op}_of_a_size_by_{_where}"] = lambda op=_op, where=_where: sized(op, where)


# ---- time


@case
def a_pattern_that_tries_again() -> Case:
    made = model(
        [node("RegexFullMatch", ["x"], ["y"], pattern="(a+)+$")],
        [info("x", STRING, [1])], [info("y", BOOL, [1])],
    )  # fmt: skip
    return made, {"x": np.array(["a" * 5000 + "b"], object)}


@case
def a_pattern_of_many_states() -> Case:
    made = model(
        [node("RegexFullMatch", ["x"], ["y"], pattern="((a{999}){999}){999}")],
        [info("x", STRING, [1])], [info("y", BOOL, [1])],
    )  # fmt: skip
    return made, {"x": np.array(["a" * 100], object)}


@case
def branches_in_branches() -> Case:
    graph = helper.make_graph([node("Relu", ["x"], ["y"])], "g", [], [Y])
    for i in range(22):  # what a message may hold in messages
        inner = [node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)] if i < 6 else [
            node("If", ["c"], ["y"], then_branch=graph, else_branch=LAST)
        ]  # fmt: skip
        graph = helper.make_graph(inner, f"g{i}", [], [Y])
    return model(list(graph.node), [X, info("c", BOOL, [])], [Y]), {"x": ONES, "c": np.array(True)}


def outcome(name: str) -> str:
    """What loading, compiling and running a model comes to: `class: words`, or "ran"."""
    import tinsmith as ts
    from tinsmith.errors import TinsmithError

    try:
        made, feeds = CASES[name]()
        backend = "numpy" if name.endswith(("_by_branch", "_by_run")) else "cpu"
        net = ts.compile(ts.load(made), backend=backend, cache=False)
        net(**feeds)
    except TinsmithError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:  # what the test looks for, MemoryError included
        return f"! {type(error).__name__}: {error}"
    return "ran"


def main(names: list[str]) -> None:
    """One line for each case: name, seconds, outcome. Each runs in a process of its own."""
    import tinsmith.compiler.build  # noqa: F401 - what is loaded now does not count
    from tinsmith.ops import OPS

    OPS.load()
    for name in names or CASES:
        begun = time.monotonic()
        read, write = os.pipe()
        if not (child := os.fork()):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            signal.alarm(SECONDS)
            warnings.simplefilter("ignore")
            os.write(write, " ".join(outcome(name).split())[:300].encode())
            os._exit(0)
        os.close(write)
        with open(read, errors="replace") as pipe:
            said = pipe.read()
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = said if not ended else f"! ended by {signal.Signals(-ended).name}"
        print(f"{name}\t{time.monotonic() - begun:.2f}\t{said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
