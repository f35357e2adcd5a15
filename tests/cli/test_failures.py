"""What a command does with bad arguments, bad files, a full disk, a closed pipe and Ctrl-C: one
line of error, exit code 1 or 2, and never a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.cli.harness import MODEL, SEVEN, parsed, tinsmith
from tinsmith.cli import _interrupts, main

COMPILING = ("bench", "explain", "inspect", "run", "verify")
BAD = ("empty", "cut.onnx", "zeros.onnx", "cut.tin", "text", "x.npy", "folder", "nowhere", "")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that are not what they should be."""
    import tinsmith as ts

    at = tmp_path_factory.mktemp("bad")
    (at / "empty").touch()
    (at / "folder").mkdir()
    (at / "text").write_text("hello\n")
    (at / "latin").write_bytes(b"\xff\xfe\x00")
    model = Path(MODEL).read_bytes()
    (at / "cut.onnx").write_bytes(model[: len(model) // 2])
    (at / "zeros.onnx").write_bytes(bytes(5000))
    ts.save(ts.load(MODEL), at / "whole.tin")
    (at / "cut.tin").write_bytes((at / "whole.tin").read_bytes()[:5000])
    np.save(at / "x.npy", np.zeros((1, 1, 8, 8), np.float32))
    array = (at / "x.npy").read_bytes()
    (at / "cut.npy").write_bytes(array[:140])
    (at / "odd.npy").write_bytes(array.replace(b"(1, 1, 8, 8), }", b"(1, 10**9, 8,8)"))
    (at / "huge.npy").write_bytes(array.replace(b"(1, 1, 8, 8), }   ", b"(1,9999999999,8), }"))
    np.save(at / "object.npy", np.array([{}], dtype=object))
    np.savez(at / "other.npz", a=np.zeros(3), b=np.zeros(3))
    (at / "cut.npz").write_bytes((at / "other.npz").read_bytes()[:-30])
    (at / "cut.png").write_bytes(Path(SEVEN).read_bytes()[:60])
    return at


def fails(*arguments: str) -> str:
    """The message of a command that fails."""
    got = CliRunner().invoke(main, list(arguments))
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    assert got.exit_code in (1, 2), got.output
    lines = got.stderr.strip().splitlines()
    assert got.stdout == "" and lines[-1].lower().startswith("error: ")
    assert len(lines) == 1 or got.exit_code == 2, got.stderr
    return lines[-1]


@pytest.mark.parametrize("command", COMPILING)
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_model_is_said_to_be_none(bad: Path, command: str, name: str) -> None:
    fails(command, str(bad / name) if name else "")


@pytest.mark.parametrize(
    "name",
    ["empty", "folder", "cut.npy", "odd.npy", "huge.npy", "object.npy", "cut.npz", "other.npz",
     "cut.png", "nowhere.npy", "x" * 300],
)  # fmt: skip
def test_what_is_no_input_is_said_to_be_none(bad: Path, name: str) -> None:
    fails("run", MODEL, str(bad / name))
    fails("verify", MODEL, str(bad / name))
    fails("verify", MODEL, "--against", str(bad / name))


@pytest.mark.parametrize(
    "arguments",
    [
        "run --dim N=99999999999999999999", "run --dim N=2147483647", "run --dim N=²",
        "run --dim N=-1", "run --dim M=1", "run --dim =1", "run --seed -1", "run --top 0",
        "run --threads 99999999999999999999", "run --labels LATIN", "run --labels EMPTY",
        "run --save FOLDER", "run --save EMPTY/x.npz", "run image=", "run image=zeros zeros",
        "run --kernels =", "run --passes -", "run --passes fold-constants{",
        "bench --dim N=2147483647", "bench --seconds nan", "bench --seconds -1",
        "bench --warm-up -1", "bench --repeat 0", "bench --dim M=1",
        "explain --dim N=2147483647", "explain --dim M=1", "explain nowhere",
        "inspect --dim N=2147483647", "inspect --at plan --dim N=2147483647",
        "inspect --at canonical --dim M=1", "inspect --at plan --backend numpy",
        "inspect --backend abacus", "inspect --no-memory --target pdp11",
        "verify --dim N=2147483647", "verify --dim M=1", "verify --tolerance nan",
        "verify --against nothing", "verify --save EMPTY",
    ],
)  # fmt: skip
def test_what_no_option_takes_is_refused(bad: Path, arguments: str) -> None:
    command, *rest = arguments.split()
    for name in ("latin", "empty", "folder"):
        rest = [part.replace(name.upper(), str(bad / name)) for part in rest]
    fails(command, MODEL, *rest)


def test_a_folder_that_cannot_be_made_does_not_hide_what_was_found(bad: Path) -> None:
    """The greatest error of a right kernel is no zero."""
    got = tinsmith(
        "verify", MODEL, "--save", bad / "x.npy" / "in", "--tolerance", 0, "--passes",
        "-fold-into-conv", code=3,
    )  # fmt: skip
    assert "DIFFERS" in got.stdout
    assert "kernel" not in got.stdout or "cannot be made" in got.stdout


# ---- programs in the store


@pytest.mark.parametrize(
    "arguments", ["run", "bench --repeat 1", "explain", "inspect", "inspect --at plan", "verify"]
)
def test_every_command_finds_what_an_earlier_one_compiled(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinsmith.backends import cpu

    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    command, *rest = arguments.split()
    tinsmith(command, MODEL, *rest)
    monkeypatch.setattr(cpu.Cpu, "compile", None)  # what compiles fails from here on
    tinsmith(command, MODEL, *rest)


def test_run_says_that_the_program_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINSMITH_CACHE", str(tmp_path / "cache"))
    assert "10 nodes became" in tinsmith("run", MODEL).stdout
    assert "compiled by an earlier run" in tinsmith("run", MODEL).stdout
    got = parsed("run", MODEL)
    assert got["stored"] and got["changes"] is None


# ---- the outside world


def start(*arguments: str, **streams: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tinsmith", *arguments],
        stderr=subprocess.PIPE,
        preexec_fn=_listen,
        **streams,  # type: ignore[call-overload]
    )


def _listen() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would what that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("arguments", [["--help"], ["ops"], ["run", MODEL, "--json"]])
def test_a_full_disk_is_said(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = start(*arguments, stdout=full)
        said = done.communicate(timeout=120)[1].decode()
    assert done.returncode == 1
    assert said == "error: No space left on device\n"


@pytest.mark.parametrize("arguments", [["ops"], ["inspect", MODEL, "--at", "plan", "--dim", "N=1"]])
def test_a_closed_pipe_ends_quietly(arguments: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = start(*arguments, stdout=writes)
    os.close(writes)
    assert done.communicate(timeout=120)[1] == b""
    assert done.returncode == 1


def test_no_standard_output_at_all() -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", code, "-m", "tinsmith", "run", MODEL],
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def interrupt(process: subprocess.Popen[bytes]) -> str:
    """What a command says that is interrupted: by a second Ctrl-C where the first one takes no
    effect, as it may where Python drops it."""
    for wait in (20, 20):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=wait)[1].decode()
    process.kill()
    raise AssertionError(f"still running after two interrupts: {process.communicate()[1]!r}")


@pytest.mark.parametrize("after", [0.15, 0.4, 0.8, 1.5])
def test_ctrl_c_is_one_line(after: float, tmp_path: Path) -> None:
    environment = {**os.environ, "TINSMITH_CACHE": str(tmp_path / "cache")}
    done = start(
        "bench", MODEL, "--seconds", "60", "--threads", "2", stdout=subprocess.PIPE, env=environment
    )
    time.sleep(after)
    said = interrupt(done)
    # Before our module runs, it is the interpreter that ends, in its own words.
    if "Traceback" not in said or "_run_code" in said:
        assert done.returncode in (130, -signal.SIGINT), said
        assert said in ("", "interrupted\n")


@pytest.mark.parametrize("where", ["parse_args", "_main_shell_completion"])
def test_ctrl_c_while_options_are_read_is_one_line(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(main), where, strike)
    got = CliRunner().invoke(main, ["ops"])
    assert (got.exit_code, got.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("where", ["parse_args", "resolve_command"])
def test_ctrl_c_that_other_code_makes_an_error_of(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(*_: object, **__: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("in place of it")

    monkeypatch.setattr(_interrupts, "_came", threading.Event())
    monkeypatch.setattr(type(main), where, strike)
    before = signal.signal(signal.SIGINT, _interrupts._note)
    try:
        got = CliRunner().invoke(main, ["ops"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert (got.exit_code, got.stderr) == (130, "interrupted\n")


def test_ctrl_c_in_a_callback_is_not_lost() -> None:
    code = """
import sys, time, tinsmith.cli
class Dropped:
    def __del__(self):
        raise KeyboardInterrupt
Dropped()
try:
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, preexec_fn=_listen
    )
    assert (done.returncode, done.stderr) == (7, b"")


# ---- warnings


def test_a_warning_is_one_line_without_a_place(tmp_path: Path) -> None:
    environment = {**os.environ, "TINSMITH_CACHE": str(tmp_path), "TINSMITH_CACHE_SIZE": "lots"}
    done = start("run", MODEL, stdout=subprocess.PIPE, env=environment)
    said = done.communicate(timeout=120)[1].decode()
    assert said.startswith("warning: TINSMITH_CACHE_SIZE is 'lots'; give") and said.count("\n") == 1


def test_what_pillow_warns_of_names_the_picture(tmp_path: Path) -> None:
    from PIL import Image

    plain = tmp_path / "plain.jpg"
    Image.new("RGB", (8, 8)).save(plain)
    cut = b"\xff\xe1\x00\x14Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01"
    odd = tmp_path / "odd.jpg"
    odd.write_bytes(plain.read_bytes()[:2] + cut + plain.read_bytes()[2:])
    assert tinsmith("run", MODEL, plain).stderr == ""
    said = tinsmith("run", MODEL, odd).stderr
    assert said.startswith(f"warning: {odd}: Corrupt EXIF") and said.count("\n") == 1


def test_a_palette_with_transparency_is_a_picture_like_others(tmp_path: Path) -> None:
    from PIL import Image

    picture = Image.new("P", (8, 8), 3)
    picture.putpalette(bytes(range(256)) * 3)
    picture.save(tmp_path / "p.png", transparency=bytes(range(200)))
    picture.convert("RGB").save(tmp_path / "rgb.png")
    rows = []
    for name in ("p", "rgb"):
        got = tinsmith("run", MODEL, tmp_path / f"{name}.png")
        assert got.stderr == ""
        rows.append(got.stdout.splitlines()[1:6])
    assert rows[0] == rows[1]
