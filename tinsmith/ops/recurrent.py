"""RNN, GRU and LSTM over whole sequences, with everything ONNX allows.

Weights may be integers of 8 or 16 bits: then `w_scale` and `r_scale` [D,gates*H] are the scales of
the rows of `w` and `r`. Only passes make such nodes, from DequantizeLinear before the weights.
Shapes: D directions, T time steps, N batch, I inputs, H hidden elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tinsmith.graph import Array, Node, Type, Value, agree, shapes_agree
from tinsmith.ops._dims import fresh
from tinsmith.ops._op import need, need_one_of, op
from tinsmith.ops._rules import INTS, need_dtype, need_length_data, need_lengths, need_same
from tinsmith.ops._weights import Weights
from tinsmith.ops.precision import widen
from tinsmith.ops.quant import DynamicQuantizeLinear
from tinsmith.sizes import NUMBER

Function = Callable[[Array], Array]


# name: (function of (x, alpha, beta), default alpha, default beta); None: it takes no such number
ACTIVATIONS: dict[str, tuple[Callable[..., Array], float | None, float | None]] = {
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), None, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, None),
}


def functions(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None,
    clip: float | None, each: int,
) -> list[Function]:  # fmt: skip
    """The activation functions of a recurrent layer, in order of `names`: `each` of them for every
    direction. The numbers in `alphas` (`betas`) go in order to the functions that take an alpha
    (beta), defaults to the rest. Arguments are clipped to [-clip, clip], but not those of the third
    function of a direction (an LSTM's, of the cell), as in ONNX Runtime."""
    alpha, beta = iter(alphas or ()), iter(betas or ())

    def one(place: int, name: str) -> Function:
        f, a, b = ACTIVATIONS[name.lower()]
        a = None if a is None else float(next(alpha, a))
        b = None if b is None else float(next(beta, b))
        bound = np.inf if clip is None or place % each == 2 else clip
        return lambda x: f(np.clip(x, -bound, bound), a, b).astype(x.dtype, copy=False)

    return [one(place, name) for place, name in enumerate(names)]


def _by_direction(
    default: Sequence[str], direction: str, names: Sequence[str] | None, *rest: Any
) -> list[list[Function]]:
    """The activation functions of each direction: of `names`, or, if that is None, of `default`
    (the names for one direction). `rest` are alphas, betas and clip, as `functions` takes them."""
    count = 2 if direction == "bidirectional" else 1
    every = functions(names or tuple(default) * count, *rest, each=len(default))
    return [every[d * len(default) : (d + 1) * len(default)] for d in range(count)]


def _real(w: Array, scale: Array | None) -> Array:
    """Weights [D,gates*H,...] multiplied by their scales [D,gates*H]; unchanged without scales."""
    return w if scale is None else w.astype(scale.dtype) * scale[..., None]


def _rounded(x: Array) -> Array:
    """x quantised by DynamicQuantizeLinear, to 256 levels, and dequantised again."""
    low, scale, zero = DynamicQuantizeLinear.reference(x)
    return (low.astype(np.float32) - zero) * scale


StepFunction = Callable[[Array, list[Array]], list[Array]]


def _run(
    x: Array, lens: Array | None, states: list[Array], step: StepFunction, backward: bool
) -> tuple[Array, list[Array]]:
    """Run one direction of a recurrent layer: its outputs [T,N,H], and its last states [N,H] each.
    x [T,N,gates*H] are the inputs times their weights, `step(x[t], states)` gives the new states,
    of which the first is the output. `backward`: each sequence runs from its last step to its
    first; output t is still that of x[t].

    After the end of a sequence (`lens` [N]; None: all have T steps) its outputs are 0, and its
    states stay; those of a sequence without steps are 0.
    """
    steps, n = x.shape[:2]
    y = np.zeros((steps, n, states[0].shape[-1]), x.dtype)
    order = range(steps - 1, -1, -1) if backward else range(steps)
    if lens is not None:
        states = [np.where((lens > 0)[:, None], s, np.zeros_like(s)) for s in states]
    for t in order:
        new = step(x[t], states)
        if lens is None:
            states, y[t] = new, new[0]
        else:
            alive = (t < lens)[:, None]
            states = [np.where(alive, a, b) for a, b in zip(new, states, strict=True)]
            y[t] = np.where(alive, new[0], 0)
    return y, states


def _recurrent(
    make_step: Callable[[int, Array, Array, Array], tuple[StepFunction, Array]], x: Array,
    weights: tuple[Array, Array, Array | None], lens: Array | None,
    initial: Sequence[Array | None], direction: str, layout: int,
) -> tuple[Array, ...]:  # fmt: skip
    """Run all directions of a recurrent layer: (y, last state, ...) in the shapes of the operators.

    `weights` are the operands w, r and b; `initial` are the first states, None for zeros.
    make_step(d, r[d]^T, wb[d], rb[d]), where wb and rb are the halves of b, returns for direction d
    the `step` for `_run`, and the bias that is added to x w[d]^T.
    """
    w, r, b = weights
    dtype, wide = x.dtype, widen(x.swapaxes(0, 1) if layout else x)
    if lens is not None:
        need_length_data(lens, len(wide))
    (directions, rows, hidden), n = r.shape, wide.shape[1]
    biases = np.zeros((directions, 2 * rows), wide.dtype) if b is None else widen(b)
    starts = [
        np.zeros((directions, n, hidden), wide.dtype)
        if s is None
        else widen(s.swapaxes(0, 1) if layout else s)
        for s in initial
    ]
    ys, lasts = [], []
    for d in range(directions):
        wb, rb = np.split(biases[d], 2)
        step, bias = make_step(d, widen(r[d]).T, wb, rb)
        projected = wide @ widen(w[d]).T + bias
        backward = direction == "reverse" or d == 1
        y, last = _run(projected, lens, [s[d] for s in starts], step, backward)
        ys.append(y)
        lasts.append(last)
    y = np.stack(ys, axis=1)
    finals = [np.stack(states) for states in zip(*lasts, strict=True)]
    if layout:
        y, finals = y.transpose(2, 0, 1, 3), [f.swapaxes(0, 1) for f in finals]
    return tuple(np.ascontiguousarray(v.astype(dtype, copy=False)) for v in (y, *finals))


@op()
def RNN(
    x, w, r, b=None, sequence_lens=None, initial_h=None, w_scale=None, r_scale=None, *,
    hidden_size=None, direction="forward", activations=None, activation_alpha=None,
    activation_beta=None, clip=None, layout=0,
):  # fmt: skip
    """h = f(x w^T + wb + h r^T + rb), for every step; returns (all h, last h)

    x [T,N,I], w [D,H,I], r [D,H,H], b [D,2H]; y [T,D,N,H], y_h [D,N,H]; layout 1 puts N first.
    """
    rest = activations, activation_alpha, activation_beta, clip
    fs = _by_direction(("Tanh",), direction, *rest)

    def make(d: int, rd: Array, wb: Array, rb: Array) -> tuple[StepFunction, Array]:
        (f,) = fs[d]
        return lambda xt, s: [f(xt + s[0] @ rd)], wb + rb

    weights = _real(w, w_scale), _real(r, r_scale), b
    return _recurrent(make, x, weights, sequence_lens, [initial_h], direction, layout)


@op()
def GRU(
    x, w, r, b=None, sequence_lens=None, initial_h=None, w_scale=None, r_scale=None, *,
    hidden_size=None, direction="forward", activations=None, activation_alpha=None,
    activation_beta=None, clip=None, layout=0, linear_before_reset=False,
):  # fmt: skip
    """z, q = f(x w^T + wb + h r^T + rb); n = g(x w^T + wb + (q*h) r^T + rb); h = (1-z)*n + z*h

    linear_before_reset: n = g(x w^T + wb + q*(h r^T + rb)). Gates are ordered z, q, n; w [D,3H,I],
    r [D,3H,H], b [D,6H]; returns (all h [T,D,N,H], last h [D,N,H]); layout 1 puts N first.
    """
    hidden = r.shape[-1]
    rest = activations, activation_alpha, activation_beta, clip
    fs = _by_direction(("Sigmoid", "Tanh"), direction, *rest)

    def make(d: int, rd: Array, wb: Array, rb: Array) -> tuple[StepFunction, Array]:
        f, g = fs[d]
        gates, last = rd[:, : 2 * hidden], rd[:, 2 * hidden :]
        bias, inner = wb + rb, np.zeros_like(rb[2 * hidden :])
        if linear_before_reset:
            bias, inner = np.r_[(wb + rb)[: 2 * hidden], wb[2 * hidden :]], rb[2 * hidden :]

        def step(xt: Array, s: list[Array]) -> list[Array]:
            h = s[0]
            zq = f(xt[:, : 2 * hidden] + h @ gates)
            z, q = zq[:, :hidden], zq[:, hidden:]
            back = q * (h @ last + inner) if linear_before_reset else (q * h) @ last
            n = g(xt[:, 2 * hidden :] + back)
            return [(1 - z) * n + z * h]

        return step, bias

    weights = _real(w, w_scale), _real(r, r_scale), b
    return _recurrent(make, x, weights, sequence_lens, [initial_h], direction, layout)


@op()
def LSTM(
    x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, w_scale=None,
    r_scale=None, *, hidden_size=None, direction="forward", activations=None,
    activation_alpha=None, activation_beta=None, clip=None, layout=0, input_forget=False,
    rounded=False,
):  # fmt: skip
    """i, f = s(.. + p*c); c = f*c + i*g(..); o = s(.. + p*c); h = o*t(c), .. = x w^T + h r^T + b

    Gates are ordered i, o, f, g and peepholes i, o, f; w [D,4H,I], r [D,4H,H], b [D,8H], p [D,3H];
    returns (all h [T,D,N,H], last h [D,N,H], last c [D,N,H]); layout 1 puts N first;
    input_forget: f = 1 - i. rounded: all of x, and h before each step, are rounded to 256 levels,
    as by DynamicQuantizeLinear.
    """
    rest = activations, activation_alpha, activation_beta, clip
    fs = _by_direction(("Sigmoid", "Tanh", "Tanh"), direction, *rest)

    def make(d: int, rd: Array, wb: Array, rb: Array) -> tuple[StepFunction, Array]:
        f, g, t = fs[d]
        zero = np.zeros(3 * r.shape[-1], rd.dtype)
        pi, po, pf = np.split(zero if p is None else widen(p[d]), 3)

        def step(xt: Array, s: list[Array]) -> list[Array]:
            h, c = _rounded(s[0]) if rounded else s[0], s[1]
            gi, go, gf, gc = np.split(xt + h @ rd, 4, axis=1)
            i = f(gi + pi * c)
            forget = 1 - i if input_forget else f(gf + pf * c)
            c = forget * c + i * g(gc)
            return [f(go + po * c) * t(c), c]

        return step, wb + rb

    initial, weights = [initial_h, initial_c], (_real(w, w_scale), _real(r, r_scale), b)
    x = _rounded(x) if rounded else x
    return _recurrent(make, x, weights, sequence_lens, initial, direction, layout)


# ---- types


def _types(
    names: Sequence[str], gates: int, per_direction: int, *values: Value | None, **attrs: Any
) -> tuple[Type, ...]:
    """The output types of a recurrent layer of `gates` gates: y, and the last value of each state.
    `names` are those of all inputs, `values` their Values; `per_direction` is the number of
    activation functions of a direction. Raises TypeRuleError."""
    of: dict[str, Any] = dict(zip(names, values, strict=True))
    x, r = of["x"], of["r"]
    exact = not attrs.get("rounded") or x.dtype == np.float32
    need(exact, f"x is {x.dtype}: only float32 is rounded")
    direction, layout = attrs["direction"], attrs["layout"]
    need_one_of(("forward", "reverse", "bidirectional"), direction=direction)
    need(layout in (0, 1), f"layout must be 0 or 1, it is {layout}")
    count = 2 if direction == "bidirectional" else 1
    hidden = attrs["hidden_size"]
    if r.shape is not None:
        need(len(r.shape) == 3, f"r needs rank 3 ([D,{gates}H,H]), it has {len(r.shape)}")
        need(agree(r.shape[0], count), f"r has {r.shape[0]} directions, {count} are needed")
        need(agree(r.shape[2], hidden), f"hidden_size is {hidden}, r is {r.type}")
        hidden = r.shape[2] if hidden is None else hidden
        if isinstance(hidden, NUMBER):
            rows, wants = r.shape[1], gates * hidden
            need(agree(rows, wants), f"r has {rows} rows, {gates} gates of {hidden} need {wants}")
    hidden = fresh() if hidden is None else hidden
    names = attrs["activations"]
    if names is not None:
        wants = per_direction * count
        need(
            len(names) == wants,
            f"{direction} wants {wants} activations, {len(names)} are given: {', '.join(names)}",
        )
        for name in names:
            need(name.lower() in ACTIVATIONS, f"there is no recurrent activation {name!r}")
    n = _check_operands(of, gates, count, hidden, layout)
    t = fresh() if x.shape is None else x.shape[1 if layout else 0]
    y = (n, t, count, hidden) if layout else (t, count, n, hidden)
    last = (n, count, hidden) if layout else (count, n, hidden)
    return (Type(x.dtype, y), *(Type(x.dtype, last) for _ in _states(of)))


def _states(of: dict[str, Any]) -> dict[str, Value | None]:
    """The first states among the operands of a recurrent layer, by name."""
    return {name: v for name, v in of.items() if name.startswith("initial_")}


def _check_operands(of: dict[str, Any], gates: int, count: int, hidden: Any, layout: int) -> Any:
    """Raise TypeRuleError where shapes or element types of the operands `of` (by name) do not fit
    each other; `count` is the number of directions, `hidden` is H. Returns N, the batch size, a
    number or a symbol."""
    x, w, lens, states = of["x"], of["w"], of["sequence_lens"], _states(of)
    times = {"b": 2 * gates, "w_scale": gates, "r_scale": gates, "p": 3}  # rows of H numbers
    vectors = {name: of[name] for name in times if name in of}
    matrices = [of[m] for m in ("w", "r") if of[f"{m}_scale"] is None]
    need_same(x, *matrices, *vectors.values(), *states.values())
    need_dtype(lens, INTS, "sequence_lens")
    t: Any
    n: Any
    t, n = fresh(), fresh()
    if x.shape is not None:
        need(len(x.shape) == 3, f"x needs rank 3 ([T,N,I]), it has {len(x.shape)}")
        n, t = x.shape[:2] if layout else x.shape[1::-1]
    if w.shape is not None:
        need(len(w.shape) == 3, f"w needs rank 3 ([D,{gates}H,I]), it has {len(w.shape)}")
        need(agree(w.shape[0], count), f"w has {w.shape[0]} directions, {count} are needed")
        if isinstance(hidden, NUMBER):
            need(
                agree(w.shape[1], gates * hidden), f"w has {w.shape[1]} rows, not {gates * hidden}"
            )
        if x.shape is not None:
            need(agree(w.shape[2], x.shape[2]), f"w wants {w.shape[2]} inputs, x has {x.shape[2]}")
    for name, v in vectors.items():
        if v is not None and v.shape is not None and isinstance(hidden, NUMBER):
            ok = shapes_agree(v.shape, (count, times[name] * hidden))
            need(ok, f"{name} needs [{count},{times[name] * hidden}], it is {v.type}")
    if lens is not None and lens.shape is not None:
        need(shapes_agree(lens.shape, (n,)), f"sequence_lens needs [{n}], it is {lens.type}")
        need_lengths(lens, t)
    for name, v in states.items():
        if v is not None and v.shape is not None:
            wants = (n, count, hidden) if layout else (count, n, hidden)
            ok = shapes_agree(v.shape, wants)
            need(ok, f"{name} needs [{','.join(map(str, wants))}], it is {v.type}")
    return n


def _flops(x: Value, w: Value, r: Value, *_: Any, **__: Any) -> float:
    return 2 * x.dims[0] * x.dims[1] * (w.type.size + r.type.size + 12 * r.dims[1])


def _factors(node: Node) -> tuple[str, str]:
    x, w = [v.dtype.name for v in node.inputs[:2] if v is not None]
    return "uint8" if node.attrs.get("rounded") else x, w


for _operator, _gates, _per_direction in ((RNN, 1, 1), (GRU, 3, 2), (LSTM, 4, 3)):
    _operator.type(partial(_types, _operator.inputs, _gates, _per_direction))
    _operator.cost(_flops)
    _operator.factors = _factors
    _operator.weights = Weights((1, 2), 1, scaled=True)
