"""Types a command, and the files that commands are tried on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result

from tinsmith.cli import main
from tinsmith.cli._inputs import Inputs
from tinsmith.cli._picture import Picture
from tinsmith.graph import Type

DIGITS = Path(__file__).resolve().parent.parent.parent / "examples" / "digits"
MODEL = str(DIGITS / "digits.onnx")
SEVEN = str(DIGITS / "seven.png")
LABELS = str(DIGITS / "labels.txt")


def tinsmith(*arguments: Any, code: int = 0) -> Result:
    got = CliRunner().invoke(main, [str(a) for a in arguments])
    if got.exception is not None and not isinstance(got.exception, SystemExit):
        raise got.exception
    assert got.exit_code == code, got.output
    assert "Traceback" not in got.output and "\x1b[" not in got.output
    return got


def parsed(*arguments: Any) -> Any:
    return json.loads(tinsmith(*arguments, "--json").stdout)


def read(types: dict[str, Type], *arguments: str, **options: object) -> dict[str, np.ndarray]:
    """The arrays that arguments of a command give to inputs of these types."""
    dims = options.pop("dims", {})
    picture = Picture(**options)  # type: ignore[arg-type]
    return Inputs(types, dims, 0, picture).read(arguments)  # type: ignore[arg-type]
