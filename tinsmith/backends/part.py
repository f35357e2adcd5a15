"""A part of a graph that another backend computes, as a step of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinsmith.backends import BACKENDS, Job
from tinsmith.errors import BackendFailed, TinsmithError
from tinsmith.graph import Node, shapes_agree, shown
from tinsmith.ops.control import Part


class Running:
    """Takes the place of a Part node's operator in a program: its backend compiles the body when
    this is made, and `evaluate` runs that. Raises BackendFailed where the backend fails, or gives
    results of other types than the body's outputs."""

    name = Part.name

    def __init__(self, node: Node, job: Job) -> None:
        body, backend = node.attrs["body"], node.attrs["backend"]
        self._what = f"{node.origin}: the backend {backend!r}"
        self._outputs = body.outputs
        try:
            self._runner = BACKENDS[backend].compile(body, job)
        except TinsmithError:
            raise
        except Exception as error:
            raise self._failed(f"cannot compile {len(body)} nodes", error) from error

    def evaluate(self, arrays: tuple[Any, ...], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            results = self._runner.run(arrays)
        except TinsmithError:
            raise
        except Exception as error:
            given = ", ".join(map(shown, arrays))
            raise self._failed(f"failed on {given}", error) from error
        if not isinstance(results, list | tuple) or len(results) != len(self._outputs):
            raise BackendFailed(
                f"{self._what} must give a list of {len(self._outputs)} arrays, and gave "
                f"{type(results).__name__} of {np.size(results)}"
            )
        for v, a in zip(self._outputs, results, strict=True):
            if v.dtype == object:
                continue
            if (
                not isinstance(a, np.ndarray)
                or a.dtype != v.dtype
                or not shapes_agree(v.shape, a.shape)
            ):
                found = shown(a) if isinstance(a, np.ndarray) else type(a).__name__
                raise BackendFailed(f"{self._what} gave {found} for {v.name!r}, which is {v.type}")
        return tuple(results)

    def _failed(self, what: str, error: Exception) -> BackendFailed:
        return BackendFailed(f"{self._what} {what}: {type(error).__name__}: {error}")
