"""Whole stages as text: what a graph becomes, name by name.

Each case is a graph in the text form; weights that are not inline are made up from their names.
"""

import re
import zlib

import numpy as np
import pytest

from tests.passes.build import check
from tinsmith.graph.text import parse_graph

CASES = {
    "residual block": (
        """
        graph block (x: float32[1,4,6,6]) {
          w1 = const float32[4,4,3,3]
          w2 = const float32[4,4,3,3]
          scale = const float32[4] = [1, 2, 0.5, 1]
          shift = const float32[4] = [0, 1, 0, -1]
          mean = const float32[4] = [1, 2, 3, 4]
          var = const float32[4] = [0.99999, 3.99999, 0.24999, 0.99999]
          pads = const int64[8] = [0, 0, 1, 1, 0, 0, 1, 1]
          p1 = Pad(x, pads) : float32[1,4,8,8]
          c1 = Conv(p1, w1) : float32[1,4,6,6] @conv1
          n1 = BatchNorm(c1, scale, shift, mean, var) : float32[1,4,6,6] @bn1
          a1 = Relu(n1) : float32[1,4,6,6] @relu1
          c2 = Conv(a1, w2, pad=(1, 1, 1, 1)) : float32[1,4,6,6] @conv2
          n2 = BatchNorm(c2, scale, shift, mean, var) : float32[1,4,6,6] @bn2
          s = Add(n2, x) : float32[1,4,6,6] @add
          y = Relu(s) : float32[1,4,6,6] @relu2
          return y
        }
        """,
        """
        graph block (x: float32[1,4,6,6]) {
          w1 = const float32[4,4,3,3]
          conv1.b = const float32[4] = [-1.0, -1.0, -3.0, -5.0]
          w2 = const float32[4,4,3,3]
          a1 = Fused(x, w1, conv1.b, body=graph a1 (x: float32[1,4,6,6], w1: float32[4,4,3,3], \
conv1.b: float32[4]) {
            n1 = Conv(x, w1, conv1.b, pad=(1, 1, 1, 1)) : float32[1,4,6,6] @conv1
            a1 = Relu(n1) : float32[1,4,6,6] @relu1
            return a1
          }) : float32[1,4,6,6] @conv1 from "Conv" "conv1"
          y = Fused(a1, w2, conv1.b, x, body=graph y (a1: float32[1,4,6,6], w2: float32[4,4,3,3], \
conv1.b: float32[4], x: float32[1,4,6,6]) {
            n2 = Conv(a1, w2, conv1.b, pad=(1, 1, 1, 1)) : float32[1,4,6,6] @conv2
            s = Add(n2, x) : float32[1,4,6,6] @add
            y = Relu(s) : float32[1,4,6,6] @relu2
            return y
          }) : float32[1,4,6,6] @conv2 from "Conv" "conv2"
          return y
        }
        """,
    ),
    "layer norm and gelu, dynamic batch": (
        """
        graph mlp (x: float32[N,5,8]) {
          axes = const int64[1] = [-1]
          two = const float32[] = [2]
          eps = const float32[] = [1e-05]
          g = const float32[8] = [1, 1, 1, 1, 2, 2, 2, 2]
          b = const float32[8] = [0, 0, 0, 0, 1, 1, 1, 1]
          w = const float32[8,16]
          root = const float32[] = [1.4142135]
          one = const float32[] = [1]
          half = const float32[] = [0.5]
          m = Reduce(x, axes, kind="mean") : float32[N,5,1]
          d = Sub(x, m) : float32[N,5,8]
          q = Pow(d, two) : float32[N,5,8]
          v = Reduce(q, axes, kind="mean") : float32[N,5,1]
          e = Add(v, eps) : float32[N,5,1]
          r = Sqrt(e) : float32[N,5,1]
          z = Div(d, r) : float32[N,5,8]
          k = Mul(z, g) : float32[N,5,8]
          l = Add(k, b) : float32[N,5,8]
          h = MatMul(l, w) : float32[N,5,16]
          f = Div(h, root) : float32[N,5,16]
          i = Erf(f) : float32[N,5,16]
          j = Add(i, one) : float32[N,5,16]
          o = Mul(h, j) : float32[N,5,16]
          y = Mul(o, half) : float32[N,5,16]
          return y
        }
        """,
        """
        graph mlp (x: float32[N,5,8]) {
          z.scale = const float32[8] = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
          z.shift = const float32[8] = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
          w = const float32[8,16]
          l = LayerNorm(x, z.scale, z.shift, eps=1e-05) : float32[N,5,8] @l
          y = Fused(l, w, body=graph y (l: float32[N,5,8], w: float32[8,16]) {
            h = MatMul(l, w) : float32[N,5,16]
            y = Gelu(h) : float32[N,5,16]
            return y
          }) : float32[N,5,16] @h from "MatMul" "h"
          return y
        }
        """,
    ),
    "shapes that exporters compute": (
        """
        graph tail (x: float32[N,6,2,3]) {
          zero = const int64[] = [0]
          axis = const int64[1] = [0]
          rest = const int64[1] = [-1]
          perm = const int64[5] = [0, 2, 3, 2, 3]
          back = const int64[4] = [0, 6, 2, 3]
          s = Shape(x) : int64[4]
          n = Gather(s, zero) : int64[]
          u = Unsqueeze(n, axis) : int64[1]
          t = Concat(u, rest, axis=0) : int64[2]
          g = Reshape(x, perm) : float32[N,2,3,2,3]
          h = Transpose(g, perm=(0, 2, 1, 3, 4)) : float32[N,3,2,2,3]
          i = Reshape(h, back) : float32[N,6,2,3]
          j = Identity(i) : float32[N,6,2,3]
          y = Reshape(j, t) : float32["?1","?2"]
          return y
        }
        """,
        """
        graph tail (x: float32[N,6,2,3]) {
          "const" = const int64[2] = [0, 36]
          channelshuffle = ChannelShuffle(x, groups=2) : float32[N,6,2,3]
          y = Reshape(channelshuffle, "const") : float32[N,36]
          return y
        }
        """,
    ),
}


def weights(text):
    out = {}
    for name, dims in re.findall(r"(\S+) = const float32\[([\d,]*)\]$", text, re.MULTILINE):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        out[name] = rng.standard_normal([int(d) for d in dims.split(",")]).astype(np.float32)
    return out


def plain(text):
    """The lines, numbers rounded; indentation, node names, origins and counters left out."""
    lines = []
    for line in text.strip().splitlines():
        line = re.sub(
            r"-?\d+\.\d+(e-?\d+)?|-?\d+e-\d+", lambda m: f"{float(m[0]):.4g}", line.strip()
        )
        line = re.sub(r' from "\w+" "\S+"', "", line)
        line = re.sub(r'"const(\.\d+)?"|\bconst\.\d+', '"const"', line)
        lines.append(re.sub(r" @\S+", "", line))
    return lines


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    before, after = CASES[name]
    graph = parse_graph(before, weights(before))
    check(graph, sizes={"N": 2})
    assert plain(str(graph)) == plain(after)
