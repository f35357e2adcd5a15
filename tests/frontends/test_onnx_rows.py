"""The table of one-to-one operators agrees with ONNX's schemas and with our operators."""

from __future__ import annotations

import inspect

import pytest
from onnx import defs, helper

from tinsmith.formats import pairs_of
from tinsmith.formats.onnx import DTYPES
from tinsmith.formats.onnx_names import RENAMED, SAME_NAMES, TABLE
from tinsmith.frontends.onnx.call import IMPORTERS
from tinsmith.frontends.onnx.rows import IGNORED
from tinsmith.ops import OPS

UNSPECIFIED = {("StringNormalizer", "locale"), ("StringNormalizer", "stopwords")}
"""ONNX gives no default; ours means the same as none."""


@pytest.mark.parametrize("type", TABLE)
def test_attributes_and_defaults_agree(type: str) -> None:
    name, names = TABLE[type]
    attrs = dict(pairs_of(names))
    schema, op = defs.get_schema(type), OPS[name]
    assert set(attrs) | set(IGNORED.get(type, ())) == set(schema.attributes), type
    for theirs, ours in attrs.items():
        default = op.attrs[ours]
        attribute = schema.attributes[theirs]
        if attribute.required or (type, theirs) in UNSPECIFIED:
            continue
        if not attribute.default_value.name:
            assert default is None or default is inspect.Parameter.empty, (type, theirs)
            continue
        given = helper.get_attribute_value(attribute.default_value)
        given = given.decode() if isinstance(given, bytes) else given
        given = tuple(given) if isinstance(given, list) else given
        given = DTYPES[given] if ours == "dtype" else given
        assert default == (pytest.approx(given) if isinstance(given, float) else given)


@pytest.mark.parametrize("type", TABLE)
def test_operators_take_the_inputs_of_the_schema(type: str) -> None:
    schema, op = defs.get_schema(type), OPS[TABLE[type][0]]
    required = sum(i.option == defs.OpSchema.FormalParameterOption.Single for i in schema.inputs)
    if op.variadic is None:
        assert len(op.inputs) >= len(schema.inputs)
        assert op.required <= required


def test_nothing_is_in_two_tables() -> None:
    assert not SAME_NAMES.keys() & RENAMED.keys()


def test_every_operator_of_onnx_has_an_importer_or_a_definition() -> None:
    for schema in defs.get_all_schemas():
        if schema.domain == "" and schema.name not in IMPORTERS:
            assert schema.has_function or schema.has_context_dependent_function, schema.name
