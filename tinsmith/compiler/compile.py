"""`load`, `compile`, `save`: from a model (a file, a graph) to a Net, and back to a .tin file."""

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
from tinsmith.errors import FileNameError, ModelFileError, OptionError
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
"""The types of objects from which a model is read."""

READING = ("random_weights", "batch", "input_shapes")
"""The options of `compile` that it passes on to `load`."""


@refuse_others
def load(
    model: ModelLike, *, random_weights: int | None = None, batch: str | int | None = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Graph:  # fmt: skip
    """Read a model of any supported format (recognised by its content) as a Graph: a path, the
    bytes of a file, an `onnx.ModelProto`, or a pair (param, bin) of paths or bytes. A Graph is
    returned as it is.

    random_weights  a seed, for formats with weights in a file of their own (PNNX, ncnn): weights
                    are drawn at random, always the same for a seed, and that file is not read
    batch           PNNX, whose files have a batch: "free" makes its size free, and names it "N".
                    ncnn, whose files have none: the name or size of a first axis that all inputs
                    and outputs get, or "none" (default: a free axis "N", as for "free")
    input_shapes    {"x": (1, 3, 224, 224)}: numbers or names for the shapes of inputs that the file
                    leaves free. A name also frees a size of the file. For ncnn the given shape,
                    which includes the batch, replaces the file's

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
    """Compile a model for this machine: a graph, a path, or what else `load` reads.

    threads    number of threads that compute (default 1)
    backend    "cpu" (generated code), "numpy" (the reference of every operator), or another that is
               registered; or several, "toy,cpu" or ("toy", "cpu"): each node goes to the first that
               takes it
    target     "host", or an instruction set this machine has: "amx", "avx512bf16",
               "avx512vnni", "avx512", "avxvnni", "avx2", "sse2", "scalar"
    kernels    overrides, as TINSMITH_KERNELS: "Conv=reference,layer1.0.conv1=conv_direct"
    passes     which passes run, e.g. "-fuse-elementwise" (see `tinsmith passes`)
    precision  "default", or "strict" (only algorithms with small rounding errors: no Strassen, no
               matrix registers, only small Winograd tiles), or "bfloat16" (products of operands
               that are rounded to bfloat16, with sums in float32, where the machine has
               instructions for them: docs/numerics.md)
    weights    the element type in which large weights are kept, in memory too, where products read
               them: "float32", "float16", "bfloat16", "int8", "int4"; "int4/32": with a scale for
               each 32 (docs/quantize.md)
    memory     "default", or "small" (no kernels whose packed weights are larger than the model's)
    shapes     how a model of free shapes is compiled: "fixed" (a program for each signature),
               "free" (one program for as many signatures as it can take), or "both": a program for
               the first signature, then one for all others; for signatures that come often,
               another thread compiles programs of their own, which take over when they are ready
    sizes      hints by the names of free dimensions, {"seq": (1, 2048), "batch": 4}: a range,
               outside which calls are refused (OutsideHint), or a typical size. Programs for free
               sizes are made for the typical size, of a range its geometric middle, and their
               memory is bounded by the upper ends; with shapes="free" the first is made at once,
               if all free dimensions have hints
    tune       measure, for every kind of layer, the kernels whose estimated times are close; the
               cache directory keeps the fastest, for all models
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

    With `trust`, options that are not given are those with which the file's code was made; given
    ones that differ raise OptionError, and code of another release or machine UntrustedCode.

    A model of free shapes is compiled when it is called. A file whose compiled program is in the
    cache is not parsed at all.

    Raises OptionError for a value of another type, UnknownName for an unknown name, PassChoiceError
    for `passes` that are not understood, TargetError for a target that this machine is not,
    NoBackend for a node that no backend takes, InputError for `fixed` values that do not fit.
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
    values, hints = _inputs_told(fixed, sizes)
    asked = {"random_weights": random_weights, "batch": batch, "input_shapes": input_shapes}
    reading = {name: value for name, value in asked.items() if value is not None}
    if not isinstance(model, str | os.PathLike) or model == "":
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
            read = load(model, **reading) if isinstance(model, str | os.PathLike) else model
            graph, _ = with_fixed(read, values)
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


def _inputs_told(fixed: Any, sizes: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return (values of inputs, hints of sizes) for the options `fixed` and `sizes`. Loads the
    modules that check these only if one is given: a start from the cache needs neither."""
    if fixed is None and sizes is None:
        return {}, None
    from tinsmith.compiler.fixed import fixed_values
    from tinsmith.compiler.hints import hints_of

    return fixed_values(fixed), hints_of(sizes)


def _weights(text: str | None) -> tuple[tuple[str, int], str]:
    """Return ((element type, block size), passes) for the option `weights`: "int4/32" gives
    ("int4", 32); no block size is 0. `passes`: text for the option `passes` that adds the passes
    which convert weights, or ""."""
    if text is None:
        return ("float32", 0), ""
    from tinsmith.passes.weights import parse, spec_of

    return parse(text), spec_of(text)


@refuse_others
def save(model: Net | Graph, path: str | os.PathLike[str], *, code: bool = False) -> None:
    """Write a model as a .tin file: the graph as text, and constants that load by mapping.

    With `code`, the file also gets a Net's programs (machine code, packed weights) of the last 16
    signatures. Only `compile(path, trust=True)` uses them, on a machine of the same kind. Raises
    FileNameError unless the path ends in `.tin`, OptionError for arguments of other types,
    ModelFileError if the file cannot be written, or if `code` is asked of a model that has no code
    to store (as a Graph), and InputShapeError if `code` is asked of a Net of free shapes that has
    no program yet: call it first."""
    from tinsmith.formats.container import write_container
    from tinsmith.formats.tin import graph_sections
    from tinsmith.graph import Graph

    if not isinstance(model, Net | Graph):
        raise OptionError(
            f"save takes a compiled Net or a Graph, not {type(model).__name__}; tinsmith.write "
            "takes what load reads"
        )
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
