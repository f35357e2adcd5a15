"""The inputs of a model: their names and types, and checks of the arrays that a caller gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import index
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.errors import (
    InputError,
    InputNameError,
    InputShapeError,
    InputTypeError,
    OutsideHint,
    size_text,
    suggest,
)
from tinsmith.graph import (
    Array,
    Holder,
    OptionalType,
    SequenceType,
    Type,
    compatible,
    dtype_of,
    shapes_agree,
)
from tinsmith.runtime.outputs import check_names

if TYPE_CHECKING:
    from tinsmith.plan.plan import Plan

Signature = tuple[tuple[int, ...] | None, ...]
"""The shape of each input; None for an input that is not a tensor."""

BY_NAME = "net(**inputs) takes a dict's arrays by their names"


class Inputs:
    """The inputs of one model. `model` is its name in messages; `ranges`: name of a free dimension
    -> (least, largest) size. Immutable."""

    def __init__(
        self, model: str, types: Mapping[str, Type], ranges: Mapping[str, tuple[int, int]] = {}
    ) -> None:
        self.model, self.types, self.ranges = model, dict(types), dict(ranges)
        self.names = list(self.types)
        self.dtypes = [t.dtype for t in self.types.values()]
        self.taken = [d if d.kind != "O" else None for d in self.dtypes]
        """The dtypes of arrays whose elements need no look; None for texts."""
        self.shapes = [t.shape for t in self.types.values()]
        self.fixed: Signature | None = None
        """The signature, if no size is free; else None."""
        if all(t.is_static for t in self.types.values()):
            self.fixed = tuple(t.dims for t in self.types.values())
        self._holders = any(isinstance(t, Holder) for t in self.types.values())

    def __str__(self) -> str:
        return ", ".join(f"{n}: {t}" for n, t in self.types.items())

    def signature(self, arrays: Sequence[Any]) -> Signature:
        """The signature of inputs that `Inputs.arrays` returned: their shapes, None for sequences
        and optionals."""
        if self.fixed is not None:
            return self.fixed
        types = self.types.values()
        return tuple(
            None if isinstance(t, Holder) else a.shape for t, a in zip(types, arrays, strict=True)
        )

    def example(self) -> Signature:
        """Return a signature for messages, in which every free dimension is 1."""
        return tuple(
            None if shape is None else tuple(d if isinstance(d, int) else 1 for d in shape)
            for shape in self.shapes
        )

    def as_signature(self, shapes: Any) -> Signature:
        """Return a signature from shapes given as any sequences of whole numbers; they need not fit
        the model. Raises InputShapeError for anything else."""
        try:
            if isinstance(shapes, Mapping | str):
                raise TypeError
            return tuple(None if dims is None else tuple(map(index, dims)) for dims in shapes)
        except TypeError:
            raise InputShapeError(
                f"a program of {self.model} needs a shape, such as (1, 3, 224, 224), for each of "
                f"{', '.join(self.names)} in that order, not {shapes!r}"
            ) from None

    def check_signature(self, signature: Signature) -> None:
        """Raise InputShapeError for shapes that the model does not take: another number of inputs,
        other ranks or fixed sizes, two sizes of one name; OutsideHint for sizes outside of
        `ranges`."""
        if len(signature) != len(self.names):
            raise InputShapeError(
                f"{self.model} has {len(self.names)} inputs, shapes are given for {len(signature)}"
            )
        for i, (dims, type_) in enumerate(zip(signature, self.types.values(), strict=True)):
            if dims is not None:
                self._check_shape(i, dims)
            elif not isinstance(type_, Holder):
                raise InputShapeError(f"the input {self.names[i]!r} of {self.model} needs a shape")
        self._check_symbols(signature)

    def arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """Check inputs given in order or by name; return them in the model's order, as contiguous
        arrays (sequences and optionals: as `_held`). Raises InputError."""
        names = self.names
        if kwargs or len(args) != len(names):
            args = self.ordered(args, kwargs)
        arrays = []
        for i, array in enumerate(args):
            if self._holders and isinstance(self.types[names[i]], Holder):
                arrays.append(self._held(names[i], array, self.types[names[i]]))
                continue
            if (
                type(array) is not np.ndarray
                or (array.dtype is not self.taken[i] and not self._native(array.dtype, i))
                or not array.flags.c_contiguous
            ):
                array = self._converted(names[i], array, self.dtypes[i])
            if array.shape != self.shapes[i]:
                self._check_shape(i, array.shape)
            arrays.append(array)
        if self.fixed is None:
            self._check_symbols(self.signature(arrays))
        return arrays

    def ready(self, arrays: Sequence[Any]) -> bool:
        """Whether `arrays`, one for each input, are all contiguous numpy arrays of the right
        dtypes; shapes are not checked. Never true for texts."""
        return all(
            type(a) is np.ndarray and a.dtype is dtype and a.flags.c_contiguous
            for a, dtype in zip(arrays, self.taken, strict=True)
        )

    def _native(self, dtype: np.dtype[Any], i: int) -> bool:
        return dtype == self.dtypes[i] and dtype.kind != "O" and dtype.isnative

    @property
    def _wanted(self) -> str:
        return str(self) or "no inputs"

    def ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return inputs given in order and by name in the model's order. Raises InputNameError, or
        InputTypeError for a single dict."""
        names = self.names
        if len(args) > len(names):
            raise InputNameError(f"{self.model} takes {self._wanted}; {len(args)} arrays are given")
        if len(args) == 1 and isinstance(args[0], Mapping):
            raise InputTypeError(
                f"{self.model} takes {self._wanted}, not {type(args[0]).__name__}; {BY_NAME}"
            )
        given = dict(zip(names, args, strict=False))
        for key, value in kwargs.items():
            if key not in self.types:
                raise InputNameError(
                    f"{self.model} has no input named {key!r}.{suggest_input(key, names)} "
                    f"It takes {self._wanted}."
                )
            if key in given:
                raise InputNameError(f"the input {key!r} of {self.model} is given twice")
            given[key] = value
        if missing := [n for n in names if n not in given]:
            raise InputNameError(
                f"{self.model} needs {', '.join(map(repr, missing))}; it takes {self._wanted}"
            )
        return [given[n] for n in names]

    def _converted(self, name: str, array: Any, wanted: np.dtype[Any]) -> Array:
        """Return an input as a contiguous array of dtype `wanted` in native byte order; a number
        for a scalar input becomes an array. Raises InputTypeError for other objects and dtypes."""
        if isinstance(array, np.ndarray) and array.dtype.kind == "O" != wanted.kind:
            try:
                array.astype(wanted)
            except (TypeError, ValueError) as error:
                raise InputTypeError(
                    f"the input {name!r} of {self.model} must have dtype {wanted.name}, and these "
                    f"objects are not ({error}): are they rows of different lengths?"
                ) from error
        if not isinstance(array, np.ndarray):
            type_ = self.types.get(name)
            number = isinstance(array, np.generic | int | float | bool)
            if number and type_ is not None and type_.shape == ():
                return as_input(self.model, name, array, type_)
            hint = _making(array, wanted.kind == "O")
            raise InputTypeError(
                f"the input {name!r} of {self.model} must be a numpy array of {type_ or wanted}, "
                f"not {type(array).__name__}; {hint}"
            )
        need_no_mask(f"the input {name!r} of {self.model}", array)
        kind, texts = array.dtype.kind, wanted.kind == "O"
        fits = kind in "UTO" if texts else kind != "T" and array.dtype.newbyteorder("=") == wanted
        if not fits:
            hint = f"x.astype({wanted.name!r}) converts"
            hint = f"one of its fields, such as x[{f[0]!r}]" if (f := array.dtype.names) else hint
            hint = "numpy.strings.decode(x) makes texts of bytes" if texts and kind == "S" else hint
            raise InputTypeError(
                f"the input {name!r} of {self.model} must have dtype {wanted.name}, not "
                f"{array.dtype.name}; {hint}"
            )
        if texts and (others := [v for v in array.flat if not isinstance(v, str)]):
            raise InputTypeError(
                f"the input {name!r} of {self.model} takes texts (str), it holds {others[0]!r}"
            )
        try:
            return np.ascontiguousarray(array, wanted).reshape(array.shape)
        except MemoryError as error:
            raise InputError(
                f"the input {name!r} of {self.model} is not contiguous, and "
                f"{size_text(array.nbytes)} for a copy cannot be had"
            ) from error

    def _held(self, name: str, given: Any, wanted: Type) -> Any:
        """Check a sequence or an optional, and return it as references take it: a list of arrays,
        an array, or None. Raises InputError."""
        if isinstance(wanted, OptionalType):
            return None if given is None else self._held(name, given, wanted.item)
        if isinstance(wanted, SequenceType):
            if not isinstance(given, list | tuple):
                raise InputTypeError(
                    f"the input {name!r} of {self.model} must be a list of arrays ({wanted}), "
                    f"not {type(given).__name__}"
                )
            return [self._held(f"{name}[{i}]", a, wanted.item) for i, a in enumerate(given)]
        array = self._converted(name, given, wanted.dtype)
        if not compatible(wanted, Type(array.dtype, array.shape)):
            raise InputShapeError(
                f"the input {name!r} of {self.model} must be {wanted}, not {list(array.shape)}"
            )
        return array

    def _check_shape(self, i: int, dims: tuple[int, ...]) -> None:
        shape = self.shapes[i]
        if shape is None:
            return
        if not shapes_agree(shape, dims):
            name = self.names[i]
            hint = transposing(shape, dims)
            if shapes_agree(shape, (1, *dims)):
                hint = "; array[None] fits: a batch of one"
            elif dims and shapes_agree(shape[1:], dims[1:]):
                hint = (
                    "; its first size is fixed: give as many at a time, or compile with "
                    f"input_shapes={{{name!r}: {('N', *shape[1:])}}}, which frees it, as "
                    'batch="free" does for ncnn and PNNX, dynamic_shapes of torch.onnx.export '
                    "for ONNX"
                )
            raise InputShapeError(
                f"the input {name!r} of {self.model} must have shape "
                f"[{', '.join(map(str, shape))}], not {list(dims)}{hint}"
            )

    def _check_symbols(self, signature: Signature) -> None:
        sizes: dict[str, tuple[int, str]] = {}
        for name, shape, dims in zip(self.names, self.shapes, signature, strict=True):
            for d, n in zip(shape or (), dims or (), strict=False):
                if isinstance(d, str) and sizes.setdefault(d, (n, name))[0] != n:
                    first, where = sizes[d]
                    raise InputShapeError(
                        f"the dimension {d!r} of {self.model} is {first} in {where!r} and "
                        f"{n} in {name!r}"
                    )
        for d, (least, most) in self.ranges.items():
            if d in sizes and not least <= sizes[d][0] <= most:
                n, name = sizes[d]
                raise OutsideHint(
                    f"the dimension {d!r} of {self.model} is {n} in {name!r}; it was compiled for "
                    f"{least} to {most}: compile it with sizes={{{d!r}: ({min(n, least)}, "
                    f"{max(n, most)})}}, on the command line --dim {d}={min(n, least)}.."
                    f"{max(n, most)}, or without a range"
                )


