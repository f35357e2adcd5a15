"""`load`, `compile`, `save`: a model (a file, a graph) -> a Net, and back to a file of our own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tinsmith import budget
from tinsmith.backends import DEFAULT, Job, backends_of, is_whole
from tinsmith.compiler.collector import still
from tinsmith.compiler.model import Model
from tinsmith.compiler.options import (
    MEMORY,
    PRECISIONS,
    SHAPES,
    check_flags,
    check_name,
    check_unused,
    refuse_others,
    whole_threads,
)
from tinsmith.compiler.source import Request
from tinsmith.errors import (
    FileNameError,
    ModelFileError,
    OptionError,
)
from tinsmith.progress import check_progress
from tinsmith.runtime.forks import working
from tinsmith.runtime.net import Net

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.graph import Graph

    class Proto(Protocol):
        """An `onnx.ModelProto`."""

        def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...


ModelLike: TypeAlias = (
    "Graph | str | os.PathLike[str] | bytes | bytearray | memoryview | tuple[Any, Any] | Proto"
)
"""What a model is read from."""

READING = ("random_weights", "batch", "input_shapes")
"""The options of `compile` that are those of `load`."""


def load(
    model: ModelLike, *, random_weights: int | None = None, batch: str | int | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Graph:  # fmt: skip
    """Read a model of any supported format (recognised by its content) as a Graph: a path, the
    bytes of a file, an `onnx.ModelProto`, or a pair (param, bin) of paths or bytes.

    random_weights  a seed, where weights are in a file of their own (PNNX, ncnn): they are drawn
                    at random, the same for a seed, and none are read
    batch           "free": inputs of any batch, "N", for files that have one (PNNX); the name or
                    size of the first axis that all inputs and outputs get, or "none", for files
                    that have none (ncnn; "free" is "N", as where nothing is said)
    input_shapes    {"x": (1, 3, 224, 224)}: shapes of inputs that the file leaves free, numbers or
                    names; where ncnn's files tell sizes, too, in their place

    Raises ModelFileError, ExternalDataError, ImportFailed, or OptionError for an option that is not
    of the model's format.
    """
    with working():
        from tinsmith.frontends import load as load_model

        return load_model(
            model, random_weights=random_weights, batch=batch, input_shapes=input_shapes
        )


@refuse_others
@still
def compile(
    model: ModelLike,
    *,
    threads: int | None = None,
    backend: str | Sequence[str] = DEFAULT,
    target: str | Target | None = None,
    kernels: str | Mapping[str, str] | None = None,
    passes: str | None = None,
    precision: str | None = None,
    weights: str | None = None,
    memory: str | None = None,
    shapes: str | None = None,
    sizes: Mapping[str, int | tuple[int, int]] | None = None,
    tune: bool = False,
    cache: bool = True,
    trust: bool = False,
    fixed: Mapping[str, Any] | None = None,
    random_weights: int | None = None,
    batch: str | int | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> Net:
    """Compile a model for this machine: a path, a graph, an `onnx.ModelProto`, or the bytes of a
    file.

    threads    that compute; 1 where nothing is said
    backend    "cpu" (generated code), "numpy" (the reference of every operator), or another that is
               registered; or several, "toy,cpu" or ("toy", "cpu"): each node goes to the first that
               takes it
    target     "host", or an instruction set this machine has: "amx", "avx512bf16",
               "avx512vnni", "avx512", "avxvnni", "avx2", "sse2", "scalar"
    kernels    overrides, as TINSMITH_KERNELS: "Conv=reference,layer1.0.conv1=conv_direct"
    passes     which passes run, e.g. "-fuse-elementwise" (see `tinsmith passes`)
    precision  "default", or "strict" (no Strassen, no matrix registers, only small Winograd tiles:
               what rounds less), or "bfloat16" (products of operands that are rounded to bfloat16,
               with sums in float32, where the machine has instructions for them: docs/numerics.md)
    weights    "float32", "float16", "bfloat16", "int8", "int4": how large weights are kept, also
               in memory where products read them; "int4/32": a scale for each 32
               (docs/quantize.md)
    memory     "default", or "small" (no weights that are larger in a kernel than in the model)
    shapes     of a model of free shapes: "fixed" (each is compiled on its own), "free" (one program
               takes all that it can), or "both": the first on its own, then one for all others, and
               on another thread one for each that comes often, which takes over when it is ready
    sizes      hints by the names of free dimensions, {"seq": (1, 2048), "batch": 4}: a range,
               outside which calls are refused (OutsideHint), or a typical size. Programs for free
               sizes are made for the typical size, of a range its geometric middle, and their
               memory is bounded by the upper ends; with shapes="free" the first is made at once,
               if all free dimensions have hints
    tune       time the near candidates of every kind of layer in the program, once a machine:
               the winners are kept in the cache directory, for this and all models
    cache      keep compiled programs on disk, and use them; TINSMITH_CACHE says where
    trust      run the machine code that a .tin file carries; without it, code is made anew
    fixed      values of inputs, {"sr": 16000}: constants that the net no longer takes, so that
               branches and shapes that depend on them are known when it is compiled
    random_weights, batch, input_shapes  of `load`
    progress   a function (done, total, what), called by the compiling thread as "reading",
               "passes", "steps" (nodes that get a kernel) and "kernels" (machine code) go on, also
               where a call compiles for new shapes; what it raises ends the compilation. None: a
               line on standard error, where that is a terminal and it takes longer than 0.3 s.
               False: nothing

    Options left out are those that trusted code was made with. Given ones that differ are refused
    by OptionError, and code of another release or for another machine by UntrustedCode.

    A model of free shapes is compiled when it is called. A path whose compiled
    program is in the cache is not parsed at all.

    Raises OptionError for a value of another type, UnknownName for a name that there is not,
    PassChoiceError for `passes` that are not understood, TargetError for a target that cannot be
    had, NoBackend for a node that none of the backends takes, InputError for what cannot be fixed.
    """
    backends = {} if backend == DEFAULT else backends_of(backend)  # the usual one needs no table
    named = (
        ("precision", precision, PRECISIONS),
        ("memory", memory, MEMORY),
        ("shapes", shapes, SHAPES),
    )
    for option, name, known in named:
        if name is not None:
            check_name(option, name, known)
    check_flags(tune=tune, cache=cache, trust=trust)
    check_progress(progress)
    threads = None if threads is None else whole_threads(threads)
    values, hints = _values(fixed), _hints(sizes)
    asked = {"random_weights": random_weights, "batch": batch, "input_shapes": input_shapes}
    reading = {name: value for name, value in asked.items() if value is not None}
    if not isinstance(model, str | os.PathLike):
        model, reading = load(model, **reading), {}
    with working(), budget.told("compiling this model"):
        budget.check_setting()
        forced = (os.environ.get("TINSMITH_KERNELS") or None) if kernels is None else kernels
        passes = (os.environ.get("TINSMITH_PASSES") or None) if passes is None else passes
        kept, small = _weights(weights)
        if is_whole(backends):
            from tinsmith.compiler.fixed import with_fixed
            from tinsmith.compiler.hints import check_names, ranges_of
            from tinsmith.compiler.whole import Whole

            [(name, whole)] = backends.items()
            graph, _ = with_fixed(_graph(model, reading), values)
            check_unused(graph, forced, passes)
            check_names(hints, {v.name: v.type for v in graph.inputs})
            if small:
                from tinsmith.passes.weights import shrunk

                graph = shrunk(graph, *kept)
            return Whole(graph, name, whole, Job(threads or 1), ranges_of(hints)).net()
        if small:
            passes = f"{passes},{small}" if passes else small
        asked = {
            "threads": threads, "backend": ",".join(backends) or DEFAULT, "kernels": forced,
            "passes": passes, "precision": precision, "memory": memory, "shapes": shapes,
            "sizes": hints,
        }  # fmt: skip
        given = {name: value for name, value in asked.items() if value is not None}
        request = Request(model, target, given, tune, cache, trust, progress, values, reading)
        return Model(request).net()


def _values(fixed: Mapping[str, Any] | None) -> dict[str, Any]:
    if fixed is None:
        return {}
    from tinsmith.compiler.fixed import fixed_values

    return fixed_values(fixed)


def _hints(sizes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if sizes is None:
        return None
    from tinsmith.compiler.hints import hints_of

    return hints_of(sizes)


def _graph(model: Any, reading: Mapping[str, Any]) -> Graph:
    return load(model, **reading) if isinstance(model, str | os.PathLike) else model


def _weights(text: str | None) -> tuple[tuple[str, int], str]:
    """The element type and block size that `weights=` says, and the passes that make them so."""
    if text is None:
        return ("float32", 0), ""
    from tinsmith.passes.weights import parse, spec_of

    return parse(text), spec_of(text)


def save(model: Net | Graph, path: str | os.PathLike[str], *, code: bool = False) -> None:
    """Write a model as a .tin file: the graph as text, and constants that load by mapping.

    With `code` the machine code and packed weights of a compiled Net go along, of all shapes that
    it has programs for (the last 16 that were used); they are used only by
    `compile(path, trust=True)`, on a machine of the same kind. The path must end in `.tin`.
    Raises ModelFileError, FileNameError.
    """
    from tinsmith.formats.container import write_container
    from tinsmith.formats.tin import graph_sections
    from tinsmith.graph import Graph

    if not isinstance(model, Net | Graph):
        raise OptionError(f"save takes a compiled Net or a Graph, not {type(model).__name__}")
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"save writes to a path, not to {type(path).__name__}")
    if Path(path).suffix.lower() != ".tin":
        raise FileNameError(
            f"save writes Tinsmith's own format, not that of {os.fspath(path)!r}; "
            f"name the file {Path(path).stem + '.tin'!r}"
        )
    check_flags(code=code)
    graph = model if isinstance(model, Graph) else model.source()
    sections = graph_sections(graph)
    if code:
        program = None if isinstance(model, Graph) else model.sections()
        if program is None:
            raise ModelFileError(
                f"{path}: there is no code that can be saved: a graph has none, nor have backends "
                "that compute models as they are; parts of other backends and steps by reference "
                "that hold a graph or text cannot be written (net.explain() lists them first); "
                "leave out code=True"
            )
        sections |= program
    try:
        write_container(Path(path), sections)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{str(path)!r} cannot be written: {why}") from error
