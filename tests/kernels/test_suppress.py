"""Non-maximum suppression against the reference: what is kept, in which order, and how many."""

from __future__ import annotations

import numpy as np
import pytest

import tinsmith as ts
from tests.free import compare
from tests.kernels.harness import check, levels
from tinsmith import ops
from tinsmith.errors import DataError
from tinsmith.graph import Graph, Type

RNG = np.random.default_rng(6)
SHAPES = [(1, 1, 1), (1, 1, 2), (1, 3, 5), (2, 1, 33), (1, 2, 300), (3, 4, 40)]


def some(batch, classes, boxes, size=0.4):
    corner = RNG.uniform(0, 1, (batch, boxes, 2))
    boxes_ = np.concatenate([corner, corner + RNG.uniform(0, size, corner.shape)], axis=2)
    scores = RNG.uniform(0, 1, (batch, classes, boxes))
    return boxes_.astype(np.float32), scores.astype(np.float32)


def suppressed(boxes, scores, most, overlap=None, least=None, target="host", consts=(2,), **attrs):
    numbers = [np.array([most], np.int64)]
    numbers += [None if n is None else np.array([n], np.float32) for n in (overlap, least)]
    with np.errstate(all="ignore"):
        check("NonMaxSuppression", [boxes, scores, *numbers], attrs, kernel="suppress",
              target=target, consts=consts)  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("most, overlap, least",
                         [(1, 0.3, None), (3, None, 0.4), (17, 0.5, 0.4), (1000, 0.9, None),
                          (1000, None, 2.0)])  # fmt: skip
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, most, overlap, least, target):
    suppressed(*some(*shape), most, overlap, least, target)


@pytest.mark.parametrize("target", levels())
def test_numbers_that_only_the_run_knows(target):
    for most in (0, -1, 2, 100):
        suppressed(*some(2, 3, 20), most, 0.4, 0.1, target, consts=())


@pytest.mark.parametrize("target", levels())
def test_centres_and_flipped_corners(target):
    boxes, scores = some(1, 2, 70)
    suppressed(boxes, scores, 50, 0.3, 0.2, target, center_point_box=1)
    boxes[:, ::2] = boxes[:, ::2, [2, 3, 0, 1]]
    boxes[:, ::3] = boxes[:, ::3, [0, 3, 2, 1]]
    suppressed(boxes, scores, 50, 0.3, 0.2, target)
    boxes[..., 2:] *= np.sign(RNG.standard_normal(boxes[..., 2:].shape)).astype(np.float32)
    suppressed(boxes, scores, 50, 0.3, 0.2, target, center_point_box=1)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("least", [None, -1.0, 0.0, 3.0, np.nan])
def test_ties_nan_and_signed_zeros(least, target):
    boxes, scores = some(1, 3, 100, size=0.05)
    scores = np.round(scores * 4) - 1
    scores[0, 0, ::7] = np.nan
    scores[0, 1, ::5], scores[0, 1, 1::5] = -0.0, 0.0
    scores[0, 2, ::9], scores[0, 2, 1::9] = np.inf, -np.inf
    suppressed(boxes, scores, 100, 0.5, least, target)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("overlap", [-1.0, 0.0, 0.25, 0.5, 1.0, np.nan])
def test_thresholds_at_the_very_overlap(overlap, target):
    """Overlaps of exactly 1/4, 1/2 and 1; boxes that only touch, and empty ones."""
    rows = [[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 2, 2], [0, 0, 4, 4], [4, 0, 8, 4], [1, 1, 1, 1],
            [1, 1, 1, 3], [0, 0, 8, 4]]  # fmt: skip
    boxes = np.array([rows], np.float32)
    for scores in (np.arange(8), np.arange(8)[::-1], np.ones(8)):
        suppressed(boxes, scores[None, None].astype(np.float32), 8, overlap, None, target)


@pytest.mark.parametrize("target", levels())
def test_boxes_that_are_not_finite(target):
    boxes, scores = some(1, 1, 60)
    for value in (np.nan, np.inf, -np.inf):
        boxes[0, RNG.integers(0, 60, 8), RNG.integers(0, 4, 8)] = value
    suppressed(boxes, scores, 60, 0.2, None, target)
    boxes, scores = some(1, 1, 20)
    suppressed(boxes * np.float32(1e30), scores, 20, 0.2, None, target)


