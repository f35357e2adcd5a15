"""For each rewrite of ncnnoptimize a network that it rewrites, and one that it spoils for lack of a
guard: how many layers it leaves (measured), and which types of layers have to stay.

A network is layers parted by semicolons, "Type inputs>outputs params"; an Input has its size before
the arrow: "Input 4x8x9>x".
"""

from __future__ import annotations

from typing import NamedTuple

from tinsmith.formats.ncnn.param import Layer, read_param
from tinsmith.formats.ncnn.weights import draw_weights, write_weights


class Case(NamedTuple):
    """`left` layers remain in ncnnoptimize's file for `must`; in `guard`, at least one layer of the
    types `stay` has to be there, and none of the types `never`."""

    must: str
    left: int
    guard: str
    stay: str = ""
    never: str = ""


X = "Input 4x8x9>x; "
CONV = "0=5 1=3 5=1 6=180"
KINDS = {
    "convolution": f"Convolution x>a {CONV}",
    "convolutiondepthwise": "ConvolutionDepthWise x>a 0=4 1=3 4=1 5=1 6=36 7=4",
    "deconvolution": f"Deconvolution x>a {CONV}",
    "deconvolutiondepthwise": "DeconvolutionDepthWise x>a 0=4 1=3 5=1 6=36 7=4",
}
ROWS = "Input 5x6>x; InnerProduct x>a 0=5 1=1 2=30; "
VECTOR = "Input 6>x; InnerProduct x>a 0=5 1=1 2=30"
NORM, ADD = "BatchNorm a>y 0={n} 1=1e-5", "MemoryData >m 0={n}; BinaryOp a,m>y 0="
SQUEEZE = X + "Split x>x0,x1; Pooling x0>g 0=1 4=1; "


def _into_weights() -> dict[str, Case]:
    """Norms, factors and terms that go into convolutions, but for those behind an activation."""
    found = {}
    for kind, text in KINDS.items():
        n = 4 if "depthwise" in kind else 5
        inner = f"{X}{text}; "
        active = f"{X}{text} 9=2 -23310=1,1e-1; "
        found[f"fuse_{kind}_batchnorm"] = Case(
            inner + NORM.format(n=n), 2, active + NORM.format(n=n), "BatchNorm"
        )
        if kind == "deconvolutiondepthwise":
            continue
        for name, code in (("mul", 2), ("add", 0)):
            more = ADD.format(n=n) + str(code)
            shaped = more.replace(f"0={n};", f"0=1 1=1 2={n};") if name == "add" else more
            found[f"fuse_{kind}_{name}"] = Case(inner + shaped, 2, active + more, "Scale Bias")
    return found


def _activations() -> dict[str, Case]:
    """Activations that go into layers, but for those behind another."""
    found = {}
    for kind, text in (KINDS | {"innerproduct": VECTOR.split("; ")[1]}).items():
        begin = VECTOR.split("; ")[0] + "; " if kind == "innerproduct" else X
        found[f"fuse_{kind}_activation"] = Case(
            f"{begin}{text}; Clip a>y 0=-1e-1 1=2e-1",
            2,
            f"{begin}{text} 9=2 -23310=1,1e-1; Sigmoid a>y",
            "Sigmoid",
        )
    return found


