"""The panel: nineteen models as ONNX, TorchScript and a reference input and output.

Run by the exporter's Python: `PYTHON -m benchmarks.models FOLDER [NAME ...]`. Weights are random
with a fixed seed, and batch-norm statistics are drawn too, so that a wrong fold shows. NAME gives
NAME.onnx (opset 17, input `x`, output `y`), NAME.pt (TorchScript) and NAME.npz (x and y, float32).
NAME_b8 is the model at batch 8. Importing this module needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMAGE = (1, 3, 224, 224)
SEQUENCE = (1, 64, 128)


def _vision(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torchvision.models

        return getattr(torchvision.models, name)(**options)

    return make


def _timm(name: str) -> Callable[[], Any]:
    def make() -> Any:
        import timm

        return timm.create_model(name)

    return make


def _own(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from benchmarks import _nets

        return getattr(_nets, name)()

    return make


PANEL: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "squeezenet1_1": (_vision("squeezenet1_1"), IMAGE),
    "mobilenet_v1": (_timm("mobilenetv1_100"), IMAGE),
    "mobilenet_v2": (_vision("mobilenet_v2"), IMAGE),
    "mobilenet_v3_large": (_vision("mobilenet_v3_large"), IMAGE),
    "shufflenet_v2": (_vision("shufflenet_v2_x1_0"), IMAGE),
    "mnasnet1_0": (_vision("mnasnet1_0"), IMAGE),
    "efficientnet_b0": (_vision("efficientnet_b0"), IMAGE),
    "resnet18": (_vision("resnet18"), IMAGE),
    "resnet50": (_vision("resnet50"), IMAGE),
    "vgg16": (_vision("vgg16"), IMAGE),
    "googlenet": (_vision("googlenet", aux_logits=False, init_weights=False), IMAGE),
    "densenet121": (_vision("densenet121"), IMAGE),
    "regnet_y_400mf": (_vision("regnet_y_400mf"), IMAGE),
    "convnext_tiny": (_vision("convnext_tiny"), IMAGE),
    "vit_tiny": (_timm("vit_tiny_patch16_224"), IMAGE),
    "swin_t": (_vision("swin_t"), IMAGE),
    "gru": (_own("Gru"), SEQUENCE),
    "lstm": (_own("Lstm"), SEQUENCE),
    "unet": (_own("UNet"), (1, 3, 256, 256)),
}


def _draw_statistics(model: Any) -> None:
    from torch import nn

    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
            if layer.affine:
                layer.weight.data.uniform_(0.5, 1.5)
                layer.bias.data.normal_(0, 0.1)


def _declare_operators(message: str, library: Any) -> bool:
    """Declare the torchvision operator that an import error names; False where it names none."""
    missing = re.search(r"operator torchvision::(\w+) does not exist", message)
    if missing:
        library.define(f"{missing[1]}(Tensor input) -> Tensor")
    return missing is not None


def _import_torchvision() -> Any:
    """torchvision's wheel may be built for another torch: its compiled operators then do not load,
    and importing it fails where it registers shape functions for them. No panel model calls one,
    so declaring the names is enough. Returns the library, which must stay alive."""
    import importlib

    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(64):
        try:
            importlib.import_module("torchvision.models")
            return library
        except RuntimeError as error:
            if not _declare_operators(str(error), library):
                raise
            for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
                del sys.modules[name]
    raise RuntimeError("torchvision cannot be imported: too many operators are missing")


def export(name: str, folder: Path) -> None:
    """Write one model; partial files never stay under the final names."""
    import numpy as np
    import torch

    base, batch = parted(name)
    make, shape = PANEL[base]
    shape = (batch, *shape[1:])
    torch.manual_seed(0)
    model = make()
    _draw_statistics(model)
    model.eval()
    x = torch.randn(*shape)
    parts = {kind: folder / f".{name}.partial.{kind}" for kind in ("onnx", "pt", "npz")}
    with torch.no_grad():
        torch.onnx.export(
            model,
            (x,),
            str(parts["onnx"]),
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            output_names=["y"],
        )
        torch.jit.trace(model, x, check_trace=False).save(str(parts["pt"]))
        np.savez(parts["npz"], x=x.numpy(), y=model(x).numpy())
    for kind, part in parts.items():
        part.replace(folder / f"{name}.{kind}")


def parted(name: str) -> tuple[str, int]:
    """The model's name in the panel, and its batch."""
    base, found, batch = name.rpartition("_b")
    return (base, int(batch)) if found and batch.isdigit() and base in PANEL else (name, 1)


def complete(name: str, folder: Path) -> bool:
    return all((folder / f"{name}.{kind}").exists() for kind in ("onnx", "pt", "npz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PANEL))
    options = parser.parse_args()
    if unknown := [n for n in options.names if parted(n)[0] not in PANEL]:
        parser.error(f"no panel model is named {', '.join(unknown)}; there are {', '.join(PANEL)}")
    warnings.filterwarnings("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    library = _import_torchvision()
    for name in options.names or PANEL:
        if not complete(name, options.folder):
            export(name, options.folder)
        size = (options.folder / f"{name}.onnx").stat().st_size
        print(f"{name}: {size / 1e6:.1f} MB", flush=True)
    del library


if __name__ == "__main__":
    main()
