"""What the commands that compile a model share: options, and the compilation, which is timed."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import click

from tinsmith.backends import BACKENDS, DEFAULT, backends_of
from tinsmith.cli import _show
from tinsmith.cli._picture import PICTURES
from tinsmith.cli._sizes import UNFIT, assuming, exact, input_shapes, ranges, signature_of, sizes
from tinsmith.errors import TypeRuleError
from tinsmith.graph import Graph, Type
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.runtime.net import Net

DIM = "NAME=SIZE|NAME=LEAST..LARGEST"
DIM_HELP = (
    "Size of a free dimension, or the range that its sizes are in: code is made for a size in the"
    " middle of it."
)
MODEL = click.Path(exists=True, readable=True, dir_okay=False)


class Number(click.FloatRange):
    """The type of an option: a number from 0 to `max`, not NaN."""

    name = "number"

    def __init__(self, max: float) -> None:
        super().__init__(0, max)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found = float(super().convert(value, param, ctx))
        if found != found:
            self.fail("NaN is no number", param, ctx)
        return found


class Backends(click.ParamType):
    """The type of `--backend`: a name, or several in order of preference, as in `toy,cpu`. Raises
    OptionError and UnknownName."""

    name = "backend"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(BACKENDS)}]"

    def convert(self, value: str, param: Any, ctx: Any) -> str:
        return ",".join(backends_of(value))


@dataclass(frozen=True)
class Build:
    """The options that say how to compile (`build_options`); None: the default of `compile`."""

    threads: int | None = None
    backend: str = DEFAULT
    target: str | None = None
    kernels: str | None = None
    passes: str | None = None
    precision: str | None = None
    weights: str | None = None
    small_memory: bool = False
    shapes: str | None = None
    tune: bool = False
    no_cache: bool = False
    trust: bool = False
    fixed: Mapping[str, Any] | None = None
    random_weights: int | None = None
    batch: str | None = None
    input_shapes: Mapping[str, Any] | None = None
    sizes: Mapping[str, tuple[int, int]] | None = None

    def hinted(self, dims: tuple[str, ...]) -> Build:
        """A copy with the ranges of --dim as hints of sizes."""
        return replace(self, sizes=ranges(dims) or None)

    def load(self, path: str) -> Graph:
        """The imported graph, in which the inputs of --fix are constants."""
        import tinsmith as ts
        from tinsmith.compiler.fixed import fixed_values, with_fixed

        graph = ts.load(
            path, random_weights=self.random_weights, batch=as_batch(self.batch),
            input_shapes=self.input_shapes,
        )  # fmt: skip
        return with_fixed(graph, fixed_values(self.fixed))[0]

    def compile(self, path: str, dims: tuple[str, ...] | None = None) -> Built:
        """Compile, with progress on a terminal. With `dims`, the values of --dim, a program is made
        for these sizes, and 1 for other free dimensions; else none yet. Raises TinsmithError, click
        errors for usage."""
        import tinsmith as ts

        start = time.perf_counter()
        with _show.working(f"compiling {path}"):
            build = self if dims is None else self.hinted(dims)
            net = ts.compile(path, **build.options())
            if dims is not None:
                chosen = sizes(dims, net.inputs)
                if net.has_programs:
                    with assuming(net.inputs, chosen):
                        net.program(signature_of(net.name, net.inputs, chosen))
        return Built(path, net, (time.perf_counter() - start) * 1e3)

    def compile_for(self, path: str, given: Given) -> tuple[Built, Fed]:
        """Compile for the shapes of the given inputs, which are read; return the net and the
        inputs."""
        built = self.hinted(given.dims).compile(path)
        net = built.net
        fed = given.read(net.inputs)
        start = time.perf_counter()
        if net.has_programs:
            with _show.working(f"compiling {path}"), fed.blamed():
                net.program_for(**fed.arrays)
        more = (time.perf_counter() - start) * 1e3
        return Built(path, net, built.compile_ms + more), fed

    def threads_of(self, net: Net) -> int:
        """The number of threads: the option's value, or that of the program, or 1."""
        if self.threads is not None:
            return self.threads
        return net.program().plan.threads if net.has_programs else 1

    def options(self) -> dict[str, Any]:
        """The given options as arguments of `tinsmith.compile`."""
        given = asdict(self) | {"batch": as_batch(self.batch)}
        if given.pop("small_memory"):
            given["memory"] = "small"
        given["cache"] = not given.pop("no_cache")
        return {name: value for name, value in given.items() if value is not None}


