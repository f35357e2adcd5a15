"""The convolutions of a block, each with its weights and epilogue, and their operands in memory."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tinsmith.graph import Node, Value
from tinsmith.kernels._kernel import Emit, Packed, Site, Skip, View
from tinsmith.kernels.block.plan import Shape
from tinsmith.kernels.layout import Layout, Spec, block_of, spec_of, to_layout
from tinsmith.kernels.trace import make_site
from tinsmith.kernels.window.geometry import Geometry
from tinsmith.kernels.window.site import ConvSite, conv_site
from tinsmith.ops._weights import is_convolution
from tinsmith.records import dataclass


@dataclass(frozen=True)
class Stage:
    """One convolution of a block, with its epilogue. Its packed arrays are those of the block's
    kernel from index `first` on: weights, bias if it has one, constants of the epilogue."""

    conv: ConvSite
    first: int

    @property
    def site(self) -> Site:
        return self.conv.site

    @property
    def geo(self) -> Geometry:
        return self.conv.geo

    @property
    def bias(self) -> bool:
        return self.conv.bias is not None

    @property
    def constants(self) -> list[Value]:
        """The constants that the epilogue reads."""
        return [v for v in self.site.extras if v.const is not None]

    @property
    def count(self) -> int:
        """The number of packed arrays."""
        return 1 + self.bias + len(self.constants)

    def spec(self, v: Value) -> Spec:
        """How operand v of the epilogue lies if it is packed: in the layout that the epilogue
        reads, without gaps, with leading dimensions of 1 up to the rank of the result."""
        (layout,) = replace(self.site, extras=(v,)).extra_reads(Layout(block_of(self.site.target)))
        rank = len(self.site.out.dims)
        return spec_of(v.dtype, (1,) * (rank - len(v.dims)) + v.dims, layout)

    def packed(self, name: str, weights: tuple[Any, ...], bias: tuple[Any, ...]) -> list[Packed]:
        """The packed arrays of this convolution, in order: weights, bias if it has one, constants
        of the epilogue. `weights` and `bias` are (function, *more): what is packed is function(the
        convolution's weights or bias, *more). `name`: the convolution's name in the block."""
        found = [
            Packed(f"{name} weights", weights[0], (self.conv.weights, *weights[1:])),
            *self.conv.packed_bias(*bias),
        ]
        for v in self.constants:
            spec = self.spec(v)
            array = np.asarray(v.const).reshape(spec.dims)
            found.append(Packed(v.name, to_layout, (array, spec.layout)))
        return found


@dataclass(frozen=True)
class Stages:
    """A depthwise convolution, and the 1x1 convolutions before and after it (one may be None)."""

    site: Site
    expand: Stage | None
    depthwise: Stage
    project: Stage | None

    @cached_property
    def all(self) -> tuple[Stage, ...]:
        return tuple(s for s in (self.expand, self.depthwise, self.project) if s is not None)

    @cached_property
    def shape(self) -> Shape:
        expand, project = (None if s is None else s.geo for s in (self.expand, self.project))
        width = block_of(self.site.target)
        return Shape(expand, self.depthwise.geo, project, width, self.site.threads)

    @property
    def width(self) -> int:
        return self.shape.width

    def source(self, em: Emit) -> View:
        """The input of the first convolution."""
        return self._view(em, self.all[0].site.inputs[0])

    def extras(self, em: Emit, stage: Stage) -> tuple[View, ...]:
        """A stage's epilogue operands (packed, or inputs of the block), broadcast to its result."""
        found = []
        for v in stage.site.extras:
            if v.const is not None:
                number = stage.first + 1 + stage.bias + stage.constants.index(v)
                view = View(em.packed[number], stage.spec(v))
            else:
                view = self._view(em, v)
            found.append(broadcast(view, stage.site))
        return tuple(found)

    def _view(self, em: Emit, v: Value | None) -> View:
        return em.input(self.site.attr("body").inputs.index(v))

    def emit(
        self, em: Emit, stage: Stage, source: View | None, out: View, place: tuple[Any, ...]
    ) -> Emit:
        """`em` as the code of one stage uses it: with the stage's operands, from `source` (None if
        that code finds its input by itself) to `out`. The operands of its epilogue are moved to the
        index `place` of the stage's result."""
        extras = tuple(View(v.at(*place).fixed(), v.spec) for v in self.extras(em, stage))
        packed = em.packed[stage.first : stage.first + 1 + stage.bias]
        return replace(
            em, site=stage.site, ins=(source,), extras=extras, outs=(out,), packed=packed
        )

    def reads(self) -> tuple[Layout | None, ...]:
        """The layout in which each input of the block is read; None if it is not read. Raises Skip
        if an epilogue reads a result inside the block or an operand of another rank, or if an
        operand is read in two layouts."""
        first = self.all[0]
        wanted: dict[Value, Layout] = {}
        assert first.site.inputs[0] is not None
        wanted[first.site.inputs[0]] = Layout(self.width, first.geo.halo)
        for stage in self.all:
            for v in stage.site.extras:
                if v.const is not None:
                    continue
                if v not in self.site.attr("body").inputs:
                    raise Skip(f"{v.name}, a result inside the block, is read by an epilogue")
                layout = stage.spec(v).layout
                if len(v.dims) != len(stage.site.out.dims):
                    raise Skip(f"{v.name} has rank {len(v.dims)}")
                if wanted.setdefault(v, layout).block != layout.block:
                    raise Skip(f"{v.name} is read in two layouts")
        return tuple(wanted.get(v) for v in self.site.attr("body").inputs)


def broadcast(view: View, site: Site) -> View:
    """An operand of an epilogue, broadcast to the result of `site`. If it is plain, `View.load`
    puts one element into all lanes (`Spec.lane` is 0)."""
    spec = view.spec.broadcast_to(site.out.dims)
    return View(view.pointer, replace(spec, lane=0) if spec.layout.is_plain else spec)


def scratch_view(site: Site, at: Any, channels: int, strides: tuple[int, int, int]) -> View:
    """Workspace at address `at` as one blocked image of `channels` channels, as high and wide as
    the site's output. `strides`: elements between channel blocks, rows and pixels."""
    dims = (1, channels, *site.out.dims[2:])
    layout = Layout(block_of(site.target))
    return View(at, Spec(site.out.dtype, dims, layout, (0, *strides)))


def stages_of(site: Site) -> Stages:
    """A block's convolutions: a depthwise one, with a 1x1 before, after, or both. Raises Skip for
    other blocks."""
    body = site.attr("body")
    found: list[Stage] = []
    packed = 0
    value: Value | None = None
    for node in body.nodes:
        stage = _stage(node, site, packed)
        if found and stage.site.inputs[0] is not value:
            raise Skip(f"{node.name} does not read what comes before it")
        packed += stage.count
        value = node.output
        found.append(stage)
    names = "".join(_letter(s) for s in found)
    if names not in ("pdp", "dp", "pd"):
        raise Skip(f"its convolutions are {', '.join(s.site.node.name for s in found)}")
    expand = found[0] if names[0] == "p" else None
    project = found[-1] if names[-1] == "p" else None
    return Stages(site, expand, found[names.index("d")], project)


def _stage(node: Node, block: Site, packed: int) -> Stage:
    """The stage of a node of `block`; `packed` arrays come before its own. Raises Skip if it is no
    float32 convolution with two spatial axes."""
    site = make_site(node, block.target, block.precision)
    if not is_convolution(site.anchor):
        raise Skip(f"{node.name} is not a convolution")
    if site.out.dtype != np.float32:
        raise Skip(f"{node.name} computes in {site.out.dtype}")
    conv = conv_site(site)
    if conv.geo.rank != 2:
        raise Skip(f"{node.name} has {conv.geo.rank} spatial axes")
    return Stage(conv, packed)


def _letter(stage: Stage) -> str:
    """ "p" for a 1x1 (pointwise) convolution, "d" for a depthwise one, "?" for any other."""
    group, geo = stage.conv.groups, stage.geo
    if group == 1 and geo.is_pointwise and not any(geo.after):
        return "p"
    return "d" if group == geo.channels == geo.out_channels else "?"
