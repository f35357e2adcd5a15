"""Writes zoo models as ONNX with what torch computes. Run by the exporter's Python.

Commands come as to `_worker`: {"do": "export", "key", "base"} -> {"exporter", "parameters"}.
BASE.onnx has the inputs x0, x1, ... and the outputs y0, y1, ...; BASE.npz has their arrays under
these names. An input that the model does not read is in neither.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._worker import serve
from benchmarks.models import _import_torchvision, take_statistics
from benchmarks.zoo_models import Entry, entries

OPSETS = (17, 20)
"""Tracing is tried at each: some operators have no form before the later one."""
CALIBRATION = 8  # inputs of which batch-norm statistics are taken
STEADY = 30.0
"""How much larger, relative to its size, a small change may be in the output than in the input."""


def build(entry: Entry) -> Any:
    """The model with its own random weights."""
    size = entry.shapes[0][-1]
    if entry.source == "torchvision":
        return _torchvision(entry.name, size)
    if entry.source == "timm":
        import timm

        for options in ({"img_size": size}, {"input_size": (3, size, size)}, {}):
            try:
                return timm.create_model(entry.name, **options)
            except TypeError:
                continue
        raise TypeError(f"timm does not make {entry.name}")
    if entry.source == "torch":
        from benchmarks import _zoo_images, _zoo_signals, _zoo_tables

        own = {**_zoo_images.NETS, **_zoo_signals.NETS, **_zoo_tables.NETS}
        return own[entry.name]()
    import transformers

    config = getattr(transformers, entry.options["config"])(
        **{"vocab_size": entry.vocab, **entry.options["values"]}
    )
    for name in ("use_cache", "output_hidden_states"):
        if hasattr(config, name):
            setattr(config, name, False)
    config._attn_implementation = "eager"
    return getattr(transformers, entry.options["model"])(config)


def _torchvision(name: str, size: int) -> Any:
    import torchvision.models as models
    from torchvision.models import optical_flow, segmentation, video

    makers: dict[str, Any] = {
        "vit_b_16": lambda: models.vit_b_16(image_size=size),
        "googlenet": lambda: models.googlenet(aux_logits=False, init_weights=False),
        "inception_v3": lambda: models.inception_v3(aux_logits=False, init_weights=False),
    }
    if name in makers:
        return makers[name]()
    if "deeplab" in name or "lraspp" in name or "fcn" in name:
        options = {} if "lraspp" in name else {"aux_loss": False}
        return getattr(segmentation, name)(weights=None, weights_backbone=None, **options)
    for room in (models, video, optical_flow):
        if hasattr(room, name):
            return getattr(room, name)()
    raise ValueError(f"torchvision has no model {name}")


def draw(model: Any) -> None:
    """Weights that are one number everywhere become random: a wrong fold shows, and branches that
    are scaled to nothing when training starts count."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and float(parameter.std()) == 0:
                if abs(float(parameter.flatten()[0]) - 1) < 1e-6:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(0, 0.1)


def settle(model: Any, many: list[Any], xs: list[Any]) -> None:
    """Batch-norm statistics become those of the activations of the inputs `many`, as training
    leaves them; or random numbers, where these make the output for `xs` depend less on rounding.
    (With the former, small changes grow from layer to layer in deep nets of random weights; with
    the latter, activations may grow or vanish until rounding is all that is seen of the input.)"""
    norms = take_statistics(model, many)
    if not norms:
        return
    kept = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    if (taken := growth(model, xs)) <= STEADY:
        return
    for norm in norms:
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 1.5)
    if growth(model, xs) > taken:
        for norm, (mean, variance) in zip(norms, kept, strict=True):
            norm.running_mean.copy_(mean)
            norm.running_var.copy_(variance)


def growth(model: Any, xs: list[Any], change: float = 1e-6) -> float:
    """How much larger a small relative change is in the worst output than in the inputs."""
    import torch

    near = [x * (1 + change * torch.randn_like(x)) if x.is_floating_point() else x for x in xs]
    worst = 0.0
    with torch.no_grad():
        for a, b in zip(model(*xs), model(*near), strict=True):
            if b.is_floating_point() and float(b.abs().max()):
                worst = max(worst, float((a - b).abs().max() / b.abs().max()) / change)
    return worst