def _making(given: Any, texts: bool) -> str:
    """Return a hint, for a message, how an object becomes an array; `texts`: one of texts."""
    if isinstance(given, Mapping):
        return BY_NAME
    if isinstance(given, str | PathLike) and not texts:
        return (
            "read the file first: .npy by numpy.load, a picture by Pillow, as an array of floats "
            "[1, channels, height, width]"
        )
    if given is None:
        return "give one"
    if isinstance(given, list | tuple) and len(given) == 1 and hasattr(given[0], "shape"):
        return "pass what is in it, not in a list"
    grad = getattr(given, "requires_grad", False) is True
    return f"{'x.detach().numpy()' if grad else 'numpy.asarray(...)'} makes one"


def need_no_mask(what: str, array: Any) -> None:
    """Raise InputTypeError, which calls the array `what`, if it is one of numpy's masked arrays."""
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        raise InputTypeError(
            f"{what} is a masked array, and models know no mask: x.filled(0) puts zeros where it "
            "hides elements"
        )


def transposing(shape: Sequence[Any], dims: Sequence[int]) -> str:
    """Return a hint, for a message, that an array of sizes `dims` fits `shape` if its last axis
    becomes the second, as for pictures with channels last; "" if that is not so."""
    turned = len(dims) == 4 and shapes_agree(shape, (dims[0], dims[3], dims[1], dims[2]))
    return "; array.transpose(0, 3, 1, 2) fits, if its channels are last" * turned


