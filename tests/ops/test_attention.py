"""Attention and rotary embedding against the cases of the ONNX package, and a naive loop."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ops.checking import assert_static, check, close, normal, refused, types_of
from tinsmith.graph import Type
from tinsmith.ops import OPS

NODE = "onnx.backend.test.case.node"


def node_cases(module: str, op: str) -> list[Any]:
    """The cases of one operator as the ONNX package generates them, without expanded functions."""
    importlib.import_module(f"{NODE}.{module}")
    cases = importlib.import_module(NODE)._NodeTestCases
    return [c for c in cases if [n.op_type for n in c.model.graph.node] == [op]]


def as_array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def run_case(case: Any, flags: tuple[str, ...] = (), **extra: Any) -> None:
    node = case.model.graph.node[0]
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute} | extra
    attrs = {k: bool(v) if k in flags else v for k, v in attrs.items()}
    if "softmax_precision" in attrs:
        element = attrs["softmax_precision"]
        attrs["softmax_precision"] = helper.tensor_dtype_to_np_dtype(element).name
    for inputs, outputs in case.data_sets:
        feeds = dict(
            zip((i.name for i in case.model.graph.input), map(as_array, inputs), strict=True)
        )
        got = list(check(node.op_type, *(feeds[n] if n else None for n in node.input), **attrs))
        if node.op_type == "Attention" and not attrs["with_present"]:
            got[1:1] = [None, None]
        want = dict(
            zip((o.name for o in case.model.graph.output), map(as_array, outputs), strict=True)
        )
        for name, y in zip(node.output, got, strict=False):
            if name:
                eps = {2: 1e-2}.get(want[name].dtype.itemsize, 1e-4)
                assert y is not None and y.dtype == want[name].dtype
                close(y, want[name], rtol=eps, atol=eps)


ATTENTION = node_cases("attention", "Attention")
ROTARY = node_cases("rotaryembedding", "RotaryEmbedding")


def test_there_are_cases():
    assert len(ATTENTION) > 60 and len(ROTARY) > 5


@pytest.mark.parametrize("case", ATTENTION, ids=lambda c: c.name)
def test_onnx_attention(case):
    outputs = case.model.graph.node[0].output
    present = any(outputs[1:3])
    run_case(case, ("is_causal",), with_present=present, with_qk=len(outputs) > 3)


@pytest.mark.parametrize("case", ROTARY, ids=lambda c: c.name)
def test_onnx_rotary_embedding(case):
    run_case(case, ("interleaved",))


def test_a_row_without_keys_is_zero():
    q, k, v = (normal(1, 2, 3, 4, seed=s) for s in range(3))
    mask = np.ones((3, 3), bool)
    mask[1] = False
    (y, qk) = check("Attention", q, k, v, mask, with_qk=True, qk_matmul_output_mode=3)
    assert (y[:, :, 1] == 0).all() and (qk[:, :, 1] == 0).all()
    assert np.isfinite(y).all() and (y[:, :, 0] != 0).all()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_naive(groups):
    q, k, v = normal(2, 4, 3, 5), normal(2, groups, 6, 5, seed=1), normal(2, groups, 6, 7, seed=2)
    (y,) = check("Attention", q, k, v, scale=0.3, softcap=2.0)
    assert_static("Attention", q, k, v)
    want = np.zeros(y.shape)
    for n, h, i in np.ndindex(2, 4, 3):
        keys, values = k[n, h * groups // 4].astype(float), v[n, h * groups // 4].astype(float)
        s = 2 * np.tanh(keys @ q[n, h, i] * 0.3 / 2)
        want[n, h, i] = np.exp(s) @ values / np.exp(s).sum()
    close(y, want, atol=1e-4)


def test_empty_batch():
    y = check("Attention", *(normal(0, 2, 3, 4) for _ in range(3)))[0]
    assert y.shape == (0, 2, 3, 4)


def test_flat_and_split_inputs_agree():
    q, k, v = (normal(2, 3, 8, seed=s) for s in range(3))
    (flat,) = check("Attention", q, k, v, q_num_heads=4, kv_num_heads=4, is_causal=True)
    split = [a.reshape(2, 3, 4, 2).swapaxes(1, 2) for a in (q, k, v)]
    (y,) = check("Attention", *split, is_causal=True)
    close(flat, y.swapaxes(1, 2).reshape(2, 3, 8))


def test_rotation_keeps_lengths_and_turns_pairs():
    x = normal(1, 2, 3, 4)
    angles = np.array([[0.0, 0.0], [np.pi / 2, 0], [0.3, 0.7]], np.float32)
    caches = np.cos(angles), np.sin(angles)
    ids = np.array([[0, 1, 2]])
    (y,) = check("RotaryEmbedding", x, *caches, ids)
    close(y[:, :, 0], x[:, :, 0])
    close(y[:, :, 1, 0], -x[:, :, 1, 2], atol=1e-6)
    close((y**2).sum(-1), (x**2).sum(-1))
    partial = OPS["RotaryEmbedding"](
        x, caches[0][:, :1], caches[1][:, :1], ids, rotary_embedding_dim=2
    )
    close(partial[..., 2:], x[..., 2:])


def of(*shape: Any) -> Type:
    return Type(np.dtype(np.float32), shape)


@pytest.mark.parametrize(
    ("types", "attrs", "fragments"),
    [
        ([of(1, 4, 3, 8), of(1, 3, 3, 8), of(1, 3, 3, 8)], {}, ["3 key heads", "4 query heads"]),
        ([of(1, 4, 3, 8), of(1, 4, 3, 6), of(1, 4, 3, 8)], {}, ["q have 8", "k 6"]),
        ([of(1, 4, 3, 8), of(1, 4, 3, 8), of(1, 4, 2, 8)], {}, ["3 keys", "2 values"]),
        ([of(1, 3, 8), of(1, 3, 8), of(1, 3, 8)], {}, ["q_num_heads"]),
        (
            [of(1, 3, 8), of(1, 3, 8), of(1, 3, 8)],
            {"q_num_heads": 3, "kv_num_heads": 3},
            ["3 heads do not divide the 8 of q"],
        ),
        (
            [of(1, 4, 3, 8), of(1, 4, 3, 8), of(1, 4, 3, 8), None, of(1, 4, 2, 8)],
            {},
            ["past_key and past_value"],
        ),
    ],
)
def test_refused(types, attrs, fragments):
    with refused(*fragments):
        types_of("Attention", types, attrs)


@pytest.mark.parametrize("batch, queries, keys", [(0, 2, 3), (2, 0, 3), (2, 0, 0), (0, 0, 0)])
def test_without_elements(batch, queries, keys):
    q, k = normal(batch, queries, 8), normal(batch, keys, 8)
    (y,) = check("Attention", q, k, k, q_num_heads=2, kv_num_heads=2)[:1]
    assert y.shape == q.shape
