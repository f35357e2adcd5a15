"""The importer of com.microsoft.MatMulNBits: products with weights of a few bits, in blocks."""

from __future__ import annotations

import numpy as np

from tinsmith.frontends.onnx.call import Call, Result, Unsupported, importer
from tinsmith.frontends.scales import need_scale
from tinsmith.graph import Array, Value, dtype_of


@importer("com.microsoft.MatMulNBits")
def matmul_bits(call: Call) -> Result:
    """Import MatMulNBits: x times the transpose of weights [N,K] of 2, 4 or 8 bits, which stay
    integers behind a DequantizeLinear, unless there is a g_idx or zero points are real numbers.
    Inputs: x, packed weights [N, blocks, bytes], a scale and a zero point for each block, g_idx
    (for each element of K the block of its scale; by default its own), a bias."""
    bits, block = call.attr("bits", 4), call.required("block_size")
    columns, rows = call.required("N"), call.required("K")
    call.ignore("accuracy_level", "weight_prepacked")
    if bits not in (2, 4, 8):
        raise Unsupported(f"weights of {bits} bits are not supported")
    packed, scales = call.constant(1, "weight"), call.constant(2, "scale")
    assert packed is not None and scales is not None
    blocks = -(-rows // block)
    weights = _apart(packed, bits, blocks * block)[:, :rows]
    need_scale(call[2], "scale", divides=False, blocks=True)
    scales = scales.reshape(columns, blocks)
    zeros = call.constant(3, "zero point")
    if zeros is None:
        zeros = np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        zeros = _apart(zeros.reshape(columns, -1), bits, blocks)
    weights, groups = weights.reshape(columns, rows), call.constant(4, "g_idx")
    if groups is None:
        w = _dequantised(call, weights, scales, zeros, block, bits)
    else:
        groups = groups.reshape(-1)[:rows].astype(np.int64)
        if len(groups) < rows or groups.min() < 0 or groups.max() >= blocks:
            raise Unsupported(f"g_idx does not name one of {blocks} blocks for each of {rows} rows")
        w = _real(call, weights, scales, zeros.reshape(scales.shape), groups)
    y = call.emit("MatMul", call[0], w)
    return y if call.arg(5) is None else call.emit("Add", y, call[5])


def _apart(packed: Array, bits: int, count: int) -> Array:
    """[rows, count]: the first `count` numbers of `bits` bits of each row packed[i] of bytes,
    lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.reshape(packed.shape[0], -1)[:, :count]


def _dequantised(
    call: Call, weights: Array, scales: Array, zeros: Array, block: int, bits: int
) -> Value:
    """Return the dequantised weights as a Value [K,N] of the type of `scales`, from whole numbers
    of `bits` bits `weights` [N,K]. Each row is cut into blocks of `block` elements along K, and
    `scales` and `zeros` [N, number of blocks] have a scale and a zero point for each block. Whole
    zero points (uint8): emits a DequantizeLinear; real ones: computes a constant."""
    if zeros.dtype != np.uint8:
        groups = np.arange(weights.shape[1]) // block
        return _real(call, weights, scales, zeros.reshape(scales.shape), groups)
    low = dtype_of(f"uint{bits}")
    whole, zero = (call.const(np.ascontiguousarray(v.T).astype(low)) for v in (weights, zeros))
    scale = call.const(np.ascontiguousarray(scales.T))
    return call.emit("DequantizeLinear", whole, scale, zero, axis=0, block_size=block)


def _real(call: Call, weights: Array, scales: Array, zeros: Array, groups: Array) -> Value:
    """The weights [N,K] as a constant [K,N], (weights - zeros) * scales. Element k of K has the
    scale and zero point of block groups[k]."""
    zero, scale = (v.astype(np.float32)[:, groups] for v in (zeros, scales))
    real = (weights.astype(np.float32) - zero) * scale
    return call.const(np.ascontiguousarray(real.T), scales.dtype)
