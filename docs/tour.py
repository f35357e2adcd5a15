"""A tour of Tinsmith, from one operator to a compiled net: `python docs/tour.py`.

Every section makes one of the forms that a model goes through, and prints it. The words are in the
comments, the evidence is in what it prints. It takes a few seconds, and a test runs it.
`docs/layout.md` says where each thing lives.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import numpy as np

import tinsmith as ts
from tinsmith import ops
from tinsmith.codegen.builder import Module
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.library import load_library
from tinsmith.codegen.target import host
from tinsmith.codegen.types import F32, I64, PTR
from tinsmith.errors import InputShapeError, TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.graph.text import parse_graph
from tinsmith.graph.verify import verify
from tinsmith.kernels.trace import make_site
from tinsmith.ops.interpret import run_graph
from tinsmith.passes import run_passes
from tinsmith.plan.planner import make_plan
from tinsmith.rewrite import RuleSet, p, rewrite
from tinsmith.rewrite.sample import sample_graphs

rng = np.random.default_rng(0)


def section(title: str) -> None:
    print(f"\n==== {title}\n")


def normal(*dims: int) -> np.ndarray:
    return rng.standard_normal(dims, np.float32)


section("1. An operator is a numpy function")
# Positional parameters are inputs, keyword-only parameters are attributes, the docstring is the
# formula, and the body is the reference: constants are folded with it, it runs where no native
# kernel does, and every test compares with it. "elementwise" is a trait. Passes and kernels read
# traits, so an operator that they have never heard of is fused and compiled like any other.


@ops.op("elementwise", "activation")
def Snake(x, *, alpha=1.0):
    """y = x + sin(alpha * x)^2 / alpha"""
    wave = np.sin(alpha * x)
    return x + wave * wave / alpha


print(Snake, "|", Snake.formula, "|", Snake.attrs, "|", sorted(Snake.traits))
print("over arrays it computes:", Snake(np.float32([0, 1, 2]), alpha=0.5))


section("2. Operators over Values make a graph")
# A Value has a type (element type and shape, whose dimensions are numbers or symbols) and knows who
# produces it and who uses it. Type rules check while the graph is built.

graph = Graph("tour")
x = graph.input("x", Type("float32", (1, 8, 16, 16)))
weight = graph.const(normal(16, 8, 3, 3) / 8, "weight")
y = ops.Conv(x, weight, graph.const(normal(16), "bias"), pad=(1, 1, 1, 1), name="conv")
y = Snake(ops.Mul(y, np.float32(0.5), name="half"), alpha=0.5, name="snake")
y = ops.Neg(ops.Neg(y, name="minus"), name="plus")
graph.outputs = [ops.GlobalPool(y, kind="mean", name="pool")]
verify(graph)
text = str(graph)
print(text)

# The text parses back, given the constants that are too long for it.
weights = {v.name: v.const for v in graph.constants()}
assert str(parse_graph(text, weights)) == text

try:
    ops.Conv(x, normal(16, 3, 3, 3), name="narrow")
except TypeRuleError as error:
    print(f"\nWhat does not fit is refused when the node is made:\n  {error}")


section("3. A rule is a pattern, its algebra, and a few lines")
# `p.Neg` is a pattern that mirrors the operator, a string is a variable. The engine checks that the
# inner node is used nowhere else, that types agree, and that names survive.

tidy = RuleSet("tidy", "Signs cancel.")


@tidy.rule(p.Neg(p.Neg("x")), x=(2, 3))
def drop_double_neg(x):
    """-(-x) -> x."""
    return x


# `x=(2, 3)` is a sample shape: from the pattern and the sample the rule's own test is made.
for sample, feeds in sample_graphs(drop_double_neg):
    before = run_graph(sample, feeds)
    assert rewrite(sample, tidy).changes == 1
    assert np.array_equal(before[0], run_graph(sample, feeds)[0])
print(drop_double_neg, "keeps the result on its own sample")

work = graph.clone()
done = rewrite(work, tidy)
print(f"on the graph it fired {done.changes} time, and {work.sweep()} dead nodes were left")

# A near miss is kept, with the reason: here, somebody else reads the inner value.
other = graph.clone()
other.outputs.append(other.node("minus").output)
print("a near miss:", *rewrite(other, tidy).refusals)


section("4. Passes: portable ones make the canonical graph, machine ones the placed graph")
# A pass is a rule set, or a frozen dataclass whose fields are its options. `@register` adds one
# from anywhere, the manager orders them by stage, priority and name (`tinsmith passes`).

for_any_machine = run_passes(work, "portable", verify=True)
placed = work.clone()
for_this_one = run_passes(placed, "machine", verify=True)
for report in (for_any_machine, for_this_one):
    print({name: changes for name, changes in report.changes.items() if changes})
print(placed)
# The product went into the convolution's weights; the activation became its epilogue: one Fused.


section("5. A reference is traced into an expression")
# `Snake` ran over objects that record what numpy does to them. $0 is the convolution's result.

site = make_site(placed.nodes[0], host())
print("anchor:  ", site.anchor)
print("epilogue:", site.epilogue)


section("6. A kernel is written with the builder, which emits LLVM IR")
# y[i] = a * x[i] + y[i]: vectors of the machine's width, then what is left, masked where masks are
# cheap and one by one where they are not. Bounds may be Python numbers or values of the program.

machine = host()
module = Module(machine)
b = module.function("axpy", [("x", PTR), ("y", PTR), ("a", F32), ("n", I64)])
xs, ys, a, n = b.pointer("x", F32), b.pointer("y", F32), b.args["a"], b.args["n"]


def step(i, lanes, mask):
    value = (xs + i).load(lanes, mask).fma(a, (ys + i).load(lanes, mask))
    (ys + i).store(value, mask)


b.vectors(n, machine.lanes, step)
b.ret()
print(module.text())

listing = assembly(module.text(), machine)
print("in the assembly:", *{line.split()[0] for line in listing.splitlines() if "fmadd" in line})

code = load_library({"axpy": module.text()}, machine)
pointer, number = ctypes.c_void_p, ctypes.c_int64
axpy = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_float, number)(code.address("axpy"))
source, result = normal(37), normal(37)
want = 2 * source + result
axpy(source.ctypes.data, result.ctypes.data, 2.0, 37)
print("largest difference from numpy:", float(abs(result - want).max()))


section("7. A plan: kernels, layouts, addresses")
# Every kernel of an operator offers choices or says why not; the best tier wins, and within it the
# least cost, conversions between layouts included. A plan is data only.

built = make_plan(placed, machine)
print(built.plan)
print("\nof the convolution:")
for candidate in built.placed[0].candidates[:4]:
    print("  ", candidate)
built.codes.pop("main")
print("functions to compile, by the hash of their code:", *built.codes)


section("8. A net: compile does all of that, and runs it")

net = ts.compile(graph)
image = normal(1, 8, 16, 16)
got, want = net(image), run_graph(graph, [image])[0]
print(net)
print("largest difference from the reference:", float(abs(got - want).max()))
assert np.allclose(got, want, rtol=1e-4, atol=1e-5)
print(net.memory)
print(net.profile(image))
try:
    net(image[:, :3])
except InputShapeError as error:
    print("a wrong input:", error)


section("9. Why it runs as it does")
# Names are those of the source, also inside a fused node.

print(net.explain("snake"))


section("10. On disk")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "tour.tin"
    ts.save(net, path)
    print(f"{path.stat().st_size} bytes: graph as text, constants that are mapped")
    assert np.allclose(ts.compile(path)(image), want, rtol=1e-4, atol=1e-5)
print("\nThe end. `tinsmith --help` goes on from here.")
