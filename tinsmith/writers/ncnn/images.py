"""Writes resizing, detectors' last layers, sampling and attention as ncnn's layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinsmith.frontends.nearest import nearest, nearest_moves
from tinsmith.graph import Node
from tinsmith.writers.ncnn.writer import Writer, told, writes
from tinsmith.writers.rows import constant, inputs_of, need


@writes("Resize")
def resize(w: Writer, node: Node) -> None:
    a, (x, _, factors, _), dims = node.attrs, inputs_of(node), w.dims(node.output)
    kinds = {"nearest": 1, "linear": 2, "cubic": 3}
    where = a["coordinate_transformation_mode"]
    need(
        not (a["antialias"] or a["exclude_outside"]) and len(dims) in (2, 3),
        "it is another than ncnn's",
    )
    given: dict[str, Any] = {
        "resize_type": kinds[a["mode"]],
        "align_corner": int(where == "align_corners"),
    }
    if a["mode"] == "nearest":
        need(where == "asymmetric" and a["nearest_mode"] == "floor", "its nearest is not ncnn's")
        need(_same_nearest(x, node), "ncnn takes other elements as the nearest")
    else:
        need(
            where in ("half_pixel", "pytorch_half_pixel", "align_corners"), f"it counts by {where}"
        )
        need(a["mode"] == "linear" or a["cubic_coeff_a"] == -0.75, "its cubic is not ncnn's")
    scales = None if factors is None else factors.const
    if scales is not None and a["axes"] is not None:
        by = {axis % x.rank: f for axis, f in zip(a["axes"], scales, strict=True)}
        scales = np.array([by.get(i, 1) for i in range(x.rank)], np.float32)
    need(dims[0] == w.dims(x)[0], "it is along the outermost axis")
    letters = ("height", "width")[3 - len(dims) :]
    if scales is not None and where != "align_corners":
        given |= dict(zip((f"{c}_scale" for c in letters), scales[1 - len(dims) :], strict=True))
        given = {k: float(v) if k.endswith("scale") else v for k, v in given.items()}
    else:
        need(all(isinstance(d, int) for d in dims[1:]), "sizes are free")
        if scales is not None:
            triples = zip(w.dims(x)[1:], dims[1:], scales[1 - len(dims) :], strict=True)
            fits = all(1 in (n, m) or np.float32(n) * f == m for n, m, f in triples)
            need(fits, "between corners, ncnn takes a size with a fraction as a whole one")
        given["output_height"] = 1  # of a matrix, too: ncnn looks at both
        given |= dict(zip((f"output_{c}" for c in letters), dims[1:], strict=True))
    w.layer_of("Interp", node, given)


def _same_nearest(x: Any, node: Node) -> bool:
    """Whether ncnn takes the same nearest elements of x as a Resize, as far as sizes are known."""
    axes = range(x.rank) if node.attrs["axes"] is None else node.attrs["axes"]
    inner = [i for i, axis in enumerate(axes) if axis % x.rank > 1]
    given = [None if v is None else v.const for v in inputs_of(node)[2:]]
    parts = [None if v is None or not v.size else v[inner] for v in given]
    return nearest_moves([x.shape[axes[i]] for i in inner], parts) is None


@writes("Gather")
def nearest_elements(w: Writer, node: Node) -> None:
    """Write a Gather as an Interp layer, if its constant indices are those of resizing an axis of
    an image or a matrix to the nearest elements. Raises Inexpressible for others."""
    why = "ncnn has no layer for this operator"
    x, at = node.inputs
    places, dims = constant(at, "its places"), w.dims(node.output)
    axis = node.attrs["axis"] % (node.output.rank or 1)
    need(len(dims) in (2, 3) and axis > 1 and places.ndim == 1 and len(places), why)
    need(all(isinstance(d, int) for d in (*dims[1:], w.dims(x)[axis - 1])), why)
    need(np.array_equal(places, nearest(w.dims(x)[axis - 1], len(places))), why)
    letters = ("height", "width")[3 - len(dims) :]
    given = {"resize_type": 1, "output_height": 1}
    given |= dict(zip((f"output_{c}" for c in letters), dims[1:], strict=True))
    w.layer_of("Interp", node, given)


# ---- boxes


@writes("PriorDetection")
def prior_detection(w: Writer, node: Node) -> None:
    w.layer_of_all("DetectionOutput", node)


@writes("GridDetection")
def grid_detection(w: Writer, node: Node) -> None:
    third = bool(node.attrs["scales"])
    w.layer_of_all("Yolov3DetectionOutput" if third else "YoloDetectionOutput", node)


@writes("RegionProposal")
def proposal(w: Writer, node: Node) -> None:
    wanted = node.outputs[1].uses or node.outputs[1] in w.graph.outputs
    names = [w.blob(v) for v in inputs_of(node)]
    outputs = list(node.outputs[: 2 if wanted else 1])
    w.layer("Proposal", node.name, names, outputs, told("Proposal", node))


@writes("PlaceRoiPool")
def place_roi_pool(w: Writer, node: Node) -> None:
    rows, columns = node.attrs["pooled_shape"]
    w.layer_of_all("PSROIPooling", node, {"pooled_width": columns, "pooled_height": rows})


@writes("GridSample")
def grid_sample(w: Writer, node: Node) -> None:
    a = node.attrs
    kinds = {"linear": 1, "bilinear": 1, "nearest": 2, "cubic": 3, "bicubic": 3}
    edges = {"zeros": 1, "border": 2, "reflection": 3}
    given = {"sample_type": kinds[a["mode"]], "padding_mode": edges[a["padding_mode"]]}
    given |= {"align_corner": int(a["align_corners"])}
    w.layer_of_all("GridSample", node, given)


@writes("RotaryEmbedding")
def rotary(w: Writer, node: Node) -> None:
    a, (*values, places) = node.attrs, inputs_of(node)
    plain = places is None and not a["rotary_embedding_dim"] and a["num_heads"] is None
    need(plain, "it turns a part of the elements, or at told positions")
    given = {"interleaved": int(a["interleaved"])}
    w.layer("RotaryEmbed", node.name, [w.blob(v) for v in values], [node.output], given)


@writes("Attention")
def attention(w: Writer, node: Node) -> None:
    a, values = node.attrs, inputs_of(node)
    alone = all(v is None for v in values[4:]) and len(node.outputs) == 1
    ranks = all(v is not None and v.rank == 4 for v in values[:3])
    bare = (
        not (a["is_causal"] or a["softcap"])
        and a["left_window_size"] == a["right_window_size"] == -1
    )
    need(alone and ranks and bare, "it has caches, windows, or heads that are not apart")
    mask = values[3] if len(values) > 3 else None
    given: dict[str, Any] = {"attn_mask": int(mask is not None), "scale": float(a["scale"] or 0)}
    names = [w.blob(v) for v in values[:4] if v is not None]
    w.layer("SDPA", node.name, names, [node.output], given)
