"""The options of `compile`, and checks of their values."""

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
    from tinsmith.graph import Graph

PRECISIONS = ("default", "strict", "bfloat16")
MEMORY = ("default", "small")
SHAPES = ("both", "fixed", "free")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """The options of `compile` that change the program. Together with the model and the machine
    they determine it, so they are part of the key under which it is stored."""

    threads: int = 1
    backend: str = DEFAULT
    kernels: str | Mapping[str, str] | None = None
    passes: str = ""
    precision: str = "default"
    memory: str = "default"
    shapes: str = "both"
    sizes: Mapping[str, int | tuple[int, int]] | None = None


def machine_of(target: str | Target | None, backend: str = DEFAULT) -> Target:
    """Return the machine for the option `target` (None: this machine). Raises TargetError if it is
    unknown, or a backend cannot compile for it; OptionError for another type."""
    from tinsmith.backends.cpu import HOST
    from tinsmith.codegen.target import Target, level

    if target is not None and not isinstance(target, str | Target):
        raise OptionError(f"target must be a name such as 'avx2', not {target!r}")
    machine = target if isinstance(target, Target) else level(target or "host")
    for each in {HOST, *backends_of(backend).values()}:
        each.need_target(machine)
    return machine


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, except `*args` and `**kwargs`; of a decorated
    function, those of the function inside."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def check_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise OptionError for a given name that is not in `known`; `function` is for the message."""
    for name in given:
        if name not in known:
            hint = suggest(name, known) or f" It has {', '.join(known)}."
            raise OptionError(f"{function} has no option {name!r}.{hint}")


def refuse_others(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: raise OptionError, which suggests names, for keywords that the function does not
    have, instead of Python's TypeError."""
    name, known = function.__name__, keywords_of(function)

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(name, kwargs, known)
        return function(*args, **kwargs)

    return checked


def check_name(option: str, name: object, known: Collection[str]) -> None:
    """Check the value `name` of an option: raise OptionError where it is no text, UnknownName where
    it is not in `known`."""
    if not isinstance(name, str):
        raise OptionError(f"{option} must be one of {', '.join(map(repr, known))}, not {name!r}")
    if name not in known:
        raise UnknownName(f"value of {option}" if option.isidentifier() else option, name, known)


def check_flags(**flags: object) -> None:
    """Raise OptionError for options, by name, whose values are neither True nor False."""
    for option, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{option} must be True or False, not {value!r}")


def whole_threads(threads: object) -> int:
    """Return `threads` as int. Raises OptionError for all but integers (no bool) from 1 to 64."""
    if isinstance(threads, Integral) and not isinstance(threads, bool) and 1 <= threads <= 64:  # type: ignore[operator]
        return int(threads)
    raise OptionError(f"threads must be a whole number from 1 to 64, not {threads!r}")


def check_unused(graph: Graph, kernels: str | Mapping[str, str] | None, passes: str | None) -> None:
    """Check the options `kernels` and `passes` for a backend that ignores them, so that wrong
    values raise the same errors as with other backends."""
    if passes is not None:
        from tinsmith.passes.choice import parse_spec

        parse_spec(passes)
    if kernels is not None:
        from tinsmith.kernels.select import check_overrides, parse_overrides

        check_overrides(parse_overrides(kernels), {n.name for n in graph})
