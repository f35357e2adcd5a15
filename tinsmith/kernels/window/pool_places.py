"""Maximum over windows, together with the index of each maximum, on channel-blocked data."""

from __future__ import annotations

from math import prod

from tinsmith.codegen.builder import Ptr, Val
from tinsmith.codegen.types import F32, I32, I64
from tinsmith.kernels._kernel import Choice, Emit, Site, Skip, Tier, kernel, one_phase
from tinsmith.kernels.layout import Layout, block_of
from tinsmith.kernels.window.fold import fold_range
from tinsmith.kernels.window.geometry import Geometry, Triple, image_of, pool_geometry
from tinsmith.kernels.window.pool import clipped
from tinsmith.kernels.window.tiles import digits

TAP = 8.0
"""What one tap costs, in operations at the peak rate: load, compare, select twice (estimated)."""


@kernel("MaxPool", Tier.SHAPED, dtypes="float32")
def pool_places(site: Site) -> Choice:
    """The first maximum of each window and its place, on channel-blocked data.

    Output 0 has the maxima; output 1 has their int64 indices in the flattened plain input, whose
    planes are column-major if `storage_order` is 1."""
    if not site.attr("with_indices"):
        raise Skip("no places are wanted")
    geo, _ = pool_geometry(site)
    if prod(geo.size) >= 1 << 31:
        raise Skip("a plane has 2^31 elements or more")
    width = block_of(site.target)
    blocks = -(-geo.channels // width)
    layout = Layout(width)
    work = geo.points * blocks * width * geo.taps
    return Choice(
        cost=site.target.time(work * TAP, 3 * geo.traffic()),
        reads=site.reads([layout], layout),
        writes=(layout, layout),
        phases=one_phase(
            geo.batch * blocks * geo.out[0] * geo.out[1], lambda em: _emit(em, geo, blocks)
        ),
    )


def _distances(geo: Geometry, order: int) -> Triple:
    """The strides by which ONNX numbers the elements of a plane, along (depth, height, width): in
    row-major order if `order` is 0, else in column-major order."""
    depth, height, width = geo.size
    return (1, depth, depth * height) if order else (height * width, width, 1)


def _emit(em: Emit, geo: Geometry, blocks: int) -> None:
    """Emit the kernel; its tiles are rows of the output: (batch, channel block, depth, height)."""
    b, image = em.b, image_of(em.input(0), geo)
    width, size = block_of(em.target), prod(geo.size)
    distances = _distances(geo, em.site.attr("storage_order"))
    lanes = b.vector([lane * size for lane in range(width)], I64)
    with b.loop(em.begin, em.end) as row:
        r, d, block, n = digits(row, geo.out[1], geo.out[0], blocks)
        x = (image.pointer + n * image.batch + block * image.plane).fixed()
        first = (n * geo.channels + block * width) * size
        with b.loop(0, geo.out[2]) as c:
            best, where = _window(em, geo, x, (d, r, c), image.step, distances, width)
            index = geo.place((n, block, d, r, c))
            em.finish(best, index)
            places = where.to("i64") + lanes + b.index(first).splat(width)
            if geo.channels % width:
                real = b.first_lanes(geo.channels - block * width, width)
                places = real.select(places, 0)
            em.outs[1].at(*index).store(places)


def _window(
    em: Emit, geo: Geometry, x: Ptr, out: tuple[Val | int, Val | int, Val | int], step: Triple,
    distances: Triple, width: int,
) -> tuple[Val, Val]:  # fmt: skip
    """Emit the window of output `out`, (depth, height, width). Returns two vectors, with a channel
    in each lane: the maxima and their int32 numbers in the plane, -1 if the window has only
    padding. `x` is the address of the input's plane, `step` its strides, `distances`: see
    `_distances`."""
    b = em.b
    corner = [o * s - p for o, s, p in zip(out, geo.stride, geo.begin, strict=True)]

    def along(axis: int, at: Ptr, place: Val, held: list[Val]) -> list[Val]:
        if axis == 3:
            return _later(at.load(width), place.to("i32").splat(width), held)

        def tap(k: Val | int, held: list[Val]) -> list[Val]:
            here = corner[axis] + k * geo.dilation[axis]
            nearer = (at + here * step[axis]).fixed()
            return along(axis + 1, nearer, place + here * distances[axis], held)

        return fold_range(b, *clipped(b, geo, axis, out[axis]), held, tap)

    start = [b.splat(float("-inf"), F32, width), b.splat(-1, I32, width)]
    best, where = along(0, x, b.const(0, I64), start)
    return best, where


def _later(value: Val, place: Val, held: list[Val]) -> list[Val]:
    """One step of the search for the maximum, lane by lane. `held` is the [value, place] found so
    far, place -1: none. Returns it, or [value, place] where it is none or `value` is larger. NaN is
    larger than all numbers."""
    best, where = held
    better = (value > best) | (value.is_nan() & best.eq(best)) | (where < 0)
    return [better.select(value, best), better.select(place, where)]
