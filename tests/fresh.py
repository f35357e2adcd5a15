"""New Python processes, for what a process does only once or must do without what others loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def said(
    code: str, *arguments: object, cwd: Path | None = None, timeout: float = 120, **variables: str
) -> str:
    """What a new process that runs `code` prints, without the white space around it. It must end
    well. `variables` are set in its environment."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, timeout=timeout, env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
