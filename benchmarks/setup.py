"""Make the virtual environments that the benchmarks need: `python -m benchmarks.setup`.

Two of them, because the peers' pins of protobuf break `onnx`: `export` (torch, torchvision,
timm, onnx) writes the models, `peers` holds the engines that we compare with.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import click

from benchmarks.places import default_home

CPU_TORCH = "https://download.pytorch.org/whl/cpu"
EXPORT = ["onnx", "onnxscript", "pyyaml", "safetensors", "huggingface_hub", "pillow", "numpy"]
EXPORT += ["regex", "requests", "tokenizers", "packaging", "tqdm", "filelock"]  # transformers'
PEERS = ["numpy", "onnxruntime", "openvino", "ncnn", "MNN", "pnnx"]
# The panel's models are what these versions make of them; any later pair draws other weights.
TORCH, TORCHVISION = "torch==2.13.0", "torchvision==0.28.0"


def _pip(python: Path, *args: str) -> bool:
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q", *args]
    click.echo(f"  pip install {' '.join(args)}", err=True)
    return subprocess.run(command, check=False).returncode == 0


def _fresh(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        click.echo(f"creating {folder}", err=True)
        venv.create(folder, with_pip=True)
    return python


def _need(ok: bool, what: str) -> None:
    if not ok:
        raise click.ClickException(f"could not install {what}; pip's message is above")


def _torch(python: Path) -> bool:
    """Install the pinned torch, or else the newest for CPUs; whether it is the pinned one."""
    if _pip(python, TORCH):
        return True
    _need(_pip(python, "--index-url", CPU_TORCH, "torch"), "a torch for CPUs")
    return False


def make_export(folder: Path) -> Path:
    """torchvision, timm and transformers go in without their dependencies, which would pull
    another torch."""
    python = _fresh(folder)
    vision = TORCHVISION if _torch(python) else "torchvision"
    _need(_pip(python, "--no-deps", vision, "timm", "transformers"), "the model libraries")
    _need(_pip(python, *EXPORT), "the exporter's helpers")
    return python


def make_peers(folder: Path) -> Path:
    """torch comes first, since pnnx asks for it and would pull one with gigabytes of CUDA."""
    python = _fresh(folder)
    _torch(python)
    _need(_pip(python, *PEERS), "the peer engines")
    return python


@click.command()
@click.option("--dir", "home", type=click.Path(path_type=Path), help="Where; default: the cache.")
@click.option("--models/--no-models", default=False, help="Also export the models (1.2 GB).")
def main(home: Path | None, models: bool) -> None:
    """Create the export and peers environments (2.5 GB in all)."""
    home = (home or default_home()).resolve()
    home.mkdir(parents=True, exist_ok=True)
    export, peers = make_export(home / "export"), make_peers(home / "peers")
    if models:
        from benchmarks.places import ROOT

        command = [str(export), "-m", "benchmarks.models", str(home / "models")]
        subprocess.run(command, cwd=ROOT, check=True)
    click.echo(f"export: {export}\npeers:  {peers}")
    click.echo(f"use them: export TINSMITH_BENCH_DIR={home}", err=True)


if __name__ == "__main__":
    sys.exit(main())
