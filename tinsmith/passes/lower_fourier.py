"""Fourier transforms as products with tables of roots of unity, long ones in Cooley-Tukey steps."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd, isqrt, prod

import numpy as np

from tinsmith.graph import Array, Node, Value
from tinsmith.ops import OPS
from tinsmith.passes.facts import filled_dims, ints, reshaped, shape_of
from tinsmith.passes.manager import register
from tinsmith.records import dataclass
from tinsmith.rewrite import RuleSet, Skip, const, opt, p
from tinsmith.sizes import typical

narrow = RuleSet("narrow-fourier", "Fourier transforms leave out parts that are zero, or not read.")
register("machine")(narrow)
rules = RuleSet(
    "lower-fourier", "Fourier transforms become products with constant tables.", tolerance=1e-5
)
register("machine")(rules)

LANES = 16
"""About how many columns of a product one vector instruction computes; costs count whole vectors.
"""
READ = 8
"""Multiply-adds that take as long as reading one number of a table, which is read once for all
rows."""
MOVE = 64
"""Multiply-adds that take as long as moving one number, or multiplying it by a twiddle factor.
Estimated."""
MOST = 1 << 24
"""Numbers in a table, at most. Estimated."""

LONGEST = 1 << 24
"""Elements that are transformed together, at most. Estimated."""


@dataclass(frozen=True)
class Fourier:
    """A discrete Fourier transform: y[k] = scale * sum of x[t] * e^(sign * 2 pi i k t / size), for
    k < count.

    keep  the parts of y that are wanted: 0 the real one, 1 the imaginary one
    half  x holds only t <= size / 2; the rest is its mirror, x[size - t] = conj(x[t])
    """

    size: int
    count: int
    sign: int = -1
    keep: tuple[int, ...] = (0, 1)
    scale: float = 1.0
    half: bool = False

    @property
    def times(self) -> int:
        """How many elements x has along t: `size`, or with `half` size // 2 + 1."""
        return self.size // 2 + 1 if self.half else self.size

    def roots(self, times: int, count: int) -> Array:
        """e^(sign * 2 pi i k t / size) as complex numbers [t < times, k < count]; parts that
        are 0 but for rounding are exactly 0."""
        powers = np.outer(np.arange(times), np.arange(count)) * self.sign % self.size
        angle = 2 * np.pi * np.arange(self.size) / self.size
        unit = np.stack([np.cos(angle), np.sin(angle)], -1)
        unit[abs(unit) < 1e-15] = 0
        return unit.view(np.complex128)[powers, 0]

    def table(self, parts: int, times: int) -> Array:
        """The real numbers [part, t, kept, k] that transform x by one product: summed over the
        parts of x (1: real, 2: real and imaginary) and t < times it gives the `keep` parts of y."""
        w = self.roots(times, self.count) * self.scale
        if self.half:
            w[1 : (self.size + 1) // 2] *= 2
        whole = np.array([[w.real, w.imag], [-w.imag, w.real]])
        return whole[:parts, list(self.keep)].swapaxes(1, 2)

    def step(self, a: int) -> Fourier:
        """The second step of Cooley and Tukey's method, after transforms of `a` elements each,
        size / a elements apart: the transform of size / a elements that gives every a-th result."""
        return replace(self, size=self.size // a, count=-(-self.count // a), half=False)


@lru_cache(1024)
def plan(rows: int, parts: int, f: Fourier) -> tuple[float, int]:
    """(cost, a): the least cost of the transform `f` of `rows` rows of `parts` parts each (1: real,
    2: real and imaginary), in multiply-adds, and the first factor `a` into which the size is split
    to reach it; 1: one product with the whole table. The cost is infinite if every table would be
    too large."""
    kept = len(f.keep)
    numbers = parts * f.times * _vectors(kept * f.count)
    best = ((rows + READ) * numbers if numbers <= MOST else np.inf, 1)
    for a in range(2, min(f.size, isqrt(MOST // (2 * parts)) + 1)):
        if f.size % a:
            continue
        b, rest = f.size // a, f.step(a)
        first = (rows * _vectors(b) + READ) * 2 * parts * a * a
        moved = rows * (2 * f.size + kept * rest.count * a)
        cost = first + MOVE * moved
        if cost < best[0]:
            best = min(best, (cost + plan(rows * a, 2, rest)[0], a))
    return best


def _vectors(count: int) -> int:
    return -(-count // LANES) * LANES


def transform(x: Value, f: Fourier, pairs: bool, window: Array | None = None) -> Value:
    """The transform of the rows of x, as nodes. `pairs`: x is [rows, t, part] and the result [rows,
    k, kept], else [rows, part, t] and [rows, kept, k]. x must not have more t than `f.times`; if it
    has fewer, zeros follow. `window`: a factor for each t of x. Raises Skip if the size or one of
    its factors is too large."""
    rows = x.dims[0]
    parts, times = x.dims[:0:-1] if pairs else x.dims[1:]
    if f.size > LONGEST:
        raise Skip(f"{f.size} elements are transformed together")
    cost, a = plan(typical(rows), parts, f)
    if np.isinf(cost):
        raise Skip(f"{f.size} has a prime factor whose table would be too large")
    if a == 1:
        return _product(x, f, window, pairs)
    if pairs:
        x = OPS["Transpose"](x, perm=(0, 2, 1)) if parts > 1 else reshaped(x, (rows, 1, times))
    if window is not None:
        x = OPS["Mul"](x, window.astype(x.dtype))
    if f.half:
        x = _mirrored(x, f.size)
    b, rest = f.size // a, f.step(a)
    x = reshaped(_resized(x, 2, f.size), (rows, parts * a, b))
    inner = Fourier(a, a, f.sign).table(parts, a).reshape(parts * a, 2 * a).T.astype(x.dtype)
    real, imaginary = (
        OPS["Unsqueeze"](OPS["MatMul"](np.ascontiguousarray(half), x, precise=True), np.array([2]))
        for half in np.split(inner, 2)
    )
    w = f.roots(a, b)
    turn, across = (np.stack([v.real, v.imag], 1).astype(x.dtype) for v in (w, 1j * w))
    y = OPS["Add"](OPS["Mul"](real, turn), OPS["Mul"](imaginary, across))
    y = transform(reshaped(y, (rows * a, 2, b)), rest, False)
    kept, count = y.dims[1:]
    y = reshaped(y, (rows, a, kept, count))
    y = OPS["Transpose"](y, perm=(0, 3, 1, 2) if pairs else (0, 2, 3, 1))
    dims = (rows, count * a, kept) if pairs else (rows, kept, count * a)
    return _resized(reshaped(y, dims), 1 if pairs else 2, f.count)


def _product(x: Value, f: Fourier, window: Array | None, pairs: bool) -> Value:
    """As `transform`, but always by one product with the whole table."""
    parts, times = x.dims[:0:-1] if pairs else x.dims[1:]
    table, kept = f.table(parts, times), len(f.keep)
    if window is not None:
        table *= window[:, None, None]
    if pairs:
        table = table.transpose(1, 0, 3, 2)
    flat = table.reshape(parts * times, kept * f.count).astype(x.dtype)
    y = OPS["MatMul"](reshaped(x, (x.dims[0], parts * times)), flat, precise=True)
    return reshaped(y, (x.dims[0], f.count, kept) if pairs else (x.dims[0], kept, f.count))


def _mirrored(x: Value, size: int) -> Value:
    """The whole spectrum [rows, 2, size] of a real signal from its first half, x [rows, 2, t],
    which is cut off or padded with zeros to size // 2 + 1: the rest is x[size - k] = conj(x[k])."""
    k = np.arange(size)
    signs = np.ones((2, size), x.dtype)
    signs[1, size // 2 + 1 :] = -1
    x = _resized(x, 2, size // 2 + 1)
    return OPS["Mul"](OPS["Gather"](x, np.minimum(k, size - k), axis=2), signs)


def _resized(x: Value, axis: int, size: int) -> Value:
    """x with `axis` cut off, or padded with zeros at its end, to `size`; x itself if it fits."""
    rank, more = len(x.dims), size - x.dims[axis]
    if more > 0:
        pads = np.zeros(2 * rank, np.int64)
        pads[rank + axis] = more
        return OPS["Pad"](x, pads)
    if more < 0:
        return OPS["Slice"](x, np.array([0]), np.array([size]), np.array([axis]))
    return x


_dft = p.DFT("x", opt(const("length")), opt(const("axis"))).named("dft")


@narrow.rule(
    p.DFT(p.Concat("x", const("zero")).named("pair"), opt("length"), opt("axis")).named("dft"),
    x=(2, 6, 1),
    length=np.array(8),
    axis=np.array(1),
    zero=np.zeros((2, 6, 1), np.float32),
    pair={"axis": 2},
)
def real_signal(
    x: Value, zero: Array, pair: Node, length: Value | None, axis: Value | None, dft: Node
) -> Value:
    """dft(concat(x, 0)) -> dft(x): complex numbers without imaginary parts are a real signal."""
    if zero.any() or pair.axis % zero.ndim != zero.ndim - 1 or zero.shape[-1] != 1:
        raise Skip("it is no real signal with an imaginary part of zeros")
    if dft.inverse and dft.onesided:
        raise Skip("it is half a spectrum")
    return OPS["DFT"](x, length, axis, inverse=dft.inverse, onesided=dft.onesided)


@narrow.rule(
    p.Gather(_dft, const("part")).named("g"),
    tolerance=1e-5,
    x=(2, 6, 3, 2),
    length=np.array(8),
    axis=np.array(1),
    part=np.array(1),
    g={"axis": 3},
)
def part_of_dft(
    x: Value, length: Array | None, axis: Array | None, part: Array, dft: Node, g: Node
) -> Value:
    """dft(x)[..., part] -> x @ table, which computes that part, real or imaginary, alone."""
    rank = len(shape_of(dft.output))
    if g.axis % rank != rank - 1 or part.ndim or (dft.inverse and dft.onesided):
        raise Skip("it takes no part of the numbers")
    y = _lowered(x, length, axis, dft, (int(part) % 2,))
    return reshaped(y, y.dims[:-1])


@rules.rule(_dft, x=(2, 12, 3, 2), length=np.array(10), axis=np.array(1))
def dft(x: Value, length: Array | None, axis: Array | None, dft: Node) -> Value:
    """dft(x) -> x @ table of roots of unity, in several steps if it is long (`transform`)."""
    return _lowered(x, length, axis, dft, (0, 1))


@rules.rule(
    p.STFT("x", const("step"), opt("window"), opt(const("length"))).named("stft"),
    x=(2, 19, 1),
    step=np.array(4),
    window=(8,),
    length=np.array(8),
)
def stft(x: Value, step: Array, window: Value | None, length: Array | None, stft: Node) -> Value:
    """stft(x, w) -> frames of x @ (w * table), w the window by which each frame is multiplied."""
    batch, frames, count, _ = _dims(stft.output)
    parts, (hop,) = _dims(x)[2], ints(step, "the step")
    size = x.dims[1]
    if length is not None:
        (size,) = ints(length, "the length")
    elif window is not None:
        size = window.dims[0]
    run = gcd(hop, size)
    used = (frames - 1) * hop + size
    runs = reshaped(_resized(x, 1, used), (batch, used // run, run * parts))
    places = np.arange(frames)[:, None] * (hop // run) + np.arange(size // run)
    x = runs if frames == 1 else OPS["Gather"](runs, places, axis=1)
    x = reshaped(x, (batch * frames, size, parts))
    if window is not None and window.const is None:
        x = OPS["Mul"](x, reshaped(window, (size, 1)))
    y = transform(x, Fourier(size, count), True, None if window is None else window.const)
    return reshaped(y, stft.output.dims)


def _dims(x: Value) -> tuple[int, ...]:
    if x.dtype not in (np.float32, np.float64):
        raise Skip(f"it is of {x.dtype}")
    return filled_dims(x)


def _lowered(
    x: Value, length: Array | None, axis: Array | None, node: Node, keep: tuple[int, ...]
) -> Value:
    """The result of the DFT `node` of x, or the parts `keep` of it (0 real, 1 imaginary) on its
    last axis, computed by nodes that have kernels. Raises Skip if they cannot compute it."""
    *dims, parts = _dims(x)
    at = (-2 if axis is None else ints(axis, "axis")[0]) % (len(dims) + 1)
    times, outer, inner = dims[at], prod(dims[:at]), prod(dims[at + 1 :])
    half, pairs = node.inverse and node.onesided, inner == 1
    size = 2 * (times - 1) if half else times
    if length is not None:
        (size,) = ints(length, "the length")
    times, size = int(times), int(size)
    if size < 1:
        raise Skip(f"its length is {size}")
    if pairs:
        x = reshaped(x, (outer, times, parts))
    else:
        x = OPS["Transpose"](reshaped(x, (outer, times, inner * parts)), perm=(0, 2, 1))
        x = reshaped(x, (outer * inner, parts, times))
    count = size // 2 + 1 if node.onesided and not node.inverse else size
    f = Fourier(size, count, keep=(0,) if half else keep, half=half)
    if node.inverse:
        f = replace(f, sign=1, scale=1 / size)
    if times > f.times:
        x = _resized(x, 1 if pairs else 2, f.times)
    y = transform(x, f, pairs)
    if not pairs:
        y = reshaped(y, (outer, inner * len(f.keep), count))
        y = OPS["Transpose"](y, perm=(0, 2, 1))
    return reshaped(y, (*dims[:at], count, *dims[at + 1 :], len(f.keep)))
