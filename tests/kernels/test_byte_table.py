"""Functions of bytes by tables, against the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.harness import check, levels, one_node, site_of
from tinsmith.codegen.jit import assembly
from tinsmith.codegen.target import ISAS, level
from tinsmith.kernels._kernel import KERNELS
from tinsmith.kernels.build import build_phase
from tinsmith.kernels.layout import spec_of

rng = np.random.default_rng(0)
SHAPES = [(1,), (31,), (32,), (33,), (7, 129), (1, 8, 7, 7), (2, 19, 4, 3), (1, 3, 1, 1),
          (1, 40, 5, 9), (1, 20, 7), (2, 16, 2, 3, 2), (3, 0, 4, 4)]  # fmt: skip
TABLE = rng.permutation(256).astype(np.uint8)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("halo", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, halo, target):
    x = rng.integers(0, 256, shape).astype(np.uint8)
    check("ByteTable", (x, TABLE), kernel="byte_table", target=target, consts=[1], extra_halo=halo)


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("result", [np.int8, np.uint8])
@pytest.mark.parametrize("given", [np.int8, np.uint8])
def test_every_byte(given, result, target):
    x = np.arange(256, dtype=np.uint8).view(given).reshape(1, 16, 4, 4)
    check("ByteTable", (x, TABLE.view(result)), kernel="byte_table", target=target, consts=[1])


SHUFFLE = {"avx2": "vpshufb", "avxvnni": "vpshufb", "avx512": "vpshufb", "avx512vnni": "vpshufb",
           "avx512bf16": "vpshufb",
           "amx": "vpshufb", "neon": "tbl", "neondot": "tbl", "i8mm": "tbl",
           "sse2": "movzbl", "scalar": "movzbl"}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
def test_other_machines_get_theirs(isa):
    target = level(isa)
    x = np.zeros((1, 64, 8, 8), np.uint8)
    site = site_of(one_node("ByteTable", (x, TABLE), consts=[1]), target)
    choice = KERNELS["byte_table"].offer(site)[0]
    spec = spec_of(x.dtype, x.shape, choice.writes[0])
    code = build_phase(site, choice, 0, [spec, None], [spec], [np.dtype(np.uint8)])
    assert SHUFFLE[isa] in assembly(code.text, target)
