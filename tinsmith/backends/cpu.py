"""The cpu backend: plan a placed graph, generate its machine code, load it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tinsmith.backends import BACKENDS, DEFAULT, Backend, Job
from tinsmith.backends.library import team_address
from tinsmith.codegen.cache import open_cache
from tinsmith.codegen.library import Compiler
from tinsmith.codegen.target import Target, need_runnable
from tinsmith.graph import Array, Graph, Node
from tinsmith.plan.plan import SLACK
from tinsmith.plan.shared_weights import Blob
from tinsmith.records import dataclass
from tinsmith.runtime.memory import aligned
from tinsmith.runtime.program import Program
from tinsmith.sizes import as_number

if TYPE_CHECKING:
    from tinsmith.plan.planner import Built


@dataclass
class Compiled:
    """A program, with the plan, code and constants from which it was built."""

    program: Program
    built: Built

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run once, in a new session; else as `Session.run`."""
        return self.program.session().run(arrays)


class Cpu(Backend):
    """The backend that generates machine code. It takes every node: one that no kernel computes is
    computed by its reference."""

    column = DEFAULT

    def need_target(self, target: Target) -> None:
        need_runnable(target)

    def takes(self, node: Node) -> str:
        return ""

    def compiler(self, target: Target, threads: int, cache: bool) -> Compiler:
        """A compiler for `Job.compiler`, for one program of so many `threads`. It loads LLVM on a
        thread of its own, so the earlier it is made the better. Raises TargetError where this
        process cannot run the target's code."""
        from tinsmith.plan.main import helpers_text

        need_runnable(target)
        compiler = Compiler(target, open_cache() if cache else None)
        compiler.add(helpers_text(threads, target))
        if threads > 1:
            from tinsmith.codegen.sync import team_text

            compiler.add(team_text(target))
        return compiler

    def compile(self, graph: Graph, job: Job) -> Compiled:
        """Compile a placed graph to a program. Packed weights that `job.shared_weights` has are
        used again; new ones are written into `job.room` and added to `job.shared_weights`. Raises
        TargetError as `compiler` does."""
        from tinsmith.plan.planner import make_plan

        target, threads, shared = job.target, job.threads, job.shared_weights
        assert target is not None
        room = job.room or Heap()
        with job.compiler or self.compiler(target, threads, job.cache) as compiler:
            built = make_plan(graph, target, job, _Sink(compiler, room), shared)
            blob = Blob(room.finish(built.own_bytes), built.rows)
            if job.planned is not None:
                job.planned(built)
            library = compiler.load(built.codes)
        plan = built.plan._replace(memory=built.plan.memory._replace(code=len(library.data)))
        nodes: dict[str, tuple[Any, Any]] = {
            name: (node.op, as_number(node.attrs)) for name, node in built.nodes.items()
        }
        team = team_address(target, job.cache, threads)
        program = Program(plan, library, [blob, *built.shared], nodes, built.constants, team)
        if shared is not None:
            shared.add(blob, built.made)
        return Compiled(program, built)


HOST = Cpu()
"""The backend whose programs are called: parts that other backends compute are steps of these."""

BACKENDS.register(DEFAULT, HOST)


def compile_placed(graph: Graph, target: Target, **options: Any) -> Compiled:
    """`Cpu.compile` for a target; `options` are the other fields of `Job`."""
    return HOST.compile(graph, Job(target=target, **options))


class Room(Protocol):
    """Memory in which packed weights are joined to one buffer: `put` each at its offset in bytes,
    then call `finish`."""

    def put(self, offset: int, array: Array) -> None: ...

    def finish(self, nbytes: int) -> Array:
        """All weights in one aligned buffer of uint8: `nbytes` bytes, and `SLACK` bytes of padding,
        which kernels may read past the last weight."""
        ...


class Heap:
    """A `Room` in memory of this process."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Array]] = []

    def put(self, offset: int, array: Array) -> None:
        self._parts.append((offset, array))

    def finish(self, nbytes: int) -> Array:
        blob, end = aligned(nbytes + SLACK), nbytes + SLACK
        self._parts.sort(key=itemgetter(0))
        while self._parts:  # each is freed when it has been copied
            offset, array = self._parts.pop()
            last = offset + array.nbytes
            blob[offset:last] = array.reshape(-1).view(np.uint8)
            blob[last:end] = 0  # a file may carry it, gaps and all
            end = offset
        blob[:end] = 0
        return blob


class _Sink:
    """The planner's `Sink`: passes code to the compiler, which begins at once, and packed weights
    to the room."""

    def __init__(self, compiler: Compiler, room: Room) -> None:
        self._compiler, self.weights = compiler, room.put

    def code(self, symbol: str, text: str) -> None:
        self._compiler.add(text)
