"""The code of a block: steps of a few output rows, with expanded rows in a ring buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.types import F32
from tinsmith.kernels._kernel import Emit, View
from tinsmith.kernels.block.plan import BlockPlan
from tinsmith.kernels.block.stages import Stages, scratch_view
from tinsmith.kernels.window import depthwise
from tinsmith.kernels.window.contract import initial
from tinsmith.kernels.window.convolve import convolve, grid, halved, store_tile
from tinsmith.kernels.window.direct import flattened
from tinsmith.kernels.window.geometry import Geometry, steps
from tinsmith.kernels.window.panels import Panel, every_panel, pick_panel
from tinsmith.kernels.window.tiles import Sink, sweep, walk
from tinsmith.kernels.window.ways import Blocked


def tiles_of(stages: Stages, plan: BlockPlan) -> int:
    """The number of the kernel's tiles: one for each band of an image; if `plan.parted`, for each
    band and panel of expanded channels. Numbered (image, panel, band), the band innermost."""
    panels = plan.expand.panels.total if plan.parted and plan.expand else 1
    return stages.depthwise.geo.batch * panels * plan.bands


def workspace(stages: Stages, plan: BlockPlan) -> int:
    """Bytes of a thread's workspace: the ring buffer, then the last convolution's input."""
    return 4 * (plan.ring + stages.shape.middle(plan.most))


def emit_block(em: Emit, stages: Stages, plan: BlockPlan) -> None:
    """Emit the kernel; its tiles are those of `tiles_of`. A thread that computes the next band of
    the same image finds rows of the band before in the ring buffer."""
    b = em.b
    if plan.expand is not None:
        _clear_edges(em, stages, plan)
    with b.loop(em.begin, em.end) as t:
        band, rest = t % plan.bands, t // plan.bands

        def run(panel: Panel | None, n: Val | int) -> None:
            def step(row: Val | int, size: int) -> None:
                at = _Step(em, stages, plan, n, b.index(row), size, panel)
                if plan.expand is not None:
                    at.expand(_is_first(b, plan, t.eq(em.begin), band, at.row))
                at.depthwise()
                if plan.project is not None:
                    at.project()

            walk(b, plan.rows, band, plan.bands, step)

        if plan.parted and plan.expand is not None:
            total = plan.expand.panels.total
            n = rest // total
            pick_panel(b, plan.expand.panels, rest % total, lambda p: run(p, n))
        else:
            run(None, rest)


def _is_first(b: Builder, plan: BlockPlan, begins: Val, band: Val | int, row: Val) -> Val:
    """An i1: whether a step finds none of the rows that it reads in the ring, where the step before
    leaves those that both read. So at the top of an image (`row`, the step's first row of outputs,
    is 0), and in the first step of `band` if that is the first tile of the call (`begins`)."""
    if isinstance(band, int):
        return row.eq(0)
    (many, high), (_, low) = (*plan.rows, plan.rows[-1])[:2]
    unit = band * plan.steps // plan.bands
    first = unit * low + b.minimum(unit, many) * (high - low)
    return row.eq(first) & (begins | row.eq(0))


def _clear_edges(em: Emit, stages: Stages, plan: BlockPlan) -> None:
    """Emit zeros for the ring's columns left and right of the image, which nothing else writes."""
    b, width = em.b, stages.width
    geo = stages.depthwise.geo
    zero = b.zero(F32.x(width))
    edges = [*range(geo.begin[2]), *range(geo.begin[2] + geo.size[2], plan.pitch // width)]
    if not edges:
        return
    ring = em.workspace.cast(F32)
    with b.loop(0, plan.ring_blocks * plan.slots) as line:
        start = (ring + line * plan.pitch).fixed()
        for column in edges:
            (start + column * width).store(zero)


def _convolve_panel(
    em: Emit, geo: Geometry, dense: Blocked, panel: Panel, x: Ptr, sink: Sink
) -> None:
    """Emit a 1x1 convolution of the pixels of `geo` for one panel of output channels. `dense` tells
    how channels are cut; x is the address of the first input pixel; `sink` stores the results."""
    sums = dense.sums(em, geo, replace(panel, lanes=halved(em.target, panel.lanes)))
    convolve(em, geo, (0, 1), sums, x, sink)


class _Step:
    """Emits one step: output rows [row, row + size) of image n. `panel`: only these channels of the
    first convolution's result, and of the depthwise one's; None: all channels."""

    def __init__(
        self, em: Emit, stages: Stages, plan: BlockPlan, n: Val | int, row: Val, size: int,
        panel: Panel | None,
    ) -> None:  # fmt: skip
        self.em, self.b, self.stages, self.plan = em, em.b, stages, plan
        self.n, self.row, self.size, self.panel = n, row, size, panel
        self.geo = stages.depthwise.geo
        self.ring = em.workspace.cast(F32)
        self.middle = (self.ring + plan.ring).fixed() if plan.ring else self.ring

    def slot(self, line: Val) -> Ptr:
        """The address in the ring of expanded row `line`, counted from the top of the padding above
        the image. Row `line` shares memory with row line + plan.slots."""
        return self.ring + (line % self.plan.slots) * self.plan.pitch

    # ---- first stage: 1x1, into the ring

    def expand(self, first: Val) -> None:
        """Emit the expanded rows that this step reads and the ring lacks: all of them if `first`,
        an i1."""
        b, plan, geo = self.b, self.plan, self.geo
        top, height = geo.begin[1], geo.size[1]
        base = self.row * geo.stride[1]
        start = base + first.select(b.index(0), b.index(plan.lead))
        stop = base + geo.span(1, self.size)
        assert plan.expand is not None
        low, high = b.maximum(start, top), b.minimum(stop, top + height)
        if self.panel is not None:
            self._expand_panel(self.panel, low, high)
        else:
            every_panel(b, plan.expand.panels, lambda p: self._expand_panel(p, low, high))
        for lo, hi in ((start, b.minimum(stop, top)), (b.maximum(start, top + height), stop)):
            with b.loop(lo, hi) as line:
                self._clear_row(line)

    def _expand_panel(self, panel: Panel, low: Val | int, high: Val | int) -> None:
        """Emit the expanded rows [low, high) of one panel of channels, into the ring. Rows are
        counted from the top of the padding above the image."""
        b, stages, plan, geo = self.b, self.stages, self.plan, self.geo
        stage, dense = stages.expand, plan.expand
        assert stage is not None and dense is not None
        source = stages.source(self.em)
        batch, _, step = steps(source.spec)
        row_geo = replace(stage.geo, batch=1, size=(1, 1, geo.size[2]), out=(1, 1, geo.size[2]))
        plane = plan.slots * plan.pitch
        block = 0 if self.panel is not None else panel.block
        with b.loop(low, high) as line:
            image_row = line - geo.begin[1]
            start = self.slot(line) + block * plane + geo.begin[2] * stages.width
            out = scratch_view(
                stage.site, start.fixed(), geo.channels, (plane, plan.pitch, stages.width)
            )
            em = stages.emit(self.em, stage, source, out, (self.n, panel.block, image_row))
            x = source.pointer + self.n * batch + image_row * step[1]
            _convolve_panel(em, row_geo, dense, panel, x, Sink(em, row_geo, panel.block))

    def _clear_row(self, line: Val) -> None:
        """Emit zeros for expanded row `line`, which is padding above or below the image."""
        b, plan, width = self.b, self.plan, self.stages.width
        zero = b.zero(F32.x(width))
        start = self.slot(line).fixed()
        with b.loop(0, plan.ring_blocks) as block:
            row = (start + block * (plan.slots * plan.pitch)).fixed()
            with b.loop(0, plan.pitch, width) as i:
                (row + i).store(zero)

    # ---- second stage: depthwise, from the ring or the input

    def depthwise(self) -> None:
        """Emit the step's rows of the depthwise convolution: to the workspace if a projection
        follows, else to the output."""
        b, stages, plan = self.b, self.stages, self.plan
        out = self.em.outs[0]
        if plan.project is not None:
            line = self.size * self.geo.out[2] * stages.width
            strides = (line, self.geo.out[2] * stages.width, stages.width)
            out = scratch_view(stages.depthwise.site, self.middle, self.geo.channels, strides)
        first: Val | int = 0
        count = stages.shape.blocks
        if self.panel is not None:
            first, count = self.panel.block, len(self.panel.lanes)
        with b.loop(0, count) as local:
            self._channel_block(local, first + local if self.panel is not None else local, out)

    def _channel_block(self, local: Val, block: Val, out: View) -> None:
        """Emit `depthwise` for channel block `block`, which is number `local` of those of the step.
        `out`: the output, or the workspace as a view."""
        b, stages, plan, width = self.b, self.stages, self.plan, self.stages.width
        stage, geo = stages.depthwise, stages.shape.window(self.size)
        place = (self.n, block, self.row)
        if plan.project is not None:
            target = View((out.pointer + local * out.spec.strides[1]).fixed(), out.spec)
        else:
            target = View(out.at(*place).fixed(), out.spec)
        em = stages.emit(self.em, stage, None, target, place)
        sink = Sink(replace(em, lanewise=True), geo, block)
        filters = depthwise.filters_of(em, geo, block)
        line_at, gap = self._lines(local, block)

        def tile(r: Val | int, c: Val | int, high: int, wide: int) -> None:
            start = initial(b, filters.bias, (width,)) * (high * wide)
            column = c * (geo.stride[2] * gap)
            known: dict[int, Ptr] = {}

            def line(i: int) -> Ptr:
                if i not in known:
                    known[i] = (line_at(r * geo.stride[1] + i) + column).fixed()
                return known[i]

            if depthwise.unrolled(geo):
                done = depthwise.taps(geo, line, gap, filters, start, wide)
            else:
                with b.loop(0, geo.kernel[1], carry=start) as loop:
                    i = loop.index
                    x = line_at(i * geo.dilation[1] + r * geo.stride[1]) + column
                    w = filters.weights + i * (geo.kernel[2] * width)
                    loop.next(depthwise.row_taps(geo, x, w, gap, loop.vars, geo.kernel[2], width))
                done = loop.out
            store_tile(sink.at(0, 0, 0, r, c), done, grid(high, wide), 1)

        sweep(b, depthwise.tiling(em.target, geo), 0, 1, tile)

    def _lines(self, local: Val, block: Val) -> tuple[Callable[[Val | int], Ptr], int]:
        """How the depthwise convolution reads one channel block: (a function from i to the address
        of the step's input row i, counted with padding; elements from one pixel of a row to the
        next). `local`: the block's number in the ring; `block`: its number in the input."""
        geo, plan = self.geo, self.plan
        base = self.row * geo.stride[1]
        if plan.expand is not None:
            origin = (self.ring + local * (plan.slots * plan.pitch)).fixed()
            return (lambda i: origin + (base + i) % plan.slots * plan.pitch, self.stages.width)
        source = self.stages.source(self.em)
        batch, plane, step = steps(source.spec)
        back = -(geo.begin[1] * step[1] + geo.begin[2] * step[2])
        start = source.pointer + self.n * batch + block * plane + back
        start = (start + base * step[1]).fixed()
        return (lambda i: start + i * step[1]), step[2]

    # ---- last stage: 1x1, to the block's output

    def project(self) -> None:
        """Emit the step's rows of the last convolution, from the workspace to the output."""
        stages = self.stages
        stage, dense, out = stages.project, self.plan.project, self.em.outs[0]
        assert stage is not None and dense is not None
        place = (self.n, 0, self.row)
        extent = (1, self.size, self.geo.out[2])
        line = self.geo.out[2] * stages.width
        source = scratch_view(
            stages.depthwise.site, self.middle, self.geo.channels,
            (self.size * line, line, stages.width),
        )  # fmt: skip
        target = View(out.at(*place).fixed(), out.spec)
        em = stages.emit(self.em, stage, source, target, place)
        geo = flattened(em, replace(stage.geo, batch=1, size=extent, out=extent))

        def one(panel: Panel) -> None:
            sink = Sink(em, geo).at(0, panel.block)
            _convolve_panel(em, geo, dense, panel, self.middle, sink)

        every_panel(self.b, dense.panels, one)
