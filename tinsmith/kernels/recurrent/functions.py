"""The activations of recurrent layers: sigmoid and tanh, or traced from what a layer names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinsmith.codegen.builder import Val
from tinsmith.codegen.expr import Expr, emit_expr
from tinsmith.codegen.functions import unsupported
from tinsmith.codegen.logistic import sigmoid
from tinsmith.codegen.math import tanh
from tinsmith.kernels._kernel import Site, Skip
from tinsmith.kernels.trace import Maker, Traced
from tinsmith.ops.recurrent import functions

Function = Callable[[Val], Val]

USUAL: dict[str, Function] = {"sigmoid": sigmoid, "tanh": tanh}


def gate_functions(site: Site, plain: Sequence[str], count: int) -> tuple[Function, ...]:
    """The functions that emit the activations of a layer, one for each of `plain`, the names that
    hold where the layer names none. Raises Skip if one has no native code, or if the `count`
    directions differ."""
    names = tuple(a.lower() for a in site.attr("activations") or tuple(plain) * count)
    clip = site.attr("clip")
    if clip is None and names == tuple(plain) * count:
        return tuple(USUAL[name] for name in plain)
    maker = Maker()
    leaf = Traced(maker, maker.leaf(0, np.dtype(np.float32)))
    found: list[Expr] = []
    alphas, betas = site.attr("activation_alpha"), site.attr("activation_beta")
    each = len(plain)
    for name, function in zip(names, functions(names, alphas, betas, clip, each), strict=True):
        try:
            expr = function(leaf).expr  # type: ignore[arg-type]
        except Skip as why:
            raise Skip(f"the activation {name}: {why}") from None
        if reason := unsupported(expr):
            raise Skip(f"the activation {name}: {reason}")
        found.append(expr)
    if any(expr is not found[i % each] for i, expr in enumerate(found)):
        raise Skip(f"the directions have different activations: {', '.join(names)}")
    return tuple(_emitted(expr) for expr in found[:each])


def _emitted(expr: Expr) -> Function:
    return lambda x: emit_expr(x.b, expr, [x])
