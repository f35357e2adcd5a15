"""Layers of ncnn for which our graphs have several nodes: copies into a part of a value, diagonals,
spectra, regions of pictures."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np

from tinsmith.frontends.ncnn.node import LETTERS
from tinsmith.frontends.ncnn.pool import PAD_MODES, normal_of, window_of
from tinsmith.graph import Array, Node, Value
from tinsmith.writers.ncnn.several import embedding, maker, source
from tinsmith.writers.ncnn.writer import Writer, claims, told, writes
from tinsmith.writers.rows import Inexpressible, constant, need, need_defaults, numbers, present

# ---- parts and diagonals


@claims("Where")
def copy_to(w: Writer, node: Node) -> None:
    """Claim where(mask, pad(part), x) as a CopyTo layer, which copies a part into x. The part is
    padded to the size of x, and the constant mask is true at its place. Raises Inexpressible for
    others."""
    mask, x = constant(node.inputs[0], "the mask"), present(node.inputs[2], "it is no part")
    padded = source(w, node.inputs[1], "Pad")
    part, pads = padded.operand(0), constant(padded.inputs[1], "the padding")
    need(len(padded.inputs) == 2, "it is no part")
    sizes, small = w.dims(x), w.dims(part)
    starts, behind = pads.reshape(2, -1).tolist()
    need(padded.attrs["mode"] == "constant" and mask.shape == (1, *sizes), "it is no part")
    need(starts[0] == behind[0] == 0 and min(starts + behind) >= 0, "its padding is of the batch")
    wanted = np.zeros((1, *sizes), np.bool_)
    wanted[(0, *(slice(s, s + n) for s, n in zip(starts[1:], small, strict=True)))] = True
    need((mask == wanted).all(), "its mask is not of the part")
    given = {f"{c}offset": s for c, s in zip(LETTERS[len(sizes)], starts[1:], strict=True)}
    w.taken.add(padded)
    w.claimed[node] = lambda: w.layer(
        "CopyTo", node.name, [w.blob(x, len(sizes)), w.blob(part)], [node.output], given
    )


@claims("Slice")
def local_norm(w: Writer, node: Node) -> None:
    """Claim an LRN of even size between two reversals of channels as an LRN layer: in ncnn the
    larger half of an even window lies before a channel, not behind it. Raises Inexpressible for
    others."""
    middle = source(w, node.inputs[0], "LRN")
    before = source(w, middle.inputs[0], "Slice")
    for part in (node, before):
        start, end, axis, step = (numbers(v, "its part") for v in part.inputs[1:])
        need((start, axis, step) == ((-1,), (1,), (-1,)) and end[0] < -(1 << 62), "no reverse")
    need(middle.attrs["size"] % 2 == 0, "its window has a middle")
    x, given = before.inputs[0], told("LRN", middle)
    w.claim_as(node, {middle, before}, "LRN", [x], [node.output], given, middle.name)


@claims("Gather")
def by_places(w: Writer, node: Node) -> None:
    """Claim a Gather as an Embed layer if it takes rows of a table, else as a Diag layer. Raises
    Inexpressible if it is neither."""
    with suppress(Inexpressible):
        return embedding(w, node)
    return diagonal(w, node)


def diagonal(w: Writer, node: Node) -> None:
    """Claim a Gather with constant indices as a Diag layer: it makes a matrix with a vector on its
    diagonal, or takes the diagonal of a matrix. Raises Inexpressible for other indices."""
    places = constant(node.inputs[1], "the places")
    need(node.attrs["axis"] == 1 and places.ndim in (1, 2), "it is no diagonal")
    before = source(w, node.inputs[0], "Pad" if places.ndim == 2 else "Reshape")
    x = before.operand(0)
    sizes = w.dims(x)
    need(len(sizes) == 3 - places.ndim and all(isinstance(n, int) for n in sizes), "no diagonal")
    if places.ndim == 2:
        pads = [numbers(v, "the padding") for v in before.inputs[1:]]
        need(pads == [(0, 0, 0, 1)], "no zero is beside the vector")
        need_defaults(before)
        k = len(places) - sizes[0]
        wanted = {n: np.diag(np.arange(sizes[0]) + 1, n) for n in (k, -k)}
        places = np.where(places == sizes[0], 0, places + 1)
    else:
        whole = np.arange(sizes[0] * sizes[1]).reshape(sizes)
        wanted = {n: np.diag(whole, n) for n in range(1 - sizes[0], sizes[1])}
    found = [n for n, a in wanted.items() if np.array_equal(a, places)]
    need(found, "its places are no diagonal")
    w.claim_as(node, {before}, "Diag", [x], [node.output], {"diagonal": found[0]})


@writes("Einsum")
def einsum(w: Writer, node: Node) -> None:
    """Write an Einsum in which every term begins with the letter of the batch. ncnn has no batch:
    the letter is left out, and others become i, j, ... Raises Inexpressible for other equations."""
    left, arrow, right = node.attrs["equation"].replace(" ", "").partition("->")
    terms = [*left.split(","), right]
    batch = terms[0][:1]
    letters = sorted({c for term in terms for c in term[1:]})
    need(arrow and all(c.isalpha() for c in letters), "its equation tells no result")
    need(all(term[:1] == batch and batch not in term[1:] for term in terms), "it sums the batch")
    need(len(letters) <= 17, "its equation has too many letters")
    names = str.maketrans({c: chr(ord("i") + i) for i, c in enumerate(letters)})
    *given, result = (term[1:].translate(names) for term in terms)
    need(result, "its result is one number")
    codes = tuple(map(ord, f"{','.join(given)}->{result}"))
    blobs = [w.blob(v) for v in node.inputs]
    w.layer("Einsum", node.name, blobs, [node.output], {"equation": codes})


# ---- regions of pictures


def _counted(v: Value | None, x: Value | None) -> set[Node]:
    """Check that region i lies in image i of x: v, the number of each region's image, is 0, 1, ...
    up to the batch of x. Return the nodes that compute v; none if it is constant. Raises
    Inexpressible for other values."""
    assert v is not None and x is not None and x.shape
    if v.const is not None:
        need(v.const.tolist() == list(range(len(v.const))), "its regions are of other pictures")
        return set()
    range_ = maker(v, "Range")
    start, limit, step = range_.inputs
    node = maker(limit, "Squeeze", "Reshape", "Shape")
    taken = {range_, node}
    if "sizes" not in node.op.traits:
        node = maker(node.inputs[0], "Shape")
    whole = node.inputs[0] is x and (node.attrs["start"], node.attrs["end"]) == (0, 1)
    ends = [numbers(n, "a place") for n in (start, step)]
    need(whole and ends == [(0,), (1,)], "its regions are of other pictures")
    return taken | {node}


def _region(
    w: Writer, node: Node, type: str, rois: Value | None, taken: set[Node], **given: Any
) -> None:
    """Claim a pooling of regions as a layer `type` with parameters `given`. `rois`: the value with
    four edges of each region; `taken`: nodes that the layer replaces, too."""
    edges = None if rois is None or not rois.shape else rois.shape[-1]
    need(edges == 4, "its regions have no four edges")
    w.dims(rois)
    given |= told(type, node)
    w.claim_as(node, taken, type, [node.inputs[0], rois], [node.output], given)


@claims("RoiAlign")
def roi_align(w: Writer, node: Node) -> None:
    x, rois, places = node.inputs
    a = node.attrs
    need_defaults(
        node, "output_height", "output_width", "sampling_ratio", "spatial_scale",
        "coordinate_transformation_mode", "cut",
    )  # fmt: skip
    _region(
        w, node, "ROIAlign", rois, _counted(places, x),
        version=int(not a["cut"]), aligned=int(a["coordinate_transformation_mode"] == "half_pixel"),
    )  # fmt: skip


@claims("MaxRoiPool")
def roi_pool(w: Writer, node: Node) -> None:
    joined = source(w, node.inputs[1], "Concat")
    need(joined.attrs["axis"] in (1, -1) and len(joined.inputs) == 2, "no column of places")
    column, rois = joined.inputs
    taken = {joined}
    if column is not None and column.const is None:
        upright = source(w, column, "Unsqueeze")
        cast = source(w, upright.inputs[0], "Cast")
        taken |= {upright, cast, *_counted(cast.inputs[0], node.inputs[0])}
    else:
        places = constant(column, "the column of places")
        need((places[:, 0] == np.arange(len(places))).all(), "its regions are of other pictures")
    rows, columns = node.attrs["pooled_shape"]
    _region(w, node, "ROIPooling", rois, taken, pooled_height=rows, pooled_width=columns)


# ---- spectra


def _windows(array: Array, n: int) -> dict[str, Any]:
    """Return the parameters (type and length) with which ncnn makes the window function `array` of
    n elements. Raises Inexpressible if there are none."""
    for kind, length in product(range(3), range(n, 0, -1)):
        if np.array_equal(window_of(n, length, kind), array):
            return {"window_type": kind, "winlen": length}
    raise Inexpressible("its window is none of ncnn's")


@claims("STFT")
def spectrogram(w: Writer, node: Node) -> None:
    """Claim an STFT with a constant window as a Spectrogram layer, together with the padding before
    it and, after it, the factor, the magnitude or power, and the transpose. Raises Inexpressible
    for others."""
    signal, hop, window, length = node.inputs
    n = int(constant(length, "the length"))
    array = constant(window, "the window")
    upright = source(w, signal, "Unsqueeze")
    need(numbers(upright.inputs[1], "the axis") == (2,), "no signal")
    x, taken = upright.inputs[0], {upright}
    given: dict[str, Any] = {"n_fft": n, "hoplen": int(constant(hop, "the step")), "center": 0}
    given |= _windows(array, n) | {"onesided": int(node.attrs["onesided"])}
    with suppress(Inexpressible):
        before, middle = source(w, x, "Pad"), (0, n // 2, 0, n // 2)
        edges, mode = numbers(before.inputs[1], "the padding"), before.attrs["mode"]
        need(len(before.inputs) == 2 and edges == middle and mode in PAD_MODES, "other edges")
        given |= {"center": 1, "pad_type": PAD_MODES.index(mode)}
        x = before.inputs[0]
        taken.add(before)
    y = node.output
    if scale := w.only_user(y, "Mul"):
        factor = constant(next(v for v in scale.inputs if v is not y), "the factor")
        kinds = [k for k in (1, 2) if np.float32(normal_of(k, array, n)) == factor]
        need(factor.size == 1 and kinds, "its factor is none of ncnn's")
        given["normalized"] = kinds[0]
        taken.add(scale)
        y = scale.output
    if size := w.only_user(y, "Reduce"):
        powers = {"l2": 1, "sumsquare": 2}
        whole = numbers(size.inputs[1], "the axis") == (3,) and not size.attrs["keepdims"]
        need(whole and size.attrs["kind"] in powers, "no power")
        given["power"] = powers[size.attrs["kind"]]
        taken.add(size)
        y = size.output
    turned = present(w.only_user(y, "Transpose"), "it is not turned")
    need(turned.attrs["perm"] in ((0, 2, 1), (0, 2, 1, 3)), "it is not turned")
    taken.add(turned)
    w.claim_as(node, taken, "Spectrogram", [x], [turned.output], given, turned.name)
