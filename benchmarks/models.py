"""The panel and other architectures as ONNX, TorchScript and a reference input and output.

PANEL holds the nineteen models that speed is followed by; OTHERS are there to show whether what was
made for those holds elsewhere.

Run by the exporter's Python: `PYTHON -m benchmarks.models FOLDER [NAME ...]`. Weights are random
with a fixed seed, and batch norms have statistics and factors, so that a wrong fold shows. NAME
gives NAME.onnx (opset 17, input `x`, output `y`), NAME.pt (TorchScript) and NAME.npz (x and y,
float32). NAME_b8 is the model at batch 8. Importing this module needs nothing but the standard
library.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMAGE = (1, 3, 224, 224)
SEQUENCE = (1, 64, 128)


def _from(module: str, name: str, *sizes: Any, **options: Any) -> Callable[[], Any]:
    """Calls what a module has under a name; the module is imported by then only."""

    def make() -> Any:
        return getattr(importlib.import_module(module), name)(*sizes, **options)

    return make


_vision = functools.partial(_from, "torchvision.models")
_timm = functools.partial(_from, "timm", "create_model")
_own = functools.partial(_from, "benchmarks._nets")


def _segmentation(name: str) -> Callable[[], Any]:
    part = _from("torchvision.models.segmentation", name, weights=None, weights_backbone=None)
    return lambda: _own("Entry", part(), "out")()


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
    "gru": (_own("Recurrent", "GRU", 128, 256, 2, True, 100), SEQUENCE),
    "lstm": (_own("Recurrent", "LSTM", 128, 256, 2, False, 100), SEQUENCE),
    "unet": (_own("UNet"), (1, 3, 256, 256)),
}


def _image(size: int) -> tuple[int, ...]:
    return (1, 3, size, size)


OTHERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "alexnet": (_vision("alexnet"), IMAGE),
    "vgg11_bn": (_vision("vgg11_bn"), IMAGE),
    "resnet34": (_vision("resnet34"), IMAGE),
    "resnet50_96": (_vision("resnet50"), _image(96)),
    "resnext50": (_vision("resnext50_32x4d"), IMAGE),
    "wide_resnet50": (_vision("wide_resnet50_2"), IMAGE),
    "densenet169": (_vision("densenet169"), IMAGE),
    "squeezenet1_0": (_vision("squeezenet1_0"), IMAGE),
    "inception_v3": (_vision("inception_v3", aux_logits=False, init_weights=False), _image(299)),
    "mobilenet_v2_512": (_vision("mobilenet_v2"), _image(512)),
    "mobilenet_v3_small": (_vision("mobilenet_v3_small"), IMAGE),
    "mnasnet0_5": (_vision("mnasnet0_5"), IMAGE),
    "shufflenet_x2": (_vision("shufflenet_v2_x2_0"), IMAGE),
    "efficientnet_b2": (_vision("efficientnet_b2"), _image(260)),
    "efficientnet_v2_s": (_vision("efficientnet_v2_s"), IMAGE),
    "regnet_x_800mf": (_vision("regnet_x_800mf"), IMAGE),
    "regnet_y_1_6gf": (_vision("regnet_y_1_6gf"), IMAGE),
    "swin_v2_t": (_vision("swin_v2_t"), _image(256)),
    "maxvit": (_vision("maxvit_t"), IMAGE),
    "deeplab_mbv3": (_segmentation("deeplabv3_mobilenet_v3_large"), _image(320)),
    "deeplab_r50": (_segmentation("deeplabv3_resnet50"), _image(256)),
    "fcn_resnet50": (_segmentation("fcn_resnet50"), _image(256)),
    "r3d18": (_from("torchvision.models.video", "r3d_18"), (1, 3, 8, 112, 112)),
    **{
        name: (_timm(source), _image(size))
        for name, source, size in (
            ("seresnet50", "seresnet50", 224),
            ("res2net50", "res2net50_26w_4s", 224),
            ("dpn68", "dpn68", 224),
            ("dla34", "dla34", 224),
            ("hrnet_w18", "hrnet_w18_small", 224),
            ("cspdarknet53", "cspdarknet53", 256),
            ("repvgg_a0", "repvgg_a0", 224),
            ("gernet", "gernet_s", 224),
            ("xception41", "xception41", 299),
            ("ghostnet", "ghostnet_100", 224),
            ("repghost", "repghostnet_100", 224),
            ("mobileone", "mobileone_s0", 224),
            ("mobilenetv4", "mobilenetv4_conv_medium", 256),
            ("mixnet_s", "mixnet_s", 224),
            ("lcnet", "lcnet_100", 224),
            ("tf_efficientnet_lite0", "tf_efficientnet_lite0", 224),
            ("convmixer", "convmixer_768_32", 224),
            ("convnextv2", "convnextv2_atto", 224),
            ("fastvit", "fastvit_t8", 256),
            ("edgenext", "edgenext_small", 256),
            ("mobilevit_s", "mobilevit_s", 256),
            ("efficientformer", "efficientformer_l1", 224),
            ("efficientvit", "efficientvit_b0", 224),
            ("poolformer", "poolformer_s12", 224),
            ("pvt_v2_b0", "pvt_v2_b0", 224),
            ("levit_128s", "levit_128s", 224),
            ("deit_small", "deit_small_patch16_224", 224),
            ("vit_small32", "vit_small_patch32_224", 224),
            ("twins_svt", "twins_svt_small", 224),
            ("xcit", "xcit_nano_12_p16_224", 224),
            ("coatnet_0", "coatnet_0_rw_224", 224),
        )
    },
    "tcn": (_own("Tcn"), (1, 64, 500)),
    "espcn": (_own("Espcn"), (1, 1, 180, 320)),
    "edsr": (_own("Edsr"), _image(128)),
    "dcgan": (_own("Dcgan"), (1, 100, 1, 1)),
    "detector": (_from("benchmarks._detector", "Detector"), _image(320)),
    "encoder": (_own("Encoder"), (1, 256, 256)),
    "mlp": (_own("Mlp"), (1, 784)),
    "lstm512": (_own("Recurrent", "LSTM", 80, 512, 1, False), (1, 100, 80)),
    "gru128": (_own("Recurrent", "GRU", 64, 128, 1, False), (1, 100, 64)),
    "bilstm128": (_own("Recurrent", "LSTM", 64, 128, 2, True), (1, 50, 64)),
}

MODELS = PANEL | OTHERS


CALIBRATION = 4  # inputs of which batch-norm statistics are taken


def take_statistics(model: Any, inputs: list[Any]) -> list[Any]:
    """Let the statistics of batch norms be those of the activations of `inputs`, as training leaves
    them; return these layers. The model is then in evaluation mode."""
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    model.eval()
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches seen
        norm.train()
    if norms:
        with torch.no_grad():
            model(*inputs)
    model.eval()
    return norms


def _settle(model: Any, shape: tuple[int, ...]) -> None:
    """Draw what batch norms multiply and add, and let their statistics be those of random inputs of
    `shape`: with statistics that are random numbers, the activations of deep nets vanish, until
    outputs do not depend on inputs."""
    import torch
    from torch import nn

    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.affine:
            layer.weight.data.uniform_(0.5, 1.5)
            layer.bias.data.normal_(0, 0.1)
    take_statistics(model, [torch.randn(CALIBRATION, *shape[1:])])


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
    make, shape = MODELS[base]
    shape = (batch, *shape[1:])
    torch.manual_seed(0)
    model = make()
    _settle(model, shape)
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
    return (base, int(batch)) if found and batch.isdigit() and base in MODELS else (name, 1)


def complete(name: str, folder: Path) -> bool:
    return all((folder / f"{name}.{kind}").exists() for kind in ("onnx", "pt", "npz"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    options = parser.parse_args()
    if unknown := [n for n in options.names if parted(n)[0] not in MODELS]:
        parser.error(f"no model is named {', '.join(unknown)}; there are {', '.join(MODELS)}")
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
