"""The last layers of detectors in generated code, against their references: the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinsmith as ts
from tinsmith.graph import Graph, Type
from tinsmith.ops import OPS

ANCHORS = (10.0, 14.0, 23.0, 27.0, 37.0, 58.0)


def prior_feeds(rng: Any, batch: int, boxes: int, classes: int) -> list[Any]:
    low = rng.uniform(0, 0.8, (boxes, 2))
    prior = np.concatenate([low, low + rng.uniform(0.1, 0.5, (boxes, 2))], axis=1).reshape(-1)
    rows = np.stack([prior, np.tile([0.1, 0.1, 0.2, 0.2], boxes)])[None]
    scores = np.round(rng.uniform(0, 1, (batch, boxes * classes)), 2)
    return [rng.standard_normal((batch, 4 * boxes)), scores, rows]


def proposal_feeds(rng: Any, batch: int, height: int, width: int) -> list[Any]:
    image = np.tile([height * 16, width * 16, 1], (batch, 1))
    score = np.round(rng.uniform(0, 1, (batch, 18, height, width)), 2)
    return [score, rng.standard_normal((batch, 36, height, width)) / 2, image]


def agree(op: str, feeds: list[Any], attrs: dict[str, Any], **options: Any) -> list[Any]:
    """Generated code gives the rows of the reference, and no step of it runs by reference."""
    feeds = [x.astype(np.float32) for x in feeds]
    graph = Graph(op)
    free = options.get("shapes") == "free"
    types = [
        ("N" if free and k < 2 else x.shape[0], *x.shape[1:2], *("HW"[i] if free else d
         for i, d in enumerate(x.shape[2:]))) if x.ndim == 4 else
        ("N" if free and x.shape[0] > 1 else x.shape[0], *x.shape[1:])
        for k, x in enumerate(feeds)
    ]  # fmt: skip
    values = [graph.input(f"x{k}", Type("float32", dims)) for k, dims in enumerate(types)]
    found = OPS[op](*(OPS["Mul"](v, np.float32(1)) for v in values), **attrs)
    graph.outputs = list(found) if isinstance(found, tuple) else [found]
    net = ts.compile(graph, cache=False, **options)
    want = ts.compile(graph, backend="numpy").run(feeds)
    for _ in range(2):
        for a, b in zip(net.run(feeds), want, strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    steps = net.program([x.shape for x in feeds]).plan.steps
    assert not [s.name for s in steps if s.kind == "reference"]
    return want


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2}, {"shapes": "free"}])
@pytest.mark.parametrize("limits", [(300, 100), (4, 100), (300, 3), (1, 1)])
@pytest.mark.parametrize("batch, boxes, classes", [(1, 1, 2), (1, 40, 3), (3, 17, 5), (2, 300, 2)])
def test_prior_boxes(batch, boxes, classes, limits, options):
    feeds = prior_feeds(np.random.default_rng(boxes), batch, boxes, classes)
    attrs = {"classes": classes, "candidates": limits[0], "most": limits[1], "least": 0.3}
    agree("PriorDetection", feeds, attrs, **options)
    agree("PriorDetection", feeds, attrs | {"least": 2.0}, **options)


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2}, {"shapes": "free"}])
@pytest.mark.parametrize("batch, classes, cells", [(1, 1, (1, 1)), (2, 4, (3, 5)), (3, 80, (7, 2))])
def test_grids(batch, classes, cells, options):
    rng = np.random.default_rng(classes)
    one, two = ((batch, 3 * (5 + classes), cells[0] * k, cells[1] * k) for k in (1, 2))
    attrs = {"classes": classes, "boxes": 3, "anchors": ANCHORS * 2, "least": 0.2}
    fed = [rng.standard_normal(one) * 2, rng.standard_normal(two) * 2]
    fed = fed if "shapes" not in options else fed[:1]
    third = {"scales": (32.0, 16.0)[: len(fed)], "mask": (3, 4, 5, 0, 1, 2)[: 3 * len(fed)]}
    agree("GridDetection", fed, attrs | third, **options)
    agree("GridDetection", fed, attrs | third | {"least": 1.0}, **options)
    agree("GridDetection", fed[:1], attrs | {"mask": (), "overlap": 0.7}, **options)


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2}, {"shapes": "free"}])
@pytest.mark.parametrize("batch, cells", [(1, (1, 1)), (2, (3, 5)), (1, (14, 14))])
def test_proposals(batch, cells, options):
    feeds = proposal_feeds(np.random.default_rng(3), batch, *cells)
    for candidates, most in ((6000, 300), (50, 9), (1, 1)):
        agree("RegionProposal", feeds, {"candidates": candidates, "most": most}, **options)
    agree("RegionProposal", feeds, {"least": 10_000}, **options)


def test_numbers_that_are_not_finite():
    rng = np.random.default_rng(1)
    odd = [np.nan, np.inf, -np.inf, 100.0, -100.0]
    prior, proposal = prior_feeds(rng, 2, 40, 3), proposal_feeds(rng, 2, 4, 4)
    grid = [rng.standard_normal((2, 21, 4, 4))]
    for value in odd:
        for feeds in (prior, proposal, grid):
            for x in feeds[:2]:
                x.reshape(-1)[rng.integers(0, x.size, 9)] = value
    with np.errstate(all="ignore"):
        agree("PriorDetection", prior, {"classes": 3, "least": 0.1})
        agree("RegionProposal", proposal, {})
        for more in ({}, {"scales": (32.0,)}):
            attrs = {"classes": 2, "boxes": 3, "anchors": ANCHORS, "mask": (), **more}
            agree("GridDetection", grid, attrs)


def test_references_choose_as_loops_do():
    """Equal scores stay in order of class and box, and classes do not suppress each other."""
    boxes = np.float32([[[0, 0, 4, 4], [0, 0, 4, 3], [8, 8, 9, 9], [5, 5, 7, 7], [0, 0, 4, 4]]])
    scores = np.float32([[[0.5, 0.9, np.nan, 0.5, 0.5], [0.5, 0.1, 0.9, 0.5, 0.5]]])
    rows = OPS["BestBoxes"](boxes, scores, overlap=0.5)
    assert [(int(r[0]), round(float(r[1]), 1), *map(int, r[2:4])) for r in rows[0]] == [
        (1, 0.9, 0, 0), (2, 0.9, 8, 8), (1, 0.5, 5, 5), (2, 0.5, 0, 0), (2, 0.5, 5, 5),
    ]  # fmt: skip
    few = OPS["BestBoxes"](boxes, scores, overlap=0.5, candidates=2, most=3)
    np.testing.assert_array_equal(few[0], rows[0][[0, 1, 3]])
    assert OPS["BestBoxes"](boxes, scores * np.nan, overlap=0.5).shape == (1, 0, 6)
