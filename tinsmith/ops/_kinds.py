"""Checks that attributes of operators have values of the right kind: int, float, str, ...

The kind of an attribute is that of its default value. Where the default is None, a tuple, or
missing, its name tells the kind: an attribute of one name has one kind in all operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tinsmith.graph import Graph
from tinsmith.sizes import Size

Check = Callable[[Any], bool]
FAR = 1 << 63


def _is_int(value: Any) -> bool:
    return isinstance(value, Size) or (isinstance(value, int) and -FAR <= value < FAR)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _all(check: Check) -> Check:
    return lambda value: isinstance(value, tuple) and all(map(check, value))


KINDS: dict[str, tuple[str, Check]] = {
    "int": ("a whole number of 64 bits", _is_int),
    "bool": ("true or false", _is_int),
    "float": ("a number", _is_number),
    "str": ("text", _is_text),
    "graph": ("a graph", lambda value: isinstance(value, Graph)),
    "ints": ("a tuple of whole numbers", _all(_is_int)),
    "sizes": ("whole numbers", lambda value: _is_int(value) or _all(_is_int)(value)),
    "floats": ("a tuple of numbers", _all(_is_number)),
    "texts": ("a tuple of texts", _all(_is_text)),
}
"""Kind -> its words in error messages, and the check whether a value is of this kind."""

_NAMES = {
    "int": """axis blocksize classes end groups hidden_size high ignore_index kv_num_heads low
        max_gram_length max_skip_count maxsplit min_gram_length num_heads num_outputs
        num_scan_inputs q_num_heads size value_width width""",
    "float": "clip max min scale seed",
    "str": "delimiter direction dtype equation kind mode pattern precision softmax_precision to",
    "graph": "body else_branch then_branch",
    "ints": """axes ngram_counts ngram_indexes output_shape perm pool_int64s pooled_shape
        scan_input_axes scan_input_directions scan_output_axes scan_output_directions""",
    "sizes": "dilation kernel output_padding pad stride",
    "floats": "activation_alpha activation_beta weights",
    "texts": "activations pool_strings stopwords",
}
_OF_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_ANY = {"value"}  # of ConstantOfShape: of any element type


def kind_of(name: str, default: Any) -> str:
    """The kind (a key of KINDS) of an attribute, by its name and default; "" if it takes values of
    any kind."""
    if name in _ANY:
        return ""
    if default is None or default is inspect.Parameter.empty or isinstance(default, tuple):
        return _OF_NAME.get(name, "")
    kind = type(default).__name__
    return kind if kind in KINDS else ""


def checks_of(attrs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, str, Check], ...]:
    """(name, words for its kind, check of a value) for each of `attrs`, pairs (name, default).
    Attributes that take any value are left out."""
    kinds = ((name, kind_of(name, default)) for name, default in attrs)
    return tuple((name, *KINDS[kind]) for name, kind in kinds if kind)
