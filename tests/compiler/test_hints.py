"""Hints of sizes: what they take, what they refuse, and what is chosen by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinsmith as ts
from tests.models import free as batched
from tests.transformer import feeds, transformer
from tinsmith.compiler.hints import typical
from tinsmith.errors import InputShapeError, OptionError, OutsideHint, UnknownName
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

HINTS = {"batch": (1, 8), "seq": (1, 64)}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    onnx.save(transformer(), tmp_path / "encoder.onnx")
    return tmp_path / "encoder.onnx"


def chosen(net: Any) -> list[tuple[str, str]]:
    """The kernels of the last program of a net, and how they compute."""
    return [(one.kernel, one.detail) for one in net.explanations()]


@pytest.mark.parametrize(
    ("hint", "size"),
    [
        ((1, 2048), 32),
        ((224, 640), 384),
        ((200, 250), 224),
        ((33, 35), 34),
        ((31, 31), 31),
        ((1, 3), 2),
        ((0, 1), 1),
        ((0, 0), 0),
        (77, 77),
    ],
)
def test_a_typical_size_is_in_the_middle_and_divides_well(hint: Any, size: int) -> None:
    assert typical(hint) == size


@pytest.mark.parametrize("least", range(12))
@pytest.mark.parametrize("more", [0, 1, 2, 7, 100])
def test_a_typical_size_is_in_its_range(least: int, more: int) -> None:
    assert least <= typical((least, least + more)) <= least + more


@pytest.mark.parametrize(
    ("sizes", "error", "says"),
    [
        ({"sq": (1, 2)}, UnknownName, "no free dimension named 'sq'. Did you mean 'seq'"),
        ({"seq": (3, 2)}, OptionError, "the range 3 to 2 of 'seq' is empty"),
        ({"seq": "a"}, OptionError, "'seq' must be a range such as .1, 2048., or a typical size"),
        ({"seq": (1, 2, 3)}, OptionError, "must be a range"),
        ({"seq": 1.5}, OptionError, "must be a range"),
        ({"seq": True}, OptionError, "must be a range"),
        ({"seq": None}, OptionError, "must be a range"),
        ({"seq": -1}, OptionError, "from 0 to 4611686018427387903, not -1"),
        (
            {"seq": (1, 2**63)},
            OptionError,
            "from 0 to 4611686018427387903, not 9223372036854775808",
        ),
        ({3: 4}, OptionError, "3 is none"),
        ([("seq", 4)], OptionError, "sizes must be a dict of ranges"),
    ],
)
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_what_is_no_hint_is_refused_at_once(
    sizes: Any, error: type[Exception], says: str, backend: str
) -> None:
    with pytest.raises(error, match=says):
        ts.compile(transformer(), sizes=sizes, backend=backend)


@pytest.mark.parametrize("options", [{}, {"shapes": "free"}, {"backend": "numpy"}])
def test_a_call_outside_a_range_is_refused_before_anything_is_written(
    encoder: Path, options: dict[str, Any]
) -> None:
    net = ts.compile(encoder, sizes=HINTS, **options)
    for n, t in ((2, 7), (8, 64), (1, 1)):
        net(**feeds(n, t))
    out = np.full((2, 65, 32), 3, np.float32)
    for n, t, name, size in ((2, 65, "seq", 65), (9, 2, "batch", 9), (0, 2, "batch", 0)):
        with pytest.raises(OutsideHint) as refused:
            net(**feeds(n, t), **({"out": {"hidden": out}} if t == 65 else {}))
        assert isinstance(refused.value, InputShapeError)
        least, most = HINTS[name]
        assert f"the dimension '{name}' of encoder is {size} in 'ids'" in str(refused.value)
        assert f"{least} to {most}" in str(refused.value) and f"--dim {name}=" in str(refused.value)
    assert (out == 3).all()
    if net.has_programs:
        for ask in (net.session, net.program):
            with pytest.raises(OutsideHint):
                ask(((2, 65), (2, 65)))


def test_kernels_are_chosen_by_the_hint_not_by_the_first_call(encoder: Path) -> None:
    sizes = {"batch": 4, "seq": (1, 512)}
    known = {}
    for shapes in ((2, 2), (3, 300)):
        net = ts.compile(encoder, sizes=sizes, shapes="free", cache=False)
        net(**feeds(*shapes))
        known[shapes] = chosen(net)
        assert len(net._model._free.found) == 1  # type: ignore[attr-defined]
    assert known[2, 2] == known[3, 300]
    small = ts.compile(encoder, shapes="free", cache=False)
    small(**feeds(2, 2))
    assert chosen(small) != known[2, 2]


def test_a_program_is_made_at_once_where_all_sizes_have_hints(encoder: Path) -> None:
    net = ts.compile(encoder, sizes=HINTS, shapes="free", cache=False)
    assert [p.dims for p in net.program().plan.inputs] == [(2, 8), (2, 8)]
    assert net.program().takes and net.memory.peak > 0
    with pytest.raises(InputShapeError, match="free shape"):
        ts.compile(encoder, sizes={"seq": 8}, shapes="free", cache=False).program()


def test_sizes_that_the_hint_does_not_fit_get_a_program(tmp_path: Path) -> None:
    """Of rows that a reshape halves, the typical size is no even one."""
    graph = Graph("halves")
    x = graph.input("x", Type("float32", ("n",)))
    graph.outputs = [OPS["Relu"](OPS["Reshape"](x, np.array([-1, 2])))]
    net = ts.compile(graph, sizes={"n": 7}, shapes="free", cache=False)
    for n in (4, 8, 6):
        assert net(np.ones(n, np.float32)).shape == (n // 2, 2)
    assert net.program().takes


def sides(*dims: Any) -> Graph:
    graph = Graph("sides")
    values = [graph.input(f"x{k}", Type("float32", (d, 4))) for k, d in enumerate(dims)]
    graph.outputs = [OPS["Concat"](*values, axis=1)]
    return graph


def test_ranges_that_contradict_each_other() -> None:
    with pytest.raises(OptionError, match="one size, and none is in all ranges: a 2 to 5, b 6 to"):
        ts.compile(sides("a", "b"), sizes={"a": (2, 5), "b": (6, 9)}, shapes="free", cache=False)


def test_dimensions_that_are_equal_have_the_sizes_that_all_ranges_have() -> None:
    net = ts.compile(sides("a", "b"), sizes={"a": (2, 50), "b": (6, 9)}, shapes="free", cache=False)
    assert [p.dims for p in net.program().plan.inputs] == [(8, 4), (8, 4)]
    given = np.ones((7, 4), np.float32)
    assert net(given, given).shape == (7, 8)


def test_hints_are_part_of_the_key(encoder: Path, cache: Path) -> None:
    for sizes in (None, HINTS, {**HINTS, "seq": (1, 65)}, {"seq": 8, "batch": 2}):
        for stored in (False, True):
            net = ts.compile(encoder, sizes=sizes, shapes="free")
            net(**feeds(2, 8))
            assert net.program().stored == stored


def test_a_file_carries_its_hints(encoder: Path, tmp_path: Path, cache: Path) -> None:
    net = ts.compile(encoder, sizes=HINTS, shapes="free")
    file = tmp_path / "encoder.tin"
    ts.save(net, file, code=True)
    carried = ts.compile(file, trust=True)
    np.testing.assert_array_equal(carried(**feeds(3, 9))["hidden"], net(**feeds(3, 9))["hidden"])
    with pytest.raises(OutsideHint):
        carried(**feeds(3, 65))
    assert ts.compile(file, trust=True, sizes=dict(reversed(HINTS.items()))).program().takes
    with pytest.raises(OptionError, match="sizes="):
        ts.compile(file, trust=True, sizes={"seq": 3})


def test_memory_grows_no_further_than_the_upper_ends_need() -> None:
    graph = batched()
    names = [d for v in graph.inputs for d in v.type.shape or () if isinstance(d, str)]
    top = {"N": 9, "T": 90}
    assert set(names) == set(top)
    given = {n: (2, most) for n, most in top.items()}
    net = ts.compile(graph, sizes=given, shapes="free", cache=False)

    def peak(n: int, t: int) -> int:
        sizes = {"N": n, "T": t}
        shapes = [
            tuple(d if isinstance(d, int) else sizes[d] for d in v.type.shape or ())
            for v in graph.inputs
        ]
        return net.program(tuple(shapes)).plan.memory.peak

    largest = ts.compile(graph, shapes="free", cache=False)
    shapes = tuple(
        tuple(d if isinstance(d, int) else top[d] for d in v.type.shape or ()) for v in graph.inputs
    )
    most = largest.program(shapes).plan.memory.peak
    assert max(peak(n, t) for n, t in ((2, 30), (5, 60), (8, 85), (9, 90))) <= most


@pytest.mark.parametrize("shapes", ["both", "free"])
def test_typical_sizes_that_no_memory_holds_are_left(encoder: Path, shapes: str) -> None:
    huge = {"batch": (1, 2**40), "seq": (1, 2**40)} if shapes == "both" else {"batch": 2**38}
    net = ts.compile(encoder, sizes=huge, shapes=shapes, cache=False)
    for size in ((2, 3), (3, 5), (2, 3)):
        assert net(**feeds(*size))["hidden"].shape == (*size, 32)


def test_a_range_beyond_all_sizes_is_no_call(encoder: Path) -> None:
    sizes = {"batch": (2**40, 2**41), "seq": (1, 2)}
    net = ts.compile(encoder, sizes=sizes, shapes="free", cache=False)
    with pytest.raises(OutsideHint, match="is 2 in"):
        net(**feeds(2, 1))


def test_truth_is_no_end_of_a_range(encoder: Path) -> None:
    with pytest.raises(OptionError, match="range"):
        ts.compile(encoder, sizes={"seq": (True, 4)})


def test_sizes_that_the_model_refuses_are_noted() -> None:
    """A Reshape of constant sizes takes none but its own."""
    graph = Graph("pinned")
    x = graph.input("x", Type("float32", ("n", 6)))
    graph.outputs = [OPS["Reshape"](x, np.array([2, 6]))]
    assert not ts.compile(graph, shapes="free", sizes={"n": 2}).notes
    (note,) = ts.compile(graph, shapes="free", sizes={"n": 3}).notes
    assert "nothing was compiled for n 3, which the model refuses: " in note
