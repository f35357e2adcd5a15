"""How a model is compiled: the options, and which values they take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from numbers import Integral
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tinsmith.backends import DEFAULT, backends_of
from tinsmith.errors import OptionError, UnknownName, suggest
from tinsmith.records import dataclass

if TYPE_CHECKING:
    from tinsmith.codegen.target import Target
    from tinsmith.compiler.hints import Hints
    from tinsmith.graph import Graph

PRECISIONS = ("default", "strict", "bfloat16")
MEMORY = ("default", "small")
SHAPES = ("both", "fixed", "free")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What, besides the model and the machine, decides which program comes out; see `compile`."""

    threads: int = 1
    backend: str = DEFAULT
    kernels: str | Mapping[str, str] | None = None
    passes: str = ""
    precision: str = "default"
    memory: str = "default"
    shapes: str = "both"
    sizes: Hints | None = None


def machine_of(target: str | Target | None, backend: str = DEFAULT) -> Target:
    """The machine that `compile`'s `target` means. Raises TargetError where one of the backends can
    make nothing for it."""
    from tinsmith.backends.cpu import HOST
    from tinsmith.codegen.target import Target, level

    if target is not None and not isinstance(target, str | Target):
        raise OptionError(f"target must be a name such as 'avx2', not {target!r}")
    machine = target if isinstance(target, Target) else level(target or "host")
    for each in {HOST, *backends_of(backend).values()}:
        each.need_target(machine)
    return machine


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters, without `**`."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def check_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises OptionError for an option that a function does not have."""
    for name in given:
        if name not in known:
            hint = suggest(name, known) or f" It has {', '.join(known)}."
            raise OptionError(f"{function} has no option {name!r}.{hint}")


def refuse_others(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: refuse keywords that the function does not have as our own error, which says what
    is meant."""
    name, known = function.__name__, keywords_of(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(name, kwargs, known)
        return function(*args, **kwargs)

    return checked


def check_name(option: str, name: object, known: Collection[str]) -> None:
    """Raises OptionError where an option's name is no text, UnknownName where it is not known."""
    if not isinstance(name, str):
        raise OptionError(f"{option} must be one of {', '.join(map(repr, known))}, not {name!r}")
    if name not in known:
        raise UnknownName(option, name, known)


def check_flags(**flags: object) -> None:
    """Raises OptionError for what is neither True nor False: other values look like a meaning."""
    for option, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{option} must be True or False, not {value!r}")


def whole_threads(threads: object) -> int:
    """A number of threads, of whatever integer type. Raises OptionError."""
    if isinstance(threads, Integral) and not isinstance(threads, bool) and 1 <= threads <= 64:  # type: ignore[operator]
        return int(threads)
    raise OptionError(f"threads must be a whole number from 1 to 64, not {threads!r}")


def check_unused(graph: Graph, kernels: str | Mapping[str, str] | None, passes: str | None) -> None:
    """Check the options `kernels` and `passes` for a backend that has no use for them, so that what
    is wrong raises the same errors as elsewhere."""
    if passes is not None:
        from tinsmith.passes.choice import parse_spec

        parse_spec(passes)
    if kernels is not None:
        from tinsmith.kernels.select import check_overrides, parse_overrides

        check_overrides(parse_overrides(kernels), {n.name for n in graph})