def as_batch(text: str | None) -> str | int | None:
    """The value of --batch as `load` takes it: a size as int, or a word."""
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else text


@dataclass(frozen=True)
class Built:
    """A compiled model, its path, and the milliseconds of reading and compiling it."""

    path: str
    net: Net
    compile_ms: float


def taken_as(
    name: str, record: type, options: Sequence[Callable[..., Any]]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds options to a command, and passes their values to it as one argument
    called `name`: a `record`, a data class whose fields are named as the options' parameters."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            taken = {f.name: kwargs.pop(f.name) for f in fields(record) if f.name in kwargs}
            return command(*args, **{name: record(**taken)}, **kwargs)

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorate


def known_precision(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Check the value of --precision, and return it. Raises UnknownName."""
    from tinsmith.compiler.options import PRECISIONS, check_name

    check_name("precision", text or "default", PRECISIONS)
    return text


def known_target(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Check the value of --target, and return it. Raises UnknownName, TargetError."""
    from tinsmith.codegen.target import ISAS, level
    from tinsmith.compiler.options import check_name

    check_name("target", text or "host", ("host", "native", *ISAS))
    level(text or "host")
    return text


READING = (
    click.option(
        "--random-weights",
        type=click.IntRange(0),
        metavar="SEED",
        help="Draw the weights at random, of a format that has them in a file of their own.",
    ),
    click.option(
        "--batch",
        metavar="[free|NAME|SIZE|none]",
        help="The batch: 'free' (N) of a PNNX file, which has one; the first axis that models of"
        " ncnn get, by name or size, or 'none'.",
    ),
    click.option(
        "--input-shape",
        "input_shapes",
        multiple=True,
        metavar="NAME=SIZE,...",
        callback=lambda _, __, texts: input_shapes(texts),
        help="The shape of an input that the file leaves free: sizes, or names of free ones.",
    ),
)
"""The options of `load`: how a model is read."""
RANDOM_WEIGHTS, _, INPUT_SHAPE = READING

BUILD_OPTIONS = (
    click.option(
        "-t",
        "--threads",
        type=click.IntRange(1, 64),
        help="Threads that compute; one, where nothing is said.",
    ),
    click.option(
        "--backend",
        type=Backends(),
        default=DEFAULT,
        show_default=True,
        help="'cpu' for machine code, 'numpy' for the reference; of several, 'A,B', each node's"
        " is the first that takes it.",
    ),
    click.option(
        "--target",
        metavar="[host|scalar|sse2|avx2|avxvnni|avx512|avx512vnni|avx512bf16|amx|neon|neondot|i8mm]",
        callback=known_target,
        help="Generate for these instructions rather than for all that this machine has (host, "
        "native).",
    ),
    click.option("--kernels", help="Force kernels: 'Conv=reference,NODE=KERNEL'."),
    click.option("--passes", help="Choose passes: '-merge-common'. See `tinsmith passes`."),
    click.option(
        "--precision",
        metavar="[default|strict|bfloat16]",
        callback=known_precision,
        help="'strict' leaves out what rounds most: matrix registers (AMX), Strassen's method,"
        " large Winograd tiles. 'bfloat16' rounds what is multiplied, where that is faster.",
    ),
    click.option(
        "--weights",
        metavar="[fp32|fp16|bf16|int8|int4]",
        help="Keep large weights so, rounded to the nearest; 'int4/32': a scale for each 32.",
    ),
    click.option(
        "--small-memory", is_flag=True, help="Leave out kernels whose weights outgrow the model's."
    ),
    click.option(
        "--shapes",
        metavar="[both|fixed|free]",
        help="Of free shapes: 'fixed' compiles each, 'free' one program for all that it can"
        " take, 'both' the first alone, then one for the others.",
    ),
    click.option(
        "--tune",
        is_flag=True,
        help="Time the candidates of every kind of layer, and keep the winners for this machine.",
    ),
    click.option(
        "--fix",
        "fixed",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _, __, texts: fixed(texts),
        help="Make an input a constant: a number, or a list such as [1,2].",
    ),
    *READING,
    click.option("--no-cache", is_flag=True, help="Compile anew, and keep nothing."),
    click.option(
        "--trust",
        is_flag=True,
        help="Run the machine code that a .tin file carries, by the options it was made with.",
    ),
)
"""The options of commands that compile a model, in the order of the help."""


build_options = taken_as("build", Build, BUILD_OPTIONS)
"""Adds the options of `Build`; the command gets one as `build`."""


def fixed(texts: Sequence[str]) -> dict[str, Any] | None:
    """Parse the values of --fix: ("sr=16000",) gives {"sr": 16000}; None if there are none."""
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or literal(value) is None:
            raise click.BadParameter(f"{text!r} is not NAME=NUMBER", param_hint="--fix")
        if name in found:
            raise click.BadParameter(f"{name} is given twice", param_hint="--fix")
        found[name] = literal(value)
    return found or None


def literal(text: str) -> Any:
    """Parse a number, a bool, or a list of these or of such lists, written as JSON. None for any
    other text, such as a name or a path."""
    try:
        value = json.loads(text)
        return value if _holds_numbers(value) else None
    except (ValueError, RecursionError):
        return None


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_holds_numbers, value))
    return isinstance(value, int | float)