def suggest_input(name: object, names: Sequence[str]) -> str:
    """Return " Did you mean ...?" for an unknown input: names that are close, or else the input
    with the number at the end of the name, as "pnnx_input_0" means the first; "" if there is
    none."""
    text = str(name)
    end = text[len(text.rstrip("0123456789")) :]
    if (near := suggest(text, names)) or not 0 < len(end) < 9 or int(end) >= len(names):
        return near
    return f" Did you mean {names[int(end)]!r}, input {int(end)} if they are counted from 0?"


def run_arguments(
    model: str, given: Sequence[Any], others: Mapping[str, Any]
) -> tuple[list[str] | None, Any]:
    """Parse the arguments of `Net.run`, positional ones (`given`) and unknown keywords (`others`):
    return (names of outputs or None, arrays as a list or a mapping). Raises InputTypeError,
    OutputError."""
    if others or not 1 <= len(given) <= 2:
        found = f"{next(iter(others))!r}" if others else f"{len(given)} arguments"
        raise InputTypeError(
            "run takes the inputs, run(arrays), or names of outputs and the inputs, "
            f"run(names, arrays), and an option 'out', not {found}"
        )
    arrays, names = given[-1], given[0] if len(given) == 2 else None
    if names is not None:
        names = check_names(model, names)
    if not isinstance(arrays, Mapping | list | tuple):
        raise InputTypeError(
            f"run takes a list of arrays, or a dict of them by name, not "
            f"{type(arrays).__name__}; {model} itself takes arrays: net(x)"
        )
    return names, arrays