CASES: dict[str, Case] = {
    "fuse_batchnorm_scale": Case(
        X + "BatchNorm x>a 0=4; Scale a>y 0=4 1=1",
        2,
        X + "BatchNorm x>a 0=4; Scale a>y 0=4 1=1; Sigmoid a>z",
        "Sigmoid",
    ),
    **_into_weights(),
    "fuse_innerproduct_batchnorm": Case(
        f"{VECTOR}; {NORM.format(n=5)}", 2, ROWS + NORM.format(n=5), "BatchNorm"
    ),
    "fuse_innerproduct_add": Case(
        f"{VECTOR}; MemoryData >m 0=5; BinaryOp a,m>y 0=0",
        2,
        ROWS + "MemoryData >m 0=5; BinaryOp a,m>y 0=0",
        "BinaryOp",
    ),
    "fuse_innerproduct_dropout": Case(
        VECTOR + "; Dropout a>y 0=5e-1", 2, VECTOR + " 9=4; Dropout a>y 0=5e-1", "BinaryOp Dropout"
    ),
    "replace_reduction_with_global_pooling": Case(
        X + "Reduction x>a 0=3 1=0 -23303=1,2 4=0 5=1; Reduction a>y 0=3 1=0 -23303=1,1 4=0 5=1",
        2,
        X + "Reduction x>a 0=3 1=0 -23303=1,2 4=1 5=1; Reduction a>y 0=3 1=0 -23303=1,2 4=0 5=1",
        "Reduction",
        "Pooling",
    ),
    "replace_prelu_with_leaky_relu": Case(
        X + "PReLU x>y 0=1", 2, X + "PReLU x>y 0=4", "PReLU", "ReLU"
    ),
    **_activations(),
    "fuse_memorydata_binaryop": Case(
        X + "MemoryData >m 0=1; BinaryOp x,m>y 0=1",
        2,
        X + "MemoryData >m 0=1; BinaryOp x,m>y 0=1; Concat m,m>z",
        "MemoryData",
    ),
    "fuse_binaryop_eltwise": Case(
        X + "Split x>x0,x1; Sigmoid x1>g; BinaryOp x0>a 0=2 1=1 2=2.0; BinaryOp g>b 0=2 1=1 2=3.0; "
        "BinaryOp a,b>y 0=0",
        4,
        X + "Input 4>z; BinaryOp x>a 0=2 1=1 2=2.0; BinaryOp a,z>y 0=0",
        "BinaryOp",
        "Eltwise",
    ),
    "eliminate_dropout": Case(
        X + "ReLU x>a; Dropout a>y", 2, X + "Dropout x>y", "Noop Dropout"
    ),
    "eliminate_pooling1x1": Case(
        X + "ReLU x>a; Pooling a>y 1=1 2=1",
        2,
        X + "ReLU x>a; Pooling a>y 0=1 1=1 2=1 7=1 8=3 18=2",
        "Pooling",
    ),
    "eliminate_noop": Case(
        X + "ReLU x>a; Noop a>b; Sigmoid b>y",
        3,
        X + "Split x>x0,x1; ReLU x0>a; Sigmoid x1>b; Noop a,b>c,d; BinaryOp c,d>y 0=1",
        "Sigmoid",
    ),
    "eliminate_split": Case(
        X + "ReLU x>a; Split a>b; Sigmoid b>y", 3, X + "ReLU x>a; Split a>b,c; Sigmoid b>y", "Split"
    ),
    "eliminate_flatten_after_global_pooling": Case(
        X + "Pooling x>a 0=1 4=1; Flatten a>y",
        2,
        X + "Pooling x>a 0=1 4=1; Flatten a>y; Sigmoid a>z",
        "Sigmoid",
    ),
    "eliminate_reshape_after_global_pooling": Case(
        X + "Pooling x>a 0=1 4=1; Reshape a>y 0=-1",
        2,
        X + "Pooling x>a 0=1 4=1; Reshape a>y 0=2 1=2",
        "Reshape",
    ),
    "eliminate_reshape_before_binaryop": Case(
        SQUEEZE + "Sigmoid g>h; Reshape h>k 0=1 1=1 2=-1; BinaryOp x1,k>y 0=2",
        5,
        X + "Input 1x3x4>z; Pooling x>g 0=1 4=1; Reshape g>k 0=1 1=1 2=-1; BinaryOp z,k>y 0=2",
        "Reshape",
    ),
    "replace_convolution_with_innerproduct_after_global_pooling": Case(
        X + "Pooling x>a 0=1 4=1; Convolution a>y 0=3 1=1 5=1 6=12",
        3,
        X + "Pooling x>a 0=1 4=1; Reshape a>b 0=1 1=1 2=-1; Convolution b>y 0=3 1=1 4=1 5=1 6=12",
        "Convolution",
    ),
    "replace_convolution_with_innerproduct_after_innerproduct": Case(
        VECTOR + "; Convolution a>b 0=3 1=1 5=1 6=15; Convolution b>y 0=2 1=1 5=1 6=6 9=4",
        4,
        VECTOR + "; Reshape a>b 0=1 1=1 2=-1; Convolution b>y 0=3 1=1 4=1 5=1 6=15",
        "Convolution",
    ),
    "eliminate_flatten_after_innerproduct": Case(
        VECTOR + "; Flatten a>y", 2, ROWS + "Flatten a>y", "Reshape Flatten"
    ),
    "eliminate_orphaned_memorydata": Case(
        f"{X}{KINDS['convolution']}; MemoryData >m 0=5; BinaryOp m,a>y 0=0",
        2,
        X + "MemoryData >m 0=7; ReLU x>y",
        "MemoryData",
    ),
}  # fmt: skip


def model_of(text: str) -> tuple[str, bytes]:
    """The .param and .bin of a network, its weights seeded."""
    rows, blobs = [], 0
    for i, part in enumerate(text.split("; ")):
        type, wires, *params = part.split()
        left, right = wires.split(">")
        inputs = [] if type == "Input" else [b for b in left.split(",") if b]
        outputs = right.split(",")
        if type == "Input":
            sizes = left.split("x")
            names = {1: "0", 2: "1 0", 3: "2 1 0"}[len(sizes)].split()
            params = [f"{n}={s}" for n, s in zip(names, sizes, strict=True)]
        head = [type, f"layer{i}", str(len(inputs)), str(len(outputs))]
        rows.append(" ".join([*head, *inputs, *outputs, *params]))
        blobs += len(outputs)
    param = f"7767517\n{len(rows)} {blobs}\n" + "\n".join(rows) + "\n"
    layers: list[Layer] = read_param(memoryview(param.encode()), text)
    draw_weights(layers, 0, text)
    return param, b"".join(write_weights(layers))
