"""Inputs that are fixed when a model is compiled: `compile(model, fixed={"sr": 16000})`.

They become constants before any pass runs. So all that depends on them alone is folded: branches
are taken, shapes are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tinsmith.errors import InputNameError, OptionError, suggest
from tinsmith.graph import Array, Graph, Type
from tinsmith.runtime.inputs import as_input


def fixed_values(fixed: Any) -> dict[str, Array]:
    """Return the option `fixed` of `compile` as name -> array; {} for None. Raises OptionError."""
    if fixed is None:
        return {}
    try:
        if any(isinstance(value, np.ma.MaskedArray) for value in fixed.values()):
            raise ValueError("a masked array has elements that are not known")
        return {str(name): np.array(value) for name, value in fixed.items()}
    except (AttributeError, ValueError) as error:
        raise OptionError(
            f"fixed must be a dict of numbers or arrays by the names of inputs, not {fixed!r}"
        ) from error


def with_fixed(graph: Graph, fixed: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """Return (graph, arrays): a copy of the graph in which the inputs named in `fixed` are
    constants instead, and their values in the inputs' types, by name. If `fixed` is empty: the
    graph itself and {}. Raises InputError."""
    types = {v.name: v.type for v in graph.inputs}
    if unknown := [name for name in fixed if name not in types]:
        raise InputNameError(
            f"{graph.name} has no input named {unknown[0]!r} to be fixed."
            f"{suggest(unknown[0], types)} It takes {', '.join(types) or 'none'}."
        )
    arrays = {n: as_input(graph.name, n, value, types[n]) for n, value in fixed.items()}
    if not arrays:
        return graph, {}
    copy = graph.clone({n: Type(a.dtype, a.shape) for n, a in arrays.items()})
    for v in copy.inputs:
        v.const = arrays.get(v.name)
    copy.inputs = [v for v in copy.inputs if v.const is None]
    return copy, arrays


def given_key(fixed: Mapping[str, Array], reading: Mapping[str, Any]) -> str:
    """Return text for the key of stored programs, different for different values of fixed inputs or
    options of reading the model."""
    rows = sorted((name, a.dtype.str, a.shape, a.tolist()) for name, a in fixed.items())
    return (repr(rows) if rows else "") + (repr(sorted(reading.items())) if reading else "")
