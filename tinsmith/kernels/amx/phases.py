"""The phases of a kernel on matrix registers: either one phase packs and multiplies the input band
by band, or a first phase packs the whole input and a second multiplies it.

The core can do other work during the hundred cycles in which matrix registers multiply a channel
block. So the results of one register of positions are finished (epilogue, stores) while the first
channel block of the next is multiplied. Until then the workspace notes where they lie (`Note`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import Any

from tinsmith.codegen import matrix
from tinsmith.codegen.builder import Builder, Ptr, Val
from tinsmith.codegen.matrix import CONFIGURATION, SIDE
from tinsmith.codegen.types import F32, I64, U8
from tinsmith.kernels._kernel import Emit, Phase
from tinsmith.kernels.amx.pack_left import LeftPacker, Source
from tinsmith.kernels.amx.sums import Ahead, Operands, ahead_of, sums
from tinsmith.kernels.amx.tiling import POSITION, REGISTER, RESULTS, AmxPlan
from tinsmith.kernels.stages import Stage, stage
from tinsmith.kernels.walk import Position, run
from tinsmith.records import dataclass

UNROLL = 4  # positions of one iteration of a loop; estimated


class Note(IntEnum):
    """The indices of words of 8 bytes in a thread's workspace that say which results are not
    finished yet: IMAGE, ROW, VECTOR, FIRST, LAST as in `Results`; VECTORS, how many vectors of
    outputs from VECTOR on (0: all are finished); SUMS, the offset of their sums, in bytes."""

    IMAGE, ROW, VECTOR, VECTORS, FIRST, LAST, SUMS = range(7)


NOTES = 64  # bytes of all notes


@dataclass(frozen=True)
class Results:
    """The sums of one vector of 16 output channels, number `vector`, at the positions [first, last)
    of a band, which begins at row `row` of the results of image `image`. `sums` points to those of
    position `first`; each position has 16 float32."""

    sums: Ptr
    image: Val
    vector: Val
    row: Val
    first: Val
    last: Val

    def each(
        self, b: Builder, first: Val, last: Val, body: Callable[[Val, int, Val], None]
    ) -> None:
        """Emit `body(i, k, sums)` for every position i + k of [first, last). A loop takes UNROLL
        positions at a time: i is the first, k (an int) counts from there. `sums`: the loaded sums
        of the position, a vector of 16 output channels."""

        def one(i: Val, k: int) -> None:
            body(i, k, (self.sums + (i - self.first) * SIDE + k * SIDE).load(SIDE))

        full = first + (last - first) // UNROLL * UNROLL
        with b.loop(first, full, UNROLL) as i:
            for k in range(UNROLL):
                one(i, k)
        run(b, full, last, lambda i: one(b.index(i), 0))


@dataclass(frozen=True)
class Work:
    """What the phases of a kernel need: its plan, `source(em)`, where its input lies, and
    `finish(em, results)`, which emits the epilogue and the stores of some results.

    The kernel's first packed array is the weights, as `pack_right.pack` packs them. If there are
    several taps, its last one tells how many bytes after a result's own position each tap reads.
    """

    plan: AmxPlan
    source: Callable[[Emit], Source]
    finish: Callable[[Emit, Results], None]

    @property
    def fields(self) -> dict[str, Any]:
        """A `Choice`'s phases, workspace, scratch, by_channels and detail, by their names."""
        plan, band = self.plan, self.plan.size * POSITION
        space = CONFIGURATION + NOTES + plan.waiting  # then a band
        phases = (Phase(plan.tiles, self._bands),)
        if plan.whole:
            phases = (
                Phase(plan.images * plan.blocks, self._inputs),
                Phase(plan.tiles, self._outputs),
            )
        return {
            "phases": phases,
            "workspace": space if plan.whole else space + band,
            "scratch": plan.images * band if plan.whole else 0,
            "by_channels": plan.by_channels,
            "detail": str(plan),
        }

    def _bands(self, em: Emit) -> None:
        """Emit the only phase of a plan that is not `whole`. A tile packs one band of the input,
        and multiplies it by all panels of weights."""
        b, plan = em.b, self.plan
        pack, finish = self._pack(em), self._finish(em)
        multiply = self._multiply(em, finish)
        space = (_results(em) + plan.waiting).fixed()
        with self._registers(em, finish), b.loop(em.begin, em.end) as tile:
            image, band = b.index(tile // plan.bands), b.index(tile % plan.bands)
            row = band * plan.down.out // plan.bands
            rows = (band + 1) * plan.down.out // plan.bands - row
            pack(image, row, rows, 0, plan.blocks, space)
            count = (plan.reached(rows) + (SIDE - 1)) // SIDE
            multiply(image, row, rows, 0, plan.panels, 0, count, space)

    def _inputs(self, em: Emit) -> None:
        """Emit the phase that packs the whole input. A tile is one channel block of one image."""
        b, plan = em.b, self.plan
        pack = self._pack(em)
        with b.loop(em.begin, em.end) as tile:
            image, c = b.index(tile // plan.blocks), b.index(tile % plan.blocks)
            pack(image, 0, plan.down.out, c, c + 1, self._image(em, image))

    def _outputs(self, em: Emit) -> None:
        """Emit the phase that multiplies the packed input of a plan that is `whole`. A tile is one
        share of an image's positions by one panel; the shares of a panel are neighbouring tiles."""
        b, plan = em.b, self.plan
        finish, count = self._finish(em), plan.registers(plan.down.out)
        multiply = self._multiply(em, finish)
        with self._registers(em, finish), b.loop(em.begin, em.end) as tile:
            share, rest = b.index(tile % plan.shares), b.index(tile // plan.shares)
            image, panel = b.index(rest % plan.images), b.index(rest // plan.images)
            first, last = share * count // plan.shares, (share + 1) * count // plan.shares
            at = self._image(em, image)
            multiply(image, 0, plan.down.out, panel, panel + 1, first, last, at)

    @contextmanager
    def _registers(self, em: Emit, finish: Stage) -> Iterator[None]:
        """A context in which code may use matrix registers. At its start no results are noted; at
        its end those that are noted are finished."""
        _note(em, Note.VECTORS).store(em.b.const(0, I64))
        with matrix.matrices(em.b, em.workspace):
            yield
            finish()

    def _image(self, em: Emit, image: Val) -> Ptr:
        """Where the packed input of an image begins in scratch."""
        return (em.scratch.cast(U8) + image * (self.plan.size * POSITION)).fixed()

    def _pack(self, em: Emit) -> Stage:
        """Emit and return the stage that packs a band (see `LeftPacker.band`)."""

        def body(em: Emit, *of: Any) -> None:
            LeftPacker(em.b, self.plan, self.source(em)).band(*of)

        return stage(em, "split", "image row rows c0 c1 to*", body)

    def _multiply(self, em: Emit, finish: Stage) -> Stage:
        """Emit and return the stage that multiplies the registers [t0, t1) of positions of a band,
        which is packed at `from`, by the panels [k0, k1) of weights. `image` and `row` are as in
        `Results`, `rows` how many rows the band has."""
        plan = self.plan

        def body(em: Emit, *of: Any) -> None:
            image, row, rows, k0, k1, t0, t1, at = of
            b, end = em.b, plan.reached(rows)

            def panel(k: Position, wide: int) -> None:
                w = (em.packed[0].cast(U8) + k * plan.panel_bytes).fixed()

                with b.loop(0, plan.pieces) as piece, b.loop(t0, t1) as t:
                    first = t * SIDE
                    x = (at.cast(U8) + first * POSITION).fixed()
                    ahead = self._ahead(em, t - t0, wide)
                    taps = em.packed[-1] if plan.taps > 1 else None
                    behind = (t - t0) * RESULTS if plan.pieces > 1 else b.index(0)
                    to, before = (_results(em) + behind).fixed(), partial(finish, b=b)
                    sums(b, plan, piece, wide, Operands(
                        x, w, to, REGISTER, taps=taps, ahead=ahead, meanwhile=before
                    ))  # fmt: skip
                    last = b.index(b.minimum(first + SIDE, end))
                    vector, vectors = b.index(k) * 2, b.const(wide, I64)
                    with b.when(piece.eq(plan.pieces - 1)):
                        notes = (image, row, vector, vectors, first, last, behind)
                        for name, value in zip(Note, notes, strict=True):
                            _note(em, name).store(value)

            whole, rest = divmod(plan.outputs, 2)
            if whole:
                with b.loop(k0, b.minimum(k1, whole)) as k:
                    panel(k, 2)
            if rest:
                with b.when(k1 > whole):
                    panel(whole, 1)

        return stage(em, "multiply", "image row rows k0 k1 t0 t1 from*", body)

    def _ahead(self, em: Emit, number: Val, wide: int) -> Ahead | None:
        """Which weights of the next panel are prefetched while register `number` of 16 positions
        (counted in this share) meets the present panel, of `wide` vectors (1 or 2); None if all
        weights stay in the second-level cache."""
        plan = self.plan
        if 4 * plan.weight_bytes <= em.target.l2:
            return None
        least = max(1, plan.registers(plan.down.out // plan.bands) // plan.shares)
        return ahead_of(plan, number, least, wide)

    def _finish(self, em: Emit) -> Stage:
        """Emit and return the stage that finishes (epilogue, stores) the results that `Note` says
        are not finished, if there are any, and notes that none are left."""

        def body(em: Emit) -> None:
            names = (Note.IMAGE, Note.VECTOR, Note.ROW, Note.FIRST, Note.LAST)
            image, vector, *rest = (_note(em, name).load() for name in names)
            first, vectors = _results(em) + _note(em, Note.SUMS).load(), _note(em, Note.VECTORS)
            count = vectors.load()
            vectors.store(em.b.const(0, I64))
            with em.b.loop(0, count) as o:
                at = (first + o * REGISTER).cast(F32).fixed()
                self.finish(em, Results(at, image, vector + o, *rest))

        return stage(em, "finish", "", body)


def _note(em: Emit, name: Note) -> Ptr:
    """A pointer to a note, after the configuration of the matrix registers."""
    return em.workspace.cast(I64) + (CONFIGURATION // I64.nbytes + name)


def _results(em: Emit) -> Ptr:
    """A pointer to the buffer of sums in the workspace, after the notes."""
    return em.workspace.cast(U8) + (CONFIGURATION + NOTES)