def inputs_of(entry: Entry, batch: int = 0) -> list[Any]:
    """What the model is given; at its own batch, or at another."""
    import torch

    made = []
    for kind, own in zip(entry.kinds, entry.shapes, strict=True):
        shape = (batch or own[0], *own[1:])
        if kind == "ids":
            made.append(torch.randint(3, entry.vocab, shape))
        elif kind == "ones":
            mask = torch.ones(shape, dtype=torch.long)
            mask[1:, shape[1] // 2 :] = 0
            made.append(mask)
        else:
            made.append(torch.randn(*shape))
    return made


def flat(out: Any) -> list[Any]:
    """All tensors of a result, in order."""
    import torch

    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, Mapping):
        out = list(out.values())
    return [t for o in out for t in flat(o)] if isinstance(out, list | tuple) else []


def wrap(model: Any, names: Any) -> Any:
    from torch import nn

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *xs: Any) -> Any:
            got = self.model(**dict(zip(names, xs, strict=True))) if names else self.model(*xs)
            return tuple(flat(got))

    return Flat().eval()


def export(entry: Entry, base: Path) -> dict[str, Any]:
    import numpy as np
    import onnx
    import torch

    torch.manual_seed(0)
    model = build(entry).eval()
    draw(model)
    wrapped = wrap(model, entry.options.get("names"))
    xs = inputs_of(entry)
    settle(wrapped, inputs_of(entry, CALIBRATION), xs)
    with torch.no_grad():
        want = wrapped(*xs)
        named = {f"x{i}": x.numpy() for i, x in enumerate(xs)}
        named |= {f"y{i}": y.numpy() for i, y in enumerate(want)}
        how = _write(wrapped, xs, len(want), base)
    taken = {
        i.name for i in onnx.load(base.with_suffix(".onnx"), load_external_data=False).graph.input
    }
    given = {n: a for n, a in named.items() if n.startswith("y") or n in taken}
    np.savez(base.with_suffix(".npz"), **given)
    count = sum(p.numel() for p in model.parameters())
    return {"exporter": how, "parameters": count}


def _write(model: Any, xs: list[Any], outputs: int, base: Path) -> str:
    """By tracing, or else by torch.export."""
    import onnx
    import torch

    names: dict[str, Any] = {
        "input_names": [f"x{i}" for i in range(len(xs))],
        "output_names": [f"y{i}" for i in range(outputs)],
    }
    file, failures = str(base.with_suffix(".onnx")), []
    for opset in OPSETS:
        try:
            torch.onnx.export(model, tuple(xs), file, dynamo=False, opset_version=opset, **names)
            onnx.checker.check_model(file, full_check=True)  # some traces' shapes do not fit
            return "traced"
        except Exception as error:
            failures.append(f"tracing at opset {opset}: {_short(error)}")
    try:
        program = torch.onnx.export(model, tuple(xs), dynamo=True, verbose=False, **names)
        assert program is not None
        program.save(file)
        return "torch.export"
    except Exception as error:
        failures.append(f"torch.export: {_short(error)}")
        raise RuntimeError("; ".join(failures)) from error


def _trace_antialiased_resizing() -> None:
    """Teach the tracer a call that only torch.export knows. ONNX has the operator since opset 18;
    torch takes -0.5 for the cubic's coefficient, and no weight of pixels outside of the image."""
    import torch
    from torch.onnx import symbolic_helper

    @symbolic_helper.parse_args("v", "v", "i", "v", "v")
    def resize(g: Any, x: Any, sizes: Any, align_corners: int, *_: Any) -> Any:
        batch = g.op("Slice", g.op("Shape", x), _ints(g, 0), _ints(g, 2), _ints(g, 0))
        sizes = g.op("Cast", sizes, to_i=torch.onnx.TensorProtoDataType.INT64)
        none = g.op("Constant", value_t=torch.tensor([], dtype=torch.float32))
        return g.op(
            "Resize", x, none, none, g.op("Concat", batch, sizes, axis_i=0), mode_s="cubic",
            coordinate_transformation_mode_s="align_corners" if align_corners else "half_pixel",
            antialias_i=1, cubic_coeff_a_f=-0.5, exclude_outside_i=1,
        )  # fmt: skip

    torch.onnx.register_custom_op_symbolic("aten::_upsample_bicubic2d_aa", resize, OPSETS[-1])


def _ints(g: Any, *values: int) -> Any:
    import torch

    return g.op("Constant", value_t=torch.tensor(values))


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


class Exporter:
    """What this process is asked to do."""

    def __init__(self) -> None:
        import torch

        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        self.library = _import_torchvision()
        _trace_antialiased_resizing()
        self.known = {e.key: e for e in entries()}

    def export(self, key: str, base: str) -> dict[str, Any]:
        try:
            return export(self.known[key], Path(base))
        except Exception as error:
            return {"failed": str(error) if isinstance(error, RuntimeError) else _short(error)}


if __name__ == "__main__":
    serve(Exporter)
