"""The plan: what runs in which order on which memory. Data only: frozen, printable, savable."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SPACES = ("arena", "weights", "workspace", "input", "output")


@dataclass(frozen=True)
class Ref:
    """An address: byte `offset` in a memory space; `index` tells which input or output."""

    space: str
    offset: int = 0
    index: int = 0


@dataclass(frozen=True)
class Call:
    """One native function over `tiles`; `barrier`: all threads must have finished it before the
    next call. `workspace` is the bytes of workspace that each thread owns (0: none). `repeat` times
    in sequence, a barrier after each."""

    symbol: str
    refs: tuple[Ref, ...]
    tiles: int
    barrier: bool = True
    workspace: int = 0
    repeat: int = 1


@dataclass(frozen=True)
class Operand:
    """A plain tensor that a reference step reads or writes: an address, or a named array that only
    reference steps see (`ref` is None)."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    ref: Ref | None


@dataclass(frozen=True)
class Step:
    """One node of the placed graph (or a conversion between layouts).

    `fault`: what it means if the code has set the four bytes at `fault_at` of the arena.
    kind: "native" (calls), "reference" (numpy), "view" (no work). `cost` is the model's seconds.
    """

    name: str
    op: str
    kind: str
    kernel: str
    detail: str
    origin: str
    calls: tuple[Call, ...] = ()
    cost: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0
    reads: tuple[Operand | None, ...] = ()
    writes: tuple[Operand, ...] = ()
    fault: str = ""
    fault_at: int = -1


@dataclass(frozen=True)
class Memory:
    """Bytes: the arena's `peak`, the sum of all its tensors without sharing (`naive`), the most
    that is alive at one step (`lower_bound`), packed and constant weights, workspace, code."""

    peak: int
    naive: int
    lower_bound: int
    weights: int
    workspace: int
    code: int = 0

    def __str__(self) -> str:
        def mib(n: int) -> str:
            return f"{n / 2**20:.2f} MiB"

        return (
            f"arena {mib(self.peak)} (lower bound {mib(self.lower_bound)}, without sharing "
            f"{mib(self.naive)}), weights {mib(self.weights)}, workspace {mib(self.workspace)}, "
            f"code {self.code / 1024:.0f} KiB"
        )


@dataclass(frozen=True)
class Port:
    """An input or output of a program: name, dtype name, static shape."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Everything that a Program needs besides code and weights."""

    model: str
    target: str
    isa: str
    threads: int
    inputs: tuple[Port, ...]
    outputs: tuple[Operand, ...]
    steps: tuple[Step, ...]
    memory: Memory

    def segments(self) -> list[tuple[str, list[Step]]]:
        """In order: runs of native steps, and reference steps one by one, with their kind."""
        runs: list[tuple[str, list[Step]]] = []
        for step in self.steps:
            if step.kind == "view":
                continue
            if step.kind == "native" and runs and runs[-1][0] == "native":
                runs[-1][1].append(step)
            else:
                runs.append((step.kind, [step]))
        return runs

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Plan:
        def ref(d: dict[str, Any] | None) -> Ref | None:
            return None if d is None else Ref(**d)

        def operand(d: dict[str, Any] | None) -> Operand | None:
            return (
                None
                if d is None
                else Operand(d["name"], d["dtype"], tuple(d["dims"]), ref(d["ref"]))
            )

        def call(d: dict[str, Any]) -> Call:
            refs = tuple(Ref(**r) for r in d["refs"])
            return Call(d["symbol"], refs, d["tiles"], d["barrier"], d["workspace"], d["repeat"])

        def step(d: dict[str, Any]) -> Step:
            lists = {
                "calls": tuple(map(call, d["calls"])),
                "reads": tuple(map(operand, d["reads"])),
                "writes": tuple(map(operand, d["writes"])),
            }
            return Step(**{**d, **lists})

        def port(d: dict[str, Any]) -> Port:
            return Port(d["name"], d["dtype"], tuple(d["dims"]))

        return Plan(
            model=data["model"],
            target=data["target"],
            isa=data["isa"],
            threads=data["threads"],
            inputs=tuple(map(port, data["inputs"])),
            outputs=tuple(filter(None, map(operand, data["outputs"]))),
            steps=tuple(map(step, data["steps"])),
            memory=Memory(**data["memory"]),
        )

    def __str__(self) -> str:
        lines = [f"plan {self.model} for {self.target}, {self.threads} thread(s); {self.memory}"]
        for step in self.steps:
            where = " ".join(f"{r.space}+{r.offset}" for c in step.calls for r in c.refs)
            lines.append(f"  {step.name:40} {step.op:16} {step.kernel:24} {step.detail:20} {where}")
        return "\n".join(lines)
