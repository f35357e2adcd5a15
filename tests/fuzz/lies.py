"""Types that a file declares of a value: true, or not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.base import Array
from tests.fuzz.mutants import Dice

HUGE = [10**4, 10**6, 10**8, 10**12, 2**31, 2**62, 2**63 - 1]
WRONG = ["float32", "float64", "int64", "int32", "bool", "uint8", "float16"]
TYPE = re.compile(r"\b(?:float|int|uint|bool|string)\d*\[[^\]]*\]")


def element_type(dtype: np.dtype[Any]) -> int:
    return TensorProto.STRING if dtype.kind == "O" else helper.np_dtype_to_tensor_dtype(dtype)


def lie(dice: Dice, shape: tuple[int, ...]) -> list[Any]:
    """A shape to declare: one that differs from the true one somehow, now and then the true one."""
    dims: list[Any] = list(shape)
    how = dice.one([*["one"] * 4, "all", "even", "even", "turned", "rank", "free", "true"])
    if how == "rank":
        return dims[1:] if dice.chance(0.5) else [dice.one([1, 2, 0]), *dims]
    if how == "turned":
        return dims[::-1]
    at = dice.one(range(max(1, len(dims))))
    if how == "even" and dims:  # as many elements, in another shape
        dims = [1] * len(dims)
        dims[at] = int(np.prod(shape))
    elif how != "true":
        dims = [n if how == "one" and i != at else other(dice, n, how) for i, n in enumerate(dims)]
    return dims


def other(dice: Dice, n: int, how: str) -> Any:
    if how == "free":
        return dice.one(["n", "n", "m", n])
    return dice.one([0, 1, 2, n + 1, n - 1, 2 * n, 5 * n + 3, -1, *[dice.one(HUGE)] * 2])


def type_of(dice: Dice, value: Any) -> Any:
    """A TypeProto to declare of what this value is; None where nothing can be declared."""
    if isinstance(value, list):
        if not value or isinstance(value[0], dict):
            return None
        item = type_of(dice, value[0])
        return item if dice.chance(0.1) else helper.make_sequence_type_proto(item)
    if value is None:
        return None
    dtype = value.dtype if dice.chance(0.93) else np.dtype(dice.one(WRONG))
    return helper.make_tensor_type_proto(element_type(dtype), lie(dice, value.shape))


def sequence_of(item: Array) -> Any:
    """The TypeProto of a sequence of such tensors, of any shape."""
    return helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(element_type(item.dtype), None)
    )


def lying_text(dice: Dice, text: str, true: dict[str, Any]) -> str:
    """A graph's text in which some of the types of its values are others: mostly of those whose
    shape is not inferred, since the parser compares the others with what is."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        head, colon, types = line.rpartition(" : ")
        if not colon or " = " not in line or " const " in line:
            continue
        value = true.get(head.split("=")[0].split(",")[0].strip())
        shape = value.shape if isinstance(value, np.ndarray) else (2, 3)

        def changed(match: re.Match[str], shape: tuple[int, ...] = shape) -> str:
            dtype, _, dims = match.group().strip("]").partition("[")
            if not dice.chance(0.7 if set("?*") & set(dims) else 0.03):
                return match.group()
            inferred, told = dims.split(","), lie(dice, shape)
            if len(inferred) == len(told) and dice.chance(0.9):
                told = [d if d.isdecimal() else n for d, n in zip(inferred, told, strict=True)]
            return f"{dtype}[{','.join(map(str, told))}]"

        lines[i] = head + colon + TYPE.sub(changed, types)
    return "\n".join(lines)
