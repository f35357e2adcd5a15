"""Compiles programs and writes them to the store, if there is one, for the next start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tinsmith.compiler.sections import Told, laters_of, program_in
from tinsmith.errors import NestedCompilation
from tinsmith.runtime.inputs import Signature
from tinsmith.runtime.program import Program

if TYPE_CHECKING:
    from tinsmith.compiler.build import Compilation
    from tinsmith.compiler.free import Found, FreePrograms
    from tinsmith.compiler.kept import Kept, Place
    from tinsmith.formats.container import Draft
    from tinsmith.plan.shared_weights import SharedWeights
    from tinsmith.runtime.free import FreeProgram

P = ParamSpec("P")
R = TypeVar("R")


class _Thread(threading.local):
    compiles = False


_thread = _Thread()


def _alone(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: raise NestedCompilation if the calling thread is in a decorated function already.
    It would wait for its own locks for ever, and conditions on sizes would not be told apart."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        if _thread.compiles:
            raise NestedCompilation(
                "a program is to be compiled during another compilation on the same thread, as in a"
                " signal handler: call the net with these sizes before, or call it later"
            )
        try:
            _thread.compiles = True
            return function(*args, **kwargs)
        finally:
            _thread.compiles = False

    return alone


class Keeper:
    """Compiles the programs of a model, or of a part of one, and writes them to `kept`, its place
    in the store (None: they are not written). `note` gets a line for the user on one that is too
    large."""

    def __init__(self, note: Callable[[str], None], kept: Kept | None = None) -> None:
        self._note, self.kept = note, kept

    @_alone
    def fixed(
        self, compilation: Compilation, signature: Signature, weights: SharedWeights,
        measure: bool = False,
    ) -> tuple[Program, Told]:  # fmt: skip
        """Compile, store and return the program for one signature, with its texts. `measure`: its
        kernels are chosen by timing. Else it shares packed weights with the programs of
        `weights`."""
        place = None if measure else signature
        made, draft = self._compiled(compilation, signature, place, weights, measure)
        self._put(signature, *made, draft)
        return made

    @_alone
    def free(
        self, programs: FreePrograms, compilation: Compilation, signature: Signature,
        weights: SharedWeights,
    ) -> Found | None:  # fmt: skip
        """Compile a program for free sizes, add it to `programs`, store it if there is a place, and
        return it with its texts. Made for typical sizes, it perhaps does not take `signature`. None
        if none can be made: see `FreePrograms.make`. Raises NestedCompilation (`_alone`) and
        OptionError."""
        place = self.kept.room(programs.most) if self.kept is not None else None
        draft: list[Draft | None] = [None]

        def build(shapes: tuple[Any, ...]) -> tuple[Program, Told]:
            if draft[0] is not None:
                draft[0].discard()
            made, draft[0] = self._compiled(compilation, shapes, place, weights)
            return made

        made = programs.make(compilation, signature, build)
        if made is not None:
            self._put(place, *made, draft[0])
        elif draft[0] is not None:
            draft[0].discard()
        return made

    def _compiled(
        self, compilation: Compilation, shapes: tuple[Any, ...], place: Place | None,
        weights: SharedWeights, measure: bool = False,
    ) -> tuple[tuple[Program, Told], Draft | None]:  # fmt: skip
        """Compile a program for `shapes` (free sizes are Sizes); return ((program, texts about it),
        draft). Where possible its weights are written into `draft`, its file at `place`, and
        mapped, so that they need not stay in memory. Else `draft` is None."""
        draft = self.kept.draft(place) if self.kept is not None and place is not None else None
        if draft is not None:
            try:
                return compilation.build(shapes, room=draft, shared_weights=weights), draft
            except BaseException as error:
                draft.discard()
                if not isinstance(error, OSError):
                    raise
        return compilation.build(shapes, measure, shared_weights=weights), None

    def _put(
        self, place: Place | None, made: Program | FreeProgram, told: Told, draft: Draft | None
    ) -> None:
        """Write a program to a place of the store (None: do nothing), and let its `Later` steps
        keep their programs with it. `draft` may hold its weights already. If it is too large, that
        is noted."""
        if self.kept is None or place is None:
            return
        why = self.kept.put(place, made, told, draft)
        if why:
            self._note(why)
        program = program_in(made)
        for later in laters_of(program) if program.blobs[0].file else ():
            later.keep(self.kept.inside(program, later.step))
