"""Writes zoo models as ONNX with what torch computes. Run by the exporter's Python.

Names come in as lines, `KEY BASE`; each is answered by one JSON line. BASE.onnx has the inputs x0,
x1, ... and the outputs y0, y1, ...; BASE.npz has their arrays under these names.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.models import _import_torchvision
from benchmarks.zoo_models import Entry, entries

OPSET = 17


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
    """Statistics and weights that are one number everywhere become random: a wrong fold shows,
    and branches that are scaled to nothing when training starts count."""
    import torch

    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and float(parameter.std()) == 0:
                if abs(float(parameter.flatten()[0]) - 1) < 1e-6:
                    parameter.uniform_(0.5, 1.5)
                else:
                    parameter.normal_(0, 0.1)


def inputs_of(entry: Entry) -> list[Any]:
    import torch

    made = []
    for kind, shape in zip(entry.kinds, entry.shapes, strict=True):
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
    import torch

    torch.manual_seed(0)
    model = build(entry).eval()
    draw(model)
    wrapped, xs = wrap(model, entry.options.get("names")), inputs_of(entry)
    with torch.no_grad():
        want = wrapped(*xs)
        named = {f"x{i}": x.numpy() for i, x in enumerate(xs)}
        named |= {f"y{i}": y.numpy() for i, y in enumerate(want)}
        how = _write(wrapped, xs, len(want), base)
    np.savez(base.with_suffix(".npz"), **named)
    count = sum(p.numel() for p in model.parameters())
    return {"exporter": how, "parameters": count}


def _write(model: Any, xs: list[Any], outputs: int, base: Path) -> str:
    """By tracing, or else by torch.export."""
    import onnx
    import torch

    names = [f"x{i}" for i in range(len(xs))], [f"y{i}" for i in range(outputs)]
    file = str(base.with_suffix(".onnx"))
    try:
        torch.onnx.export(
            model, tuple(xs), file, dynamo=False, opset_version=OPSET,
            input_names=names[0], output_names=names[1],
        )  # fmt: skip
        onnx.checker.check_model(file, full_check=True)  # some traces are of shapes that do not fit
        return "traced"
    except Exception as first:
        try:
            program = torch.onnx.export(
                model, tuple(xs), dynamo=True, input_names=names[0], output_names=names[1],
                verbose=False,
            )  # fmt: skip
            assert program is not None
            program.save(file)
            return "torch.export"
        except Exception as second:
            raise RuntimeError(
                f"tracing: {_short(first)}; torch.export: {_short(second)}"
            ) from second


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def main() -> None:
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print where answers are expected
    library = _import_torchvision()
    import torch

    torch.set_num_threads(1)
    known = {e.key: e for e in entries()}
    for line in sys.stdin:
        key, base = line.split()
        start = time.perf_counter()
        said = io.StringIO()
        try:
            with redirect_stdout(said), redirect_stderr(said):
                found = export(known[key], Path(base))
        except Exception as error:
            found = {"failed": _short(error) if not isinstance(error, RuntimeError) else str(error)}
        found["seconds"] = round(time.perf_counter() - start, 2)
        print(json.dumps(found), file=answers, flush=True)
    del library


if __name__ == "__main__":
    main()
