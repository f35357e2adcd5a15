"""Generate tokens with a small decoder, built here with seeded weights: `python generate.py`.

The decoder takes new tokens and the keys and values of all tokens before; a session keeps these.
Tokens are chosen greedily or drawn at random; with the cache or, slower, without: the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tinsmith as ts


@dataclass(frozen=True)
class Config:
    """The sizes of a decoder, as configuration files of language models have them."""

    vocab_size: int = 256
    hidden_size: int = 64
    intermediate_size: int = 172
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 512
    rope_theta: float = 10000.0
    seed: int = 0

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads


class Builder:
    """Collects nodes and weights of a model; results have names that count up."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: str, out: list[str] | None = None, **attrs: Any) -> str:
        names = out or [f"{op.lower()}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0]

    def const(self, array: Any) -> str:
        name = f"const_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int) -> str:
        draw = self._random.standard_normal(shape) / shape[0] ** 0.5
        return self.const(draw.astype(np.float32))

    def norm(self, x: str, size: int) -> str:
        scale = self.const(np.ones(size, np.float32))
        return self("RMSNormalization", x, scale, axis=-1, epsilon=1e-5)


def decoder(config: Config) -> ModelProto:
    """input_ids [batch, new] and past_key_values.N.key / .value [batch, heads, past, head size] ->
    logits [batch, new, vocabulary] and present.N.key / .value, which have the new tokens, too."""
    c, b = config, Builder(config.seed)
    size, heads, groups = c.hidden_size, c.num_attention_heads, c.num_key_value_heads
    first = b("Shape", "past_key_values.0.key", start=2, end=3)
    end = b("Add", first, b("Shape", "input_ids", start=1, end=2))
    zero = b.const(np.array(0))
    places = b("Range", b("Squeeze", first), b("Squeeze", end), b.const(np.array(1)))
    places = b("Expand", b("Unsqueeze", places, zero), b("Shape", "input_ids"))
    angles = np.arange(c.max_position_embeddings)[:, None] / c.rope_theta ** (
        np.arange(0, c.head_size, 2) / c.head_size
    )
    cos, sin = (b.const(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    x = b("Gather", b.weight(c.vocab_size, size), "input_ids")
    for n in range(c.num_hidden_layers):
        h = b.norm(x, size)
        q, k, v = (
            b("MatMul", h, b.weight(size, count * c.head_size)) for count in (heads, groups, groups)
        )
        q, k = (
            b("RotaryEmbedding", one, cos, sin, places, num_heads=count)
            for one, count in ((q, heads), (k, groups))
        )
        past = [f"past_key_values.{n}.{kind}" for kind in ("key", "value")]
        mixed = b(
            "Attention", q, k, v, "", *past, is_causal=1, q_num_heads=heads, kv_num_heads=groups,
            out=[f"mixed_{n}", f"present.{n}.key", f"present.{n}.value"],
        )  # fmt: skip
        x = b("Add", x, b("MatMul", mixed, b.weight(size, size)))
        h = b.norm(x, size)
        gate, up = (b("MatMul", h, b.weight(size, c.intermediate_size)) for _ in range(2))
        h = b("Mul", b("Mul", gate, b("Sigmoid", gate)), up)
        x = b("Add", x, b("MatMul", h, b.weight(c.intermediate_size, size)))
    b("MatMul", b.norm(x, size), b.weight(size, c.vocab_size), out=["logits"])

    def tensors(name: str, length: str) -> list[Any]:
        dims = ["batch", groups, length, c.head_size]
        return [
            helper.make_tensor_value_info(f"{name}.{n}.{kind}", TensorProto.FLOAT, dims)
            for n in range(c.num_hidden_layers)
            for kind in ("key", "value")
        ]

    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "new"])
    logits = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT, ["batch", "new", c.vocab_size]
    )
    graph = helper.make_graph(
        b.nodes, "decoder", [ids, *tensors("past_key_values", "past")],
        [logits, *tensors("present", "total")], b.weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


Pick = Callable[[np.ndarray], np.ndarray]
"""The next token of each row of logits [batch, vocabulary]."""


def greedy(logits: np.ndarray) -> np.ndarray:
    """The most likely tokens."""
    return logits.argmax(-1)


def sampling(seed: int, temperature: float = 1.0, top: int = 40) -> Pick:
    """Draws among the `top` most likely tokens; a low temperature prefers the first of these."""
    random = np.random.default_rng(seed)

    def pick(logits: np.ndarray) -> np.ndarray:
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :top]
        scores = np.take_along_axis(logits, best, -1).astype(np.float64) / temperature
        shares = np.exp(scores - scores.max(-1, keepdims=True)).cumsum(-1)
        drawn = random.random((len(logits), 1)) * shares[:, -1:]
        place = (shares < drawn).sum(-1, keepdims=True)
        return np.take_along_axis(best, place, -1)[:, 0]

    return pick


def generate(
    net: Any, prompt: np.ndarray, count: int, pick: Pick = greedy, cached: bool = True
) -> np.ndarray:
    """The prompt [batch, tokens] and `count` more tokens. Without the cache each step computes all
    tokens anew."""
    session = net.session(states=True)
    ids = new = prompt
    for _ in range(count):
        if not cached:
            session.reset()
        logits = session(new if cached else ids)
        new = pick(logits[:, -1])[:, None]
        ids = np.concatenate([ids, new], axis=1)
    return ids


def main() -> None:
    """Greedy tokens and drawn ones, with the time of each way."""
    net = ts.compile(ts.load(decoder(Config())))
    prompt = np.array([[1, 2, 3, 4, 5]])
    ways: list[tuple[str, Callable[[], Pick]]] = [
        ("greedy", lambda: greedy),
        ("sampling", lambda: sampling(seed=0)),
    ]
    for name, pick in ways:
        for cached in (True, False):
            generate(net, prompt, 40, pick(), cached)  # compiles
            start = time.perf_counter()
            ids = generate(net, prompt, 40, pick(), cached)
            spent = 1e3 * (time.perf_counter() - start)
            print(f"{name}, {'with' if cached else 'without'} a cache, {spent:.1f} ms:")
            print(*ids[0].tolist())


if __name__ == "__main__":
    main()