@dataclass(frozen=True)
class Given:
    """The options about a model's inputs (`input_options`)."""

    inputs: tuple[str, ...]
    dims: tuple[str, ...]
    seed: int
    scale: str
    fit: str

    def read(
        self, types: Mapping[str, Type], held: Mapping[str, Any] | None = None, source: str = ""
    ) -> Fed:
        """Read all inputs, by name. `held`: arrays by name for some of them, from the file
        `source`."""
        from tinsmith.cli._inputs import Inputs
        from tinsmith.cli._picture import Picture

        chosen, picture = exact(self.dims, types), Picture(self.scale, self.fit)
        reader = Inputs(types, chosen, self.seed, picture, sizes(self.dims, types))
        for name, array in (held or {}).items():
            reader.put(name, array, source)
        arrays = reader.read(self.inputs)
        return Fed(
            arrays, reader.notes, dict(types), {**reader.typical, **reader.given, **reader.dims}
        )


@dataclass(frozen=True)
class Fed:
    """The inputs of a call: name -> array, name -> where it is from (`notes`), name -> type, and
    the sizes that were chosen for free dimensions."""

    arrays: dict[str, Any]
    notes: dict[str, str]
    types: dict[str, Type]
    chosen: Mapping[str, int]

    @property
    def random(self) -> list[str]:
        """The names of random inputs, integers first: most likely wrong, as sizes or indices."""
        names = [n for n in self.types if self.notes[n] == "random"]
        return sorted(names, key=lambda n: self.types[n].dtype.kind not in "iu")

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """A context for running the model: an error about sizes or values that do not fit gets a
        note that says which of them the user has not chosen."""
        from tinsmith.cli._inputs import MADE_UP
        from tinsmith.compiler.verify import were_random

        made_up = {n: t for n, t in self.types.items() if self.notes[n] in MADE_UP}
        try:
            with assuming(made_up, self.chosen):
                yield
        except UNFIT as error:
            names = self.random
            sizes = isinstance(error, TypeRuleError)  # of which floats are none
            if names and not (sizes and self.types[names[0]].dtype.kind == "f"):
                error.add_note(f"{were_random(names)}: give {names[0]}=FILE, or a number")
            raise


INPUT_OPTIONS = (
    click.argument("inputs", nargs=-1),
    click.option("--dim", "dims", multiple=True, metavar=DIM, help=DIM_HELP),
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random inputs."
    ),
    *PICTURES,
)

input_options = taken_as("given", Given, INPUT_OPTIONS)
"""Adds the arguments and options of `Given`; the command gets one as `given`."""
