"""Reads model inputs from the command line: arrays in files, pictures, numbers.

    x.npy            for the next input that has no array yet
    data.npz         each array for the input of its name; a single one without a name as x.npy
    x.csv            rows of numbers, in the shape of the input
    cat.jpg          decoded, resized to the input's height and width, scaled (see `Picture`)
    word.wav         samples of PCM (see `_sound`)
    16000, [1,2]     a number, or a list of numbers
    random, zeros    generated
    name=ANY         any of these, for the input of that name

Inputs without an argument are random; their free dimensions have the sizes that given inputs have.
Several pictures make up a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from tinsmith.cli._model import literal
from tinsmith.cli._picture import SUFFIXES, Picture
from tinsmith.cli._sound import SUFFIXES as SOUNDS
from tinsmith.cli._sound import read_sound
from tinsmith.compiler.hints import sized
from tinsmith.errors import InputNameError, InputShapeError, InputTypeError
from tinsmith.formats.csv import fit_csv, is_csv, read_csv
from tinsmith.formats.npz import UNNAMED, parts, read_arrays, whole
from tinsmith.graph import Array, Type, compatible
from tinsmith.runtime.inputs import as_input, suggest_input

MADE_UP = ("random", "zeros")


class Inputs:
    """Reads the arguments of one call, for inputs of the given types.

    dims     free dimension -> its size, from the command line
    typical  sizes for generated inputs where neither `dims` nor given inputs tell one
    notes    input -> where its array is from, in words
    """

    def __init__(
        self,
        types: Mapping[str, Type],
        dims: Mapping[str, int],
        seed: int,
        picture: Picture,
        typical: Mapping[str, int] = {},
    ) -> None:
        self.types = {n: sized(t, dims) for n, t in types.items()}
        self.free_types, self.dims, self.picture = dict(types), dict(dims), picture
        self.typical = dict(typical)
        self.random = np.random.default_rng(seed)
        self.arrays: dict[str, Array] = {}
        self.notes: dict[str, str] = {}
        self.given: dict[str, int] = {}
        """Free dimension -> its size in given arrays."""
        self.unused: dict[str, str] = {}
        """Name of an array in an .npz that no input has -> the file."""

    def read(self, arguments: Sequence[str]) -> dict[str, Array]:
        """The arrays of all inputs by name. Raises InputError and ModelFileError, click errors for
        usage."""
        loose: list[str] = []
        for argument in arguments:
            name, equals, rest = argument.partition("=")
            if equals and name in self.types:
                self.put(name, self.one(rest, name), rest)
            elif equals and not Path(argument).exists():
                known = ", ".join(self.types)
                raise InputNameError(
                    f"the model has no input {name!r}; its inputs are {known}."
                    f"{suggest_input(name, list(self.types))}"
                )
            elif argument.endswith(".npz"):
                loose += self.npz(argument)
            else:
                loose.append(argument)
        if len(loose) > 1 and all(map(is_picture, loose)):
            self.batch(loose)
        else:
            self.in_order(loose)
        if self.unused and (free := self.free()):
            held = ", ".join(f"{name!r} of {source}" for name, source in self.unused.items())
            raise InputNameError(
                f"nothing is given for {', '.join(map(repr, free))}; no input takes {held}: the "
                f"model's inputs are {', '.join(self.types)}; {free[0]}=random makes one up"
            )
        for name in self.free():
            self.put(name, self.generate("random", name), "random")
        return {name: self.arrays[name] for name in self.types}

    def put(self, name: str, array: Any, source: str) -> None:
        """Take an array for the input `name`, which the model must have; `source`: the argument
        or file it is from. Raises InputNameError for an input that has an array already,
        InputShapeError if the array contradicts a size of --dim; it checks nothing else."""
        if name in self.arrays:
            raise InputNameError(
                f"the input {name!r} is given twice: by {self.notes[name]} and {source}"
            )
        free = self.free_types[name].shape or ()
        for axis, symbol in enumerate(free):
            size = self.dims.get(symbol) if isinstance(symbol, str) else None
            if size is not None and array.shape[axis : axis + 1] != (size,):
                raise InputShapeError(
                    f"--dim {symbol}={size} does not fit the input {name!r}, which is "
                    f"{list(array.shape)} by {source}; leave it out, or give what has this size"
                )
        if source not in MADE_UP:
            pairs = zip(free, array.shape if free else (), strict=False)
            self.given |= {d: n for d, n in pairs if isinstance(d, str)}
        self.arrays[name], self.notes[name] = array, source

    def free(self) -> list[str]:
        """The inputs that have no array yet."""
        return [n for n in self.types if n not in self.arrays]

    def in_order(self, sources: Sequence[str]) -> None:
        """Take arguments without a name for the inputs that have no array yet, in order. Raises
        InputNameError if more are given, or pictures for a batch are mixed with other files."""
        others = [s for s in sources if not is_picture(s)]
        if others and len(sources) - len(others) > 1 and len(sources) > len(self.free()):
            named = f", or say which input takes it: NAME={others[0]}" * (len(self.types) > 1)
            raise InputNameError(
                f"{others[0]} is no picture, and makes up no batch with pictures; give the "
                f"pictures alone{named}"
            )
        for source in sources:
            free = self.free()
            if not free:
                taken = ", ".join(f"{n!r} takes {self.notes[n]}" for n in self.types)
                raise InputNameError(f"nothing is left to take {source}: {taken}")
            self.put(free[0], self.one(source, free[0]), source)

    def one(self, source: str, name: str) -> Array:
        """Read or generate the array of one argument, for the input `name`."""
        if source in MADE_UP:
            return self.generate(source, name)
        path = Path(source)
        if not source or not path.exists():
            if (value := literal(source)) is not None:
                return as_input("the model", name, value, self.types[name])
            raise click.BadParameter(
                f"{source!r} is no file; inputs are .npy, .npz, .csv, a picture, .wav, a "
                "number, 'random' or 'zeros'"
            )
        if is_picture(source):
            return self.picture.read(path, self.types[name], name)
        if path.suffix.lower() in SOUNDS:
            return read_sound(path, self.types[name], name)
        if is_csv(path):
            wanted = sized(self.types[name], self.given)
            return fit_csv(read_csv(path, wanted.dtype), wanted.shape, f"the input {name!r}", path)
        arrays = read_arrays(path)
        if (own := whole(name, arrays)) is not None:
            return own
        if len(arrays) != 1:
            raise InputNameError(
                f"{source} holds {len(arrays)} arrays ({', '.join(arrays)}); one is wanted here"
            )
        ((held, array),) = arrays.items()
        wanted, given = self.types[name], Type(array.dtype.newbyteorder("="), array.shape)
        foreign = path.suffix == ".npz" and held not in self.types
        if foreign and wanted.dtype != object and not compatible(wanted, given):
            raise InputNameError(
                f"{source} holds only {held!r}, and the model's inputs are "
                f"{', '.join(self.types)}; nor does {given} fit {name!r}, which is {wanted}"
            )
        return array

    def npz(self, source: str) -> list[str]:
        """Take the arrays of an .npz file for the inputs of their names; others go to `unused`.
        Return the arguments to be taken in the order of inputs: [source] if there is no such file,
        or if it holds one array without a name (`UNNAMED`); else []. Raises InputNameError if no
        name is an input's, ModelFileError, and as `put`."""
        if not Path(source).exists():
            return [source]
        arrays = read_arrays(source)
        found = {n: whole(n, arrays) for n in self.types}
        named = [n for n, value in found.items() if value is not None]
        for name in named:
            self.put(name, found[name], source)
        if not named and list(arrays) != [UNNAMED]:
            known = ", ".join(self.types)
            hint = f"; {next(iter(self.types))}={source} takes it" if len(arrays) == 1 else ""
            raise InputNameError(
                f"{source} holds {', '.join(arrays) or 'nothing'}; the model's inputs have other "
                f"names: {known}{hint}"
            )
        if named:
            taken = {part for n in named for part in parts(n, found[n])}
            self.unused |= {n: source for n in arrays if n not in taken}
        return [] if named else [source]

    def batch(self, sources: Sequence[str]) -> None:
        """Take several pictures: each for an input if enough have no array, else as one batch."""
        free = self.free()
        if len(free) >= len(sources) or not free:
            return self.in_order(sources)
        type_ = self.types[free[0]] if len(free) == 1 else None
        room = type_.shape[0] if type_ is not None and type_.shape else None
        if not isinstance(room, str) and room != len(sources):
            raise InputShapeError(
                f"{len(sources)} pictures are given, for a batch of {room or 1}; "
                + (f"give {room}" if room and room > 1 else "run them one at a time")
            )
        one = [self.picture.read(Path(s), self.types[free[0]], free[0]) for s in sources]
        self.put(free[0], np.concatenate(one), ", ".join(sources))
        return None

    def generate(self, how: str, name: str) -> Array:
        """Random numbers, or zeros if `how` is "zeros", of the input's type; dimensions of no known
        size are 1."""
        from tinsmith.compiler.verify import draw

        type_ = sized(sized(self.types[name], self.given), self.typical)
        try:
            return draw(name, type_, None if how == "zeros" else self.random)
        except (MemoryError, ValueError) as error:  # the latter where bytes overflow an integer
            if isinstance(error, InputTypeError):
                raise
            raise InputShapeError(
                f"the input {name!r} of {type_} does not fit into memory; give smaller --dim"
            ) from error


def is_picture(source: str) -> bool:
    return Path(source).suffix.lower() in SUFFIXES
