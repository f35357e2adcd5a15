"""Models of every operator, those that ONNX does not show too, with their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import tinsmith as ts
from tests.frontends.conformance import cases, operator, reason
from tests.frontends.samples import samples
from tinsmith.graph import Graph

UNWRITTEN = {
    "Atan2": "ONNX has no such operator",
    **dict.fromkeys(
        ("BestBoxes", "GridDetection", "PlaceRoiPool", "PriorDetection", "RegionProposal"),
        "ncnn's last layers of detectors, which ONNX has none of",
    ),
    "PairwiseCoupling": "support vector machines come as compositions",
    "TreeEnsemble": "its arrays are no longer the attributes of ai.onnx.ml",
    "Refused": "a node that cannot run",
    **dict.fromkeys(
        (
            "Block", "ByteTable", "ChannelGather", "Fused", "Part", "Requantize", "Rescale",
            "RoundTo", "RowAttention", "SmallMatMul",
        ),
        "of placed graphs",
    ),
}  # fmt: skip
"""Operators of ours without a row that writes them, with the reason."""


def models() -> dict[str, list[tuple[Any, list[Any] | None]]]:
    """Operator -> models with their inputs: those of ONNX, and those that it does not show."""
    found: dict[str, list[tuple[Any, list[Any] | None]]] = {}
    for case in cases():
        if not reason(case.name):
            given = [*case.data_sets[0][0]] if case.data_sets else None
            found.setdefault(operator(case), []).append((case.model, given))
    for name, rows in samples().items():
        found.setdefault(name, []).extend((proto, [*feeds.values()]) for proto, feeds in rows)
    return found


MODELS = models()


def imported(name: str) -> Iterator[tuple[Graph, list[Any] | None]]:
    for proto, feeds in MODELS[name]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield ts.load(proto), feeds
