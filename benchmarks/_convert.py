"""The peers' own formats, written once beside the models, in `converted/`.

A model that a converter refuses is remembered too, as NAME.ENGINE.failed with the reason. What was
written while the disk was full is neither kept nor remembered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks._arrays import beside
from benchmarks._engines import Unsupported

MINUTES = 10
ROOM = 1 << 20  # bytes; a disk with less is taken for full


def _once(base: Path, engine: str, suffixes: list[str], make: Callable[[Path], None]) -> list[Path]:
    """The converted files; `make(folder)` writes them as folder/NAME+suffix."""
    folder = base.parent / "converted"
    folder.mkdir(exist_ok=True)
    wanted = [folder / (base.name + s) for s in suffixes]
    failed = folder / f"{base.name}.{engine}.failed"
    if all(p.exists() for p in wanted):
        return wanted
    if failed.exists():
        raise Unsupported(f"{failed.read_text()} (delete {failed} to try again)")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = [Path(scratch) / p.name for p in wanted]
        try:
            make(Path(scratch))
            _require(made)
        except (OSError, subprocess.SubprocessError, Unsupported) as error:
            _require_room(folder)
            reason = Path(scratch) / failed.name
            reason.write_text(str(error))
            reason.replace(failed)
            raise Unsupported(str(error)) from error
        _require_room(folder)
        for source, path in zip(made, wanted, strict=True):
            source.replace(path)
    return wanted


def _require(files: list[Path]) -> None:
    if missing := [p.name for p in files if not p.exists()]:
        raise Unsupported(f"the converter has not written {', '.join(missing)}")


def _require_room(folder: Path) -> None:
    """Converters may end with 0 though what they wrote is cut off for want of room."""
    if shutil.disk_usage(folder).free < ROOM:
        raise Unsupported(f"the disk of {folder} is full")


def _run(command: list[str], log: Path) -> None:
    with log.open("w") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, timeout=60 * MINUTES, check=False
        )
    if done.returncode:
        tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
        raise Unsupported(f"{Path(command[0]).name} ends with {done.returncode}: {tail}")


def to_ncnn(base: Path) -> list[Path]:
    """NAME.ncnn.param and .bin, by pnnx from TorchScript."""

    def make(folder: Path) -> None:
        import numpy as np

        shape = np.load(beside(base, ".npz"))["x"].shape
        # pnnx writes all its files beside its input.
        link = folder / f"{base.name}.pt"
        link.symlink_to(beside(base, ".pt").resolve())
        size = f"inputshape=[{','.join(map(str, shape))}]"
        pnnx = Path(sys.executable).parent / "pnnx"
        _run([str(pnnx), str(link), size, "fp16=0"], folder / "log")

    return _once(base, "ncnn", [".ncnn.param", ".ncnn.bin"], make)


def to_mnn(base: Path) -> Path:
    """NAME.mnn, by MNN's converter from ONNX."""

    def make(folder: Path) -> None:
        # The `mnnconvert` command pip-installs a logging package into whichever Python comes
        # first on PATH and reports usage to its vendor; the binding below it only converts.
        code = "import sys, MNN, _tools; _tools.mnnconvert(sys.argv)"
        arguments = ["-f", "ONNX", "--modelFile", str(beside(base, ".onnx"))]
        arguments += ["--MNNModel", str(folder / f"{base.name}.mnn"), "--bizCode", "b"]
        _run([sys.executable, "-c", code, *arguments], folder / "log")

    return _once(base, "mnn", [".mnn"], make)[0]