def best(boxes, scores, labels=None, target="host", overlap=0.4, **attrs):
    with np.errstate(all="ignore"):
        check("BestBoxes", [boxes, scores, labels], {"overlap": overlap, **attrs},
              kernel="best_boxes", target=target)  # fmt: skip


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize(
    "candidates, most", [(None, None), (5, None), (None, 3), (7, 4), (1000, 1)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_best_boxes(shape, candidates, most, target):
    boxes, scores = some(*shape)
    scores[scores < 0.3] = np.nan
    labels = RNG.integers(0, 9, boxes.shape[:2]).astype(np.float32)
    best(boxes, scores, None, target, candidates=candidates, most=most)
    best(boxes * 9, scores, labels, target, candidates=candidates, most=most, regions=True)


@pytest.mark.parametrize("target", levels())
def test_best_boxes_of_equal_odd_and_no_scores(target):
    boxes, scores = some(4, 3, 60, size=0.1)
    scores = np.round(scores * 4) - 1
    scores[0, 1, ::5], scores[0, 1, 1::5] = -0.0, 0.0
    scores[1, 2, ::9], scores[1, 2, 1::9] = np.inf, -np.inf
    scores[2] = np.nan
    scores[3, :, 1:] = np.nan
    boxes[0, ::2] = boxes[0, ::2][:, [2, 3, 0, 1]]
    boxes[0, RNG.integers(0, 60, 8), RNG.integers(0, 4, 8)] = np.nan
    for overlap in (-1.0, 0.0, 0.5, np.nan):
        best(boxes, scores, None, target, overlap, most=50)
    best(boxes, np.full_like(scores, np.nan), None, target)


def detector(batch, boxes, classes=3):
    """Suppression between native nodes; what depends on the count comes after it."""
    g = Graph("detector")
    x = g.input("boxes", Type("float32", (batch, boxes, 4)))
    s = g.input("scores", Type("float32", (batch, classes, boxes)))
    most = g.input("most", Type("int64", (1,)))
    scores = ops.Sigmoid(s)
    rows = ops.NonMaxSuppression(ops.Mul(x, np.float32(2)), scores, most, np.float32([0.4]))
    picked = ops.Gather(rows, np.int64([0, 2]), axis=1)
    g.outputs = [rows, ops.GatherND(ops.Transpose(scores, perm=(0, 2, 1)), picked), ops.Exp(scores)]
    return g


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch, boxes", [(1, 1), (2, 50), (2, 0)])
def test_plans(batch, boxes, threads):
    net = ts.compile(detector(batch, boxes), threads=threads)
    plain = ts.compile(detector(batch, boxes), backend="numpy")
    assert ("suppress" in {s.kernel for s in net.program().plan.steps}) == (boxes > 0)
    for most in (0, 1, 7, 50):
        x, s = some(batch, 3, boxes)
        feeds = {"boxes": x, "scores": s, "most": np.array([most])}
        got, want = net(**feeds), plain(**feeds)
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_may_say_how_many_rows_there_are(threads):
    """Then what follows is native too; another number is an error."""
    g = Graph("detector")
    x, s = (
        g.input("boxes", Type("float32", (1, 2, 4))),
        g.input("scores", Type("float32", (1, 1, 2))),
    )
    rows = ops.NonMaxSuppression(x, s, np.int64([5]), np.float32([0.5]))
    rows.type = Type("int64", (1, 3))
    g.outputs = [rows, ops.Mul(rows, np.int64(2))]
    net = ts.compile(g, threads=threads)
    assert {step.kind for step in net.program().plan.steps} == {"native"}
    near, far = (
        np.float32([[[0, 0, 1, 1], [0, 0, 1, 1]]]),
        np.float32([[[0, 0, 1, 1], [2, 2, 3, 3]]]),
    )
    for best in (0, 1):
        scores = np.float32([[[best == 0, best == 1]]])
        for got, times in zip(net(near, scores).values(), (1, 2), strict=True):
            np.testing.assert_array_equal(got, [[0, 0, best * times]])
    with pytest.raises(DataError, match="gives 2, where 1 were planned"):
        net(far, scores)


def test_a_number_of_rows_that_cannot_be():
    g = Graph("detector")
    x, s = (
        g.input("boxes", Type("float32", (1, 2, 4))),
        g.input("scores", Type("float32", (1, 1, 2))),
    )
    rows = ops.NonMaxSuppression(x, s, np.int64([5]), np.float32([0.5]))
    rows.type = Type("int64", (3, 3))
    g.outputs = [rows]
    net = ts.compile(g)
    with pytest.raises(DataError, match="a size that the model declares"):
        net(*some(1, 1, 2))


def test_results_stay_when_the_net_runs_again():
    net = ts.compile(detector(1, 30))
    x, s = some(1, 3, 30)
    first = net(x, s, np.array([5]))
    kept = {name: np.array(a) for name, a in first.items()}
    net(*some(1, 3, 30), np.array([30]))
    for name, a in kept.items():
        np.testing.assert_array_equal(first[name], a)


def test_one_program_for_fewer_boxes_than_are_kept_and_for_more():
    g = Graph("detector")
    x, s = g.input("x", Type("float32", (1, "n", 4))), g.input("s", Type("float32", (1, 1, "n")))
    g.outputs = [ops.NonMaxSuppression(x, s, np.int64([50]), np.float32([0.5]))]
    calls = [{"n": n} for n in (20, 70, 50, 3)]
    made = compare(g, calls, lambda sizes: dict(zip("xs", some(1, 1, sizes["n"]), strict=True)))
    assert (made.calls, made.programs, made.reference) == (4, 1, [])
