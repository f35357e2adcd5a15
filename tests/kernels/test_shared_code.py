"""Sites of equal key have equal code: layers that differ in one number, for every kernel there is.

`tests/kernels/test_memo.py` has whole graphs; here each kernel of the registry is asked about small
nodes (`CASES`) and about copies of them that differ in one constant, attribute or number of what is
fused to them (`changed`). What the memo would share must be what is emitted anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.harness import site_of
from tinsmith.codegen.target import level
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Node, Type
from tinsmith.kernels import narrow
from tinsmith.kernels._kernel import ELEMENTWISE, KERNELS, Choice, Site, Skip
from tinsmith.kernels.build import Code, build_phase
from tinsmith.kernels.layout import spec_of
from tinsmith.kernels.memo import choice_key, site_key
from tinsmith.kernels.select import candidates
from tinsmith.ops import OPS
from tinsmith.plan.equivalence import Answers, packing

Array = np.ndarray[Any, Any]
Machine = tuple[str, str]
"""A target and a precision."""
MACHINES = (
    ("avx512vnni", "default"),
    ("amx", "default"),
    ("avx512bf16", "bfloat16"),
    ("avx2", "default"),
)
"""A kernel is emitted for the first of these for which it takes a case: its code is not run."""


@dataclass(frozen=True)
class Case:
    """A node: `arrays` are its inputs, those of `consts` constants; `fused` follow it, each an
    operator with constants and attributes."""

    op: str
    arrays: tuple[Any, ...]
    consts: tuple[int, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    fused: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = ()

    def node(self) -> Node:
        graph, body = Graph("case"), Graph("body")
        outer, inner = [], []
        for i, a in enumerate(self.arrays):
            made = None if a is None else graph.const(a, f"c{i}") if i in self.consts else (
                graph.input(f"x{i}", Type(a.dtype, a.shape)))  # fmt: skip
            outer.append(made)
            inner.append(None if made is None else body.input(f"i{i}", made.type))
        if not self.fused:
            return graph.add(OPS[self.op], *outer, **self.attrs)
        y = body.add(OPS[self.op], *inner, **self.attrs).outputs[0]
        for name, numbers, attrs in self.fused:
            more = [body.const(np.asarray(n), "n") for n in numbers]
            y = body.add(OPS[name], y, *more, **attrs).outputs[0]
        body.outputs = [y]
        return graph.add(OPS["Fused"], *[v for v in outer if v is not None], body=body)

    def site(self, machine: Machine) -> Site:
        target, precision = machine
        return site_of(self.node(), level(target), precision)

    @property
    def registered(self) -> str:
        """The operator under which kernels for the node are registered."""
        return ELEMENTWISE if "elementwise" in OPS[self.op].traits else self.op


def real(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def byte(*shape: int, dtype: str = "int8") -> Array:
    return np.random.default_rng(len(shape)).integers(0, 100, shape).astype(dtype)


def unsigned(*shape: int) -> Array:
    return byte(*shape, dtype="uint8")


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def rows(count: int) -> Array:
    return np.arange(0, 16 * count, 16, dtype=np.int32)[None]


def conv(x: tuple[int, ...], w: tuple[int, ...], op: str = "Conv", **attrs: Any) -> Case:
    outputs = w[0] if op == "Conv" else w[1]
    return Case(op, (real(*x), real(*w), real(outputs)), (1, 2), attrs)


def bytes_conv(group: int, zero: tuple[int, ...]) -> Case:
    x, w = (1, 32, 7, 7), (32, 32 // group, 3, 3)
    arrays = (unsigned(*x), byte(*w), np.uint8(3), np.zeros(zero, np.int8))
    return Case("ConvInteger", arrays, (1, 2, 3), {"group": group, "pad": (1, 1, 1, 1)})


def attention(**attrs: Any) -> Case:
    arrays = (real(1, 32, 1, 16), real(1, 32, 1, 16), real(1, 32, 1, 16), *[rows(32)] * 4)
    more = {"width": 16, "value_width": 16, "shape": (1, 32, 1, 16), "scale": 0.25, **attrs}
    return Case("RowAttention", arrays, (3, 4, 5, 6), more)


def recurrent(op: str, gates: int, **attrs: Any) -> Case:
    arrays = real(4, 3, 5), real(1, gates * 8, 5), real(1, gates * 8, 8), real(1, gates * 16)
    return Case(op, arrays, (1, 2, 3), {"hidden_size": 8, "clip": 0.5, **attrs})


def small(m: int, n: int, zero: int = 2) -> Case:
    arrays = real(m, 64), byte(64, n), real(zero, n), np.zeros((zero, n), np.int8)
    return Case("SmallMatMul", arrays, (1, 2, 3), {"block_size": 64 // zero})


IMAGE, FLAT = real(1, 20, 6, 6), real(3, 4, 21)
POOL = {"kernel": (3, 3), "pad": (1, 1, 1, 1)}
CASES = [
    Case("ArgReduce", (FLAT,), (), {"kind": "max", "axis": 1}),
    Case("AveragePool", (IMAGE,), (), POOL),
    Case("BestBoxes", (real(2, 33, 4), real(2, 1, 33), None), (), {"overlap": 0.4}),
    Case("Bounded", (np.arange(9),), (), {"least": -2, "most": 39}),
    Case("ByteTable", (unsigned(3, 40), unsigned(256)), (1,)),
    Case("ChannelGather", (IMAGE,), (), {"sources": ((0, 1, 3), (0, 0, 5), (0, 1, 12))}),
    Case("ChannelShuffle", (IMAGE,), (), {"groups": 4}),
    Case("Col2Im", (real(1, 4, 16), whole(5, 5), whole(2, 2)), (1, 2)),
    Case("Compress", (real(7, 5), np.arange(7) % 2 == 0), (), {"axis": 0}),
    Case("Concat", (FLAT, FLAT), (), {"axis": 1}),
    conv((1, 32, 8, 8), (32, 32, 1, 1)),
    conv((1, 32, 14, 14), (32, 32, 3, 3), pad=(1, 1, 1, 1)),
    conv((1, 48, 7, 7), (48, 48, 3, 3), pad=(1, 1, 1, 1)),
    conv((1, 32, 7, 7), (32, 1, 3, 3), group=32, pad=(1, 1, 1, 1)),
    conv((1, 32, 7, 7), (32, 8, 3, 3), group=4),
    conv((1, 3, 24, 24), (16, 3, 3, 3), stride=(2, 2), pad=(1, 1, 1, 1)),
    conv((1, 64, 7, 7), (3, 64, 3, 3)),
    conv((1, 3, 9, 9), (3, 3, 3, 3)),
    conv((1, 128, 16, 16), (128, 128, 1, 1)),
    replace(conv((3, 2, 1, 1), (80, 2, 1, 1)), consts=(2,)),
    Case("ConvInteger", (unsigned(1, 32, 9, 9), byte(32, 32, 1, 1) // 2, np.uint8(3)), (1, 2)),
    *[bytes_conv(group, zero) for group in (1, 32) for zero in ((32,), (32, 1, 1, 1), ())
      if (group, len(zero)) != (1, 4)],
    conv((1, 8, 5, 9), (8, 6, 3, 2), "ConvTranspose", stride=(2, 2)),
    conv((1, 5, 18), (5, 1, 3), "ConvTranspose"),
    replace(conv((1, 8, 4, 3), (8, 8, 1, 2), "ConvTranspose", stride=(3, 4)), consts=(2,)),
    *[Case(op, (FLAT, np.array(1)), (1,), {"reverse": True}) for op in ("CumProd", "CumSum")],
    Case("DepthToSpace", (real(1, 64, 3, 5),), (), {"blocksize": 2}),
    Case("Clip", (FLAT,), (), {"min": -0.3, "max": 0.7}),
    Case("Mul", (FLAT, real(21)), (1,)),
    Case("QuantizeLinear", (FLAT, np.float32(0.3), np.uint8(7)), (1, 2)),
    Case("QuantizeLinear", (FLAT, real(21), unsigned(21)), (1, 2), {"axis": 2}),
    Case("Expand", (real(3, 1), whole(3, 40)), (1,)),
    Case("Gather", (FLAT, whole(2, 0, 1)), (1,), {"axis": 1}),
    Case("Gather", (FLAT, whole(2, 0, 1)), (), {"axis": 1}),
    Case("GatherElements", (real(3, 10), np.zeros((3, 17), np.int64)), (), {"axis": 1}),
    Case("GatherND", (FLAT, np.zeros((3, 2, 1), np.int64)), (), {"batch_dims": 1}),
    Case("GlobalPool", (IMAGE,), (), {"kind": "mean"}),
    Case("GridSample", (IMAGE, real(1, 4, 4, 2)), (), {"mode": "linear"}),
    Case("GroupNorm", (IMAGE, real(20), real(20)), (1, 2), {"groups": 4, "eps": 1e-5}),
    Case("GroupNorm", (IMAGE, real(20), real(20)), (), {"groups": 4, "eps": 1e-5}),
    recurrent("GRU", 3), recurrent("LSTM", 4), recurrent("RNN", 1),
    Case("InstanceNorm", (IMAGE, real(20), real(20)), (1, 2), {"eps": 1e-5}),
    Case("InstanceNorm", (IMAGE, real(20), real(20)), (), {"eps": 1e-5}),
    Case("LRN", (IMAGE,), (), {"size": 5, "alpha": 0.1, "beta": 0.6, "bias": 1.5}),
    Case("LayerNorm", (FLAT, real(21), real(21)), (1, 2), {"axis": 2, "eps": 1e-5}),
    Case("RMSNorm", (FLAT, real(21)), (1,), {"axis": 2, "eps": 1e-5}),
    *[Case(op, (FLAT,), (), {"axis": 2}) for op in ("LogSoftmax", "Softmax")],
    Case("LpNorm", (FLAT,), (), {"p": 1}),
    *[Case("MatMul", (real(m, 64), real(64, 64)), (1,)) for m in (1, 40)],
    Case("MatMul", (real(96, 128), real(128, 128)), (1,)),
    Case("MatMul", (real(2, 512), real(512, 256)), (1,)),
    Case("MatMul", (real(5, 7), real(7, 9))),
    Case("MatMul", (real(2, 3, 5, 6), real(3, 6, 7)), (1,)),
    Case("MatMul", (whole(*range(33))[None], whole(*range(33)))),
    Case("MatMul", (np.ones((3, 5)), np.ones((5, 4)))),
    Case("MatMulInteger", (unsigned(3, 64), byte(64, 80), np.uint8(3), byte(80)), (1, 2, 3)),
    Case("MatMulInteger", (unsigned(40, 64), byte(64, 80) // 2, np.uint8(3)), (1, 2)),
    Case("MaxPool", (IMAGE,), (), POOL),
    Case("MaxPool", (IMAGE,), (), {**POOL, "with_indices": True}),
    Case("NonMaxSuppression", (real(2, 20, 4), real(2, 3, 20), whole(3), real(1), real(1)),
         (2, 3, 4)),
    Case("NonZero", (FLAT,)),
    Case("Pad", (FLAT, whole(0, 1, 2, 0, 1, 3), np.float32(0.7)), (1, 2)),
    Case("Pad", (FLAT, whole(0, 1, 2, 0, 1, 3)), (1,), {"mode": "reflect"}),
    Case("Reduce", (FLAT, whole(1)), (1,), {"kind": "sum"}),
    Case("Resize", (IMAGE, None, np.array([1, 1, 1.7, 2.3], np.float32)), (2,), {"mode": "linear"}),
    Case("Resize", (IMAGE, None, None, whole(1, 20, 9, 11)), (3,), {"mode": "cubic"}),
    Case("RoiAlign", (IMAGE, real(6, 4), np.zeros(6, np.int32)), (),
         {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.5}),
    attention(), attention(softcap=3.0),
    Case("ScatterElements", (real(3, 9), whole(0, 2)[None], real(1, 2)), (), {"axis": 1}),
    Case("ScatterElements", (real(3, 9), whole(0, 2)[None], real(1, 2)), (1,), {"axis": 1}),
    *[Case("ScatterND", (real(9, 7), whole(0, 4, 2)[:, None], real(3, 7)), c) for c in ((), (1,))],
    Case("Slice", (FLAT, whole(1, 0), whole(3, 9)), (1, 2)),
    *[small(m, n, z) for m, n, z in ((1, 64, 2), (8, 64, 2), (1, 64, 1))],
    Case("SpaceToDepth", (IMAGE,), (), {"blocksize": 2}),
    Case("Split", (FLAT, whole(4, 17)), (1,), {"axis": 2}),
    Case("TensorScatter", (real(3, 9, 5), real(3, 4, 5), whole(0, 1, 2)), (), {"axis": 1}),
    Case("Tile", (FLAT, whole(1, 2, 3)), (1,)),
    Case("TopK", (FLAT, np.array(3)), (1,), {"axis": 1}),
    Case("Transpose", (real(33, 50),), (), {"perm": (1, 0)}),
    Case("Transpose", (real(1, 32, 4, 4),), (), {"perm": (0, 2, 3, 1)}),
]  # fmt: skip

ELSEWHERE = {
    "conv_block": "a block of several nodes",
    "conv_scaled": "a block of several nodes",
    "range_sized": "sizes that only a call tells",
    "required_copy": "sizes that only a call tells",
}
"""Kernels of which no node here is one, and what they need."""

CHOICES = 3  # of a kernel, at most, that are emitted
TO_FLOAT = ("Cast", (), {"to": "float32"})
SCALED = ("Mul", (np.float32(0.31),), {}), ("LeakyRelu", (), {"alpha": 0.1})
ROUNDED = ("Round", (), {}), ("Add", (np.float32(5),), {}), ("Cast", (), {"to": "uint8"})
FUSED = {"float32": [(), (*SCALED, *ROUNDED)], "int32": [(), (TO_FLOAT, *SCALED, *ROUNDED)]}
"""By the element type of a result: what is fused to the node."""
ANCHORS = {"anchor", "elementwise"}
"""Traits of the operators to which others are fused."""


def others(constant: Any) -> Iterator[Array]:
    """Arrays in the place of a constant: zeros, one in which each element differs or one does, and
    one in which one is infinite."""
    array = np.asarray(constant)
    if array.dtype.kind not in "fiu":
        return
    changed, one = array.copy(), array.copy()
    changed = changed * changed.dtype.type(3) / 2 if array.dtype.kind == "f" else changed + 1
    one.reshape(-1)[-1] += 1
    yield from (changed.astype(array.dtype), one, np.zeros_like(array))
    if array.dtype.kind == "f":
        odd = array.copy()
        odd.reshape(-1)[0] = np.inf
        yield odd


def other_attrs(attrs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in attrs.items():
        if isinstance(value, bool):
            yield {**attrs, name: not value}
        elif isinstance(value, int | float):
            yield {**attrs, name: value * 1.5 if isinstance(value, float) else value + 1}


def replaced(items: tuple[Any, ...], i: int, item: Any) -> tuple[Any, ...]:
    return (*items[:i], item, *items[i + 1 :])


def changed(case: Case) -> Iterator[Case]:
    """The case, and cases that differ from it in one constant, attribute or fused number."""
    yield case
    for i in case.consts:
        for a in others(case.arrays[i]):
            yield replace(case, arrays=replaced(case.arrays, i, a))
    for attrs in other_attrs(case.attrs):
        yield replace(case, attrs=attrs)
    for k, (name, numbers, attrs) in enumerate(case.fused):
        more = [(name, numbers, a) for a in other_attrs(attrs)]
        more += [(name, replaced(numbers, i, a), attrs)
                 for i, n in enumerate(numbers) for a in others(n)]  # fmt: skip
        for one in more:
            yield replace(case, fused=replaced(case.fused, k, one))


def emitted(site: Site, kernel: str, choices: list[Choice]) -> Iterator[tuple[Any, Code]]:
    """Key and code of each phase of a kernel's choices, operands and results lying as it asks."""
    rank = len(site.out.dims)
    for index, choice in enumerate(choices[:CHOICES]):
        reads = []
        for i, (v, layout) in enumerate(zip(site.operands, choice.reads, strict=True)):
            if v is None or layout is None:
                reads.append(None)
                continue
            lead = 0 if i < len(site.inputs) else rank - len(v.dims)
            reads.append(spec_of(v.dtype, (1,) * lead + v.dims, layout))
        pairs = zip(site.outputs, choice.writes, strict=True)
        writes = [spec_of(v.dtype, v.dims, layout) for v, layout in pairs]
        packed = [p.make().dtype for p in choice.packed]
        key = choice_key(site, kernel, index, choice, site_key(site))
        for phase in range(len(choice.phases)):
            code = build_phase(site, choice, phase, reads, writes, packed)
            yield (key, phase, tuple(reads), tuple(writes), tuple(packed)), code


