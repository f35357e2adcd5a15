"""Random chains and diamonds whose batch, height and width, or batch and length, are free together:
one program at many sizes, 0 and 1 among them, with guard pages around each tensor.

python -m tests.fuzz.together 1234       one seed, with its graph as text
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

import numpy as np

from tests.fuzz.base import Array
from tests.fuzz.free import judge
from tests.guard import SIDES, guarded
from tinsmith.errors import TinsmithError
from tinsmith.graph import Graph, Type, Value
from tinsmith.ops import OPS

RIGHT = "right"
F32 = np.dtype(np.float32)
SIDES_OF = [1, 2, 3, 5, 7, 8, 13, 16, 17, 31]
BATCHES = [0, 1, 1, 2, 3, 5]
TRIES = 10
MEGABYTES = 1024  # for `cage`


class Drawn:
    """A graph that grows step by step from its input: an image [n, c, h, w] or rows [n, s, c]."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 7])
        self.graph = Graph(f"together{seed}")
        self.c = c = int(self.rng.choice([1, 3, 8, 20]))
        """The channels of what it ends in."""
        dims = ("n", c, "h", "w") if self.rng.random() < 0.6 else ("n", "s", c)
        x = self.graph.input("x", Type(F32, dims))
        kept = [x]
        for _ in range(int(self.rng.integers(2, 8))):
            steps = IMAGE if x.rank == 4 else ROWS
            x = steps[self.rng.integers(len(steps))](self, x)
            kept.append(x)
        others = [v for v in kept[1:-1] if self.rng.random() < 0.2]
        self.graph.outputs = list(dict.fromkeys([x, *others]))

    def weights(self, *shape: int) -> Array:
        scale = 1 / np.sqrt(max(1, np.prod(shape[1:])))
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def size(self, x: Value, axis: int) -> Value:
        """One size of a value as int64[1], sometimes by way of a narrower type, as exporters do."""
        own = OPS["Slice"](OPS["Shape"](x), [axis], [axis + 1])
        if self.rng.random() < 0.3:
            own = OPS["Cast"](OPS["Cast"](own, to="int32"), to="int64")
        return own

    def calls(self) -> Iterator[dict[str, Array]]:
        for _ in range(TRIES):
            sizes = {name: int(self.rng.choice(SIDES_OF)) for name in "hws"}
            sizes["n"] = int(self.rng.choice(BATCHES))
            if self.rng.random() < 0.1:
                sizes["hws"[self.rng.integers(3)]] = 0
            shape = [
                d if isinstance(d, int) else sizes[d] for d in self.graph.inputs[0].shape or ()
            ]
            yield {"x": self.rng.standard_normal(shape).astype(np.float32)}


# ---- images


def conv(d: Drawn, x: Value) -> Value:
    c, taps, stride = d.c, int(d.rng.choice([1, 3, 5])), int(d.rng.choice([1, 1, 2]))
    out = int(d.rng.choice([1, 4, 8, 17]))
    pad, d.c = (taps // 2,) * 4, out
    y = OPS["Conv"](x, d.weights(out, c, taps, taps), d.weights(out), pad=pad, stride=(stride,) * 2)
    return OPS["Relu"](y) if d.rng.random() < 0.5 else y


def depthwise(d: Drawn, x: Value) -> Value:
    c = d.c
    return OPS["Conv"](x, d.weights(c, 1, 3, 3), pad=(1, 1, 1, 1), group=c)


def pool(d: Drawn, x: Value) -> Value:
    op = "MaxPool" if d.rng.random() < 0.5 else "AveragePool"
    return OPS[op](x, kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))


def joined(d: Drawn, x: Value) -> Value:
    both = OPS["Concat"](x, conv_same(d, x), axis=1)
    d.c *= 2
    return both


def added(d: Drawn, x: Value) -> Value:
    return OPS["Add"](x, conv_same(d, x))


def conv_same(d: Drawn, x: Value) -> Value:
    c = d.c
    return OPS["Conv"](x, d.weights(c, c, 3, 3), pad=(1, 1, 1, 1))


def gated(d: Drawn, x: Value) -> Value:
    mean = OPS["Reduce"](x, np.array([2, 3]), kind="mean")
    return OPS["Mul"](x, OPS["Sigmoid"](mean))