def as_input(model: str, name: str, value: Any, type: Type) -> Array:
    """Convert a number, list or array to an array of an input's type, if the type can represent it;
    floats may be rounded. A number also fits an input of one element. Raises InputTypeError,
    InputShapeError."""
    wanted = type.dtype
    try:
        if isinstance(type, Holder):
            raise TypeError
        given = np.asarray(value, object if wanted.kind == "O" else None)
        if given.dtype != wanted and given.dtype.kind not in (
            "biufc" if wanted.kind == "c" else "biuf"
        ):
            raise TypeError
        with np.errstate(invalid="ignore", over="ignore"):  # NaN as an integer
            array = given.astype(wanted)
        if wanted.kind in "biu":
            exact = bool((array == given).all())
        else:  # rounding is allowed, overflow is not
            exact = wanted.kind not in "fV" or not (np.isinf(array) & np.isfinite(given)).any()
    except (OverflowError, ValueError, TypeError):
        exact, array = False, np.empty(0)
    if not exact:
        shown = str(type) if type.shape else wanted.name
        raise InputTypeError(
            f"the input {name!r} of {model} is {shown}, which cannot hold "
            f"{value.tolist() if isinstance(value, np.ndarray) else value!r}"
        )
    if type.is_static and array.size == type.size == 1:
        array = array.reshape(type.dims)
    if type.shape is not None and not shapes_agree(type.shape, array.shape):
        raise InputShapeError(
            f"the input {name!r} of {model} must have shape [{', '.join(map(str, type.shape))}], "
            f"not {list(array.shape)}"
        )
    return array


def check_ports(plan: Plan, inputs: Sequence[Any], read: Collection[int]) -> None:
    """Raise InputNameError unless `inputs` is a list with an array for each input of the plan;
    InputTypeError or InputShapeError for an array of another dtype or shape, or not contiguous.
    `read`: numbers of the inputs to check: those that code reads."""
    if not isinstance(inputs, list | tuple):
        raise InputNameError(
            f"a session of {plan.model} takes a list of arrays, in the order of the inputs"
            f" {[port.name for port in plan.inputs]}, not {type(inputs).__name__}; calls take"
            " arrays by name, session(x=array), and net.run(names, arrays) names of outputs"
        )
    if len(inputs) != len(plan.inputs):
        raise InputNameError(
            f"{plan.model} takes {len(plan.inputs)} inputs; {len(inputs)} arrays are given"
        )
    for i, port in enumerate(plan.inputs):
        array, dtype = inputs[i], dtype_of(port.dtype)
        if i not in read:
            continue
        what = f"the input {port.name!r} of this program of {plan.model}"
        need_no_mask(what, array)
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            found = getattr(array, "dtype", type(array).__name__)
            raise InputTypeError(f"{what} must be an array of {port.dtype}, not {found}")
        if array.shape != port.dims:
            raise InputShapeError(
                f"{what} must have shape {list(port.dims)}, not {list(array.shape)}; a call of "
                "the net takes every shape that the model does"
            )
        if not array.flags.c_contiguous:
            raise InputTypeError(f"{what} is not contiguous; numpy.ascontiguousarray(...) is")