def answers_are_right(answers: Answers, site: Site, kernel: str) -> None:
    """What is known of an equivalent node before is what the kernel answers for this one."""
    layouts = [site.layout(v) for v in site.node.inputs]
    key, own = answers.key(site.node, layouts), candidates(site)
    own = [c for c in own if c.kernel == kernel]
    known = answers.again(key, site.node)
    if known is None:
        answers.keep(key, site, own)
        return
    for old, new in zip(known[1], own, strict=True):
        assert old.reason == new.reason, f"{kernel} answers {new.reason!r}, known is {old.reason!r}"
        if old.choice is None or new.choice is None:
            continue
        assert (old.choice.detail, old.choice.cost) == (new.choice.detail, new.choice.cost)
        for p, q in zip(old.choice.packed, new.choice.packed, strict=True):
            np.testing.assert_array_equal(packing(p, known[2]).make(), q.make())


def check(case: Case, kernel: str, machine: Machine) -> int:
    """Compare the case with those that differ from it in one thing; how many phases shared code."""
    known: dict[Any, Code] = {}
    answers, shared = Answers(), 0
    for one in changed(case):
        try:
            site = one.site(machine)
            answers_are_right(answers, site, kernel)
            choices = KERNELS[kernel].offer(site) if site.out.type.size else []
        except (Skip, TypeRuleError):  # no such node, or not for this kernel
            continue
        for key, code in emitted(site, kernel, choices):
            shared += key in known
            assert known.setdefault(key, code) == code, f"{kernel}: one key, two codes: {one}"
    return shared


def takes(case: Case, kernel: str, machine: Machine) -> bool:
    with suppress(Skip):
        return bool(KERNELS[kernel].offer(case.site(machine)))
    return False


@pytest.fixture(autouse=True)
def few_may_be_narrow(monkeypatch):
    monkeypatch.setattr(narrow, "LEAST", 0)


@pytest.mark.filterwarnings("ignore:invalid value")  # of infinite weights
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k not in ELSEWHERE])
def test_equal_keys_have_equal_code(kernel):
    """Of this machine's kernels and of others'."""
    taken = 0
    for case in [c for c in CASES if c.registered == KERNELS[kernel].op]:
        y, traits = case.node().outputs[0], OPS[case.op].traits
        for fused in FUSED.get(y.dtype.name, [()])[: 2 if traits & ANCHORS else 1]:
            one = replace(case, fused=fused)
            machine = next((m for m in MACHINES if takes(one, kernel, m)), None)
            if machine is not None:
                taken += 1
                shared = check(one, kernel, machine)
                assert shared or not fused, "scales are part of the key"
    assert taken, f"no case is for the kernel {kernel}"