def grown(d: Drawn, x: Value) -> Value:
    return OPS["Resize"](x, None, np.array([1, 1, 2, 2], np.float32))


def padded(d: Drawn, x: Value) -> Value:
    return OPS["Pad"](x, np.array([0, 0, 1, 0, 0, 0, 0, 2]))


def cropped(d: Drawn, x: Value) -> Value:
    return OPS["Slice"](x, [1], [1 << 62], [int(d.rng.integers(2, 4))])


def turned(d: Drawn, x: Value) -> Value:
    return OPS["Transpose"](x, perm=(0, 1, 3, 2))


def parted(d: Drawn, x: Value) -> Value:
    axis = int(d.rng.integers(1, x.rank))
    d.c += axis == (1 if x.rank == 4 else 2)
    first = OPS["Slice"](x, [0], [1], [axis])
    return OPS["Concat"](OPS["Tanh"](first), x, axis=axis)


def chosen(d: Drawn, x: Value) -> Value:
    c = d.c
    d.c = int(d.rng.integers(1, 6))
    return OPS["Gather"](x, d.rng.integers(0, c, d.c), axis=1)


def to_rows(d: Drawn, x: Value) -> Value:
    """[n, h * w, c], the number of rows computed of sizes."""
    c = d.c
    rows = OPS["Mul"](d.size(x, 2), d.size(x, 3))
    target = OPS["Concat"](d.size(x, 0), np.array([c]), rows, axis=0)
    return OPS["Transpose"](OPS["Reshape"](x, target), perm=(0, 2, 1))


# ---- rows


def dense(d: Drawn, x: Value) -> Value:
    c, out = d.c, int(d.rng.choice([1, 5, 16, 24]))
    d.c = out
    return OPS["Add"](OPS["MatMul"](x, d.weights(c, out)), d.weights(out))


def normed(d: Drawn, x: Value) -> Value:
    c = d.c
    return OPS["LayerNorm"](x, d.weights(c), d.weights(c), axis=-1)


def attended(d: Drawn, x: Value) -> Value:
    c = d.c
    q, k, v = (OPS["MatMul"](x, d.weights(c, c)) for _ in range(3))
    scores = OPS["Softmax"](OPS["MatMul"](q, OPS["Transpose"](k, perm=(0, 2, 1))), axis=-1)
    return OPS["Add"](x, OPS["MatMul"](scores, v))


def softened(d: Drawn, x: Value) -> Value:
    return OPS["Softmax"](x, axis=int(d.rng.integers(1, 3)))


def doubled(d: Drawn, x: Value) -> Value:
    return OPS["Concat"](x, OPS["Tanh"](x), axis=1)


def centred(d: Drawn, x: Value) -> Value:
    return OPS["Sub"](x, OPS["Reduce"](x, np.array([1]), kind="mean"))


def halves(d: Drawn, x: Value) -> Value:
    """The first half of the rows, from a computed end."""
    end = OPS["Div"](OPS["Add"](d.size(x, 1), np.array([1])), np.array([2]))
    return OPS["Slice"](x, [0], end, [1])


def flat(d: Drawn, x: Value) -> Value:
    """[n, s, c] -> [n * s, c] -> a product -> [n, s, c]"""
    c = d.c
    y = OPS["MatMul"](OPS["Reshape"](x, np.array([-1, c])), d.weights(c, c))
    return OPS["Reshape"](y, OPS["Concat"](d.size(x, 0), d.size(x, 1), np.array([c]), axis=0))


IMAGE = [
    conv, conv, depthwise, pool, joined, added, gated, grown, padded, cropped, turned, parted,
    chosen, to_rows,
]  # fmt: skip
ROWS = [dense, dense, normed, attended, softened, doubled, centred, halves, flat, parted]


def check(seed: int) -> str:
    """RIGHT, UNSAID or what is wrong. An access outside of the tensors ends the process."""
    drawn = Drawn(seed)
    with warnings.catch_warnings(), np.errstate(all="ignore"), guarded(SIDES[seed % 2]):
        warnings.simplefilter("ignore")
        try:
            return judge(drawn.graph, {"shapes": "free"}, drawn.calls()) or RIGHT
        except TinsmithError as error:
            return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(Drawn(number).graph)
        print(number, check(number))
