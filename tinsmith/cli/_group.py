"""The group of commands: found by their files, imported when they are used.

Exit codes: 0 done; 1 a TinsmithError, a file that cannot be read or written, or too little memory
(one line on standard error); 2 wrong usage (an argument that is not understood, or an unknown
name); 130 interrupted. A command whose reader goes away, as in `| head -1`, ends quietly with 1.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import sys
import warnings
from typing import Any, NoReturn

import click

from tinsmith.cli._interrupts import kept
from tinsmith.errors import (
    FileNameError,
    InputNameError,
    KernelChoiceError,
    OptionError,
    PassChoiceError,
    TinsmithError,
    UnknownName,
    suggest,
    told,
)

INTERRUPTED = 130
INSTEAD = {
    "profile": " `tinsmith bench` measures every layer.",
    "tune": " --tune of `run`, `bench` and all others that compile times the kernels.",
    "compile": " `tinsmith run` compiles, and keeps what it compiled for all that follow.",
    "pnnx": " `tinsmith convert net.onnx net.pnnx.param` writes PNNX, and `... net.param` ncnn; "
    "all commands read what pnnx writes. TorchScript is for pnnx itself.",
    "ncnn2table": " `tinsmith quantize net.param net.table --data FOLDER` writes such a table.",
    "ncnn2int8": " `tinsmith quantize net.param int8.param --data FOLDER`, or --table net.table.",
    "ncnn2mem": " `tinsmith run` and all others read .param and .bin as they are.",
    "ncnnmerge": " Several models stay several files: each is compiled by itself.",
    **dict.fromkeys(("benchncnn", "TNNTest", "benchmark.out"), " `tinsmith bench` measures."),
    **dict.fromkeys(
        ("onnx2ncnn", "caffe2ncnn", "mxnet2ncnn", "darknet2ncnn", "convert_tool", "MNNConvert"),
        " `tinsmith convert IN OUT` writes the format that OUT's ending says.",
    ),
    **dict.fromkeys(("quantized.out", "quantization_cmd"), " `tinsmith quantize` does."),
    "model_check": " `tinsmith verify` compares, and finds the first node that differs.",
}
"""Hints for users who type these commands, which Tinsmith lacks; most are tools of other
engines."""
USAGE = (
    FileNameError, InputNameError, KernelChoiceError, OptionError, PassChoiceError, UnknownName,
)  # fmt: skip
"""Errors that only a wrong command line causes: exit code 2."""


class Failed(click.ClickException):
    """Ends a command with the message of an error and its notes on standard error; exit code 1."""

    def show(self, file: Any = None) -> None:
        label = click.style("error:", fg="red", bold=True)
        click.echo(f"{label} {self.message}", err=True, file=file)


class Misused(Failed):
    """As `Failed`, for an error of wrong usage; exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """The group: its commands are `command` of each module here whose name does not start with
    `_`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        import tinsmith.cli as package

        names = [m.name for m in pkgutil.iter_modules(package.__path__)]
        return sorted(n.replace("_", "-") for n in names if not n.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return importlib.import_module(f"tinsmith.cli.{cmd_name.replace('-', '_')}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args and not args[0].startswith("-"):
                hint = INSTEAD.get(args[0]) or suggest(args[0], self.list_commands(ctx))
                raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx) from error
            raise

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:  # click would end with 1, as for an error
            with kept():
                return super().make_context(*args, **extra)
        except KeyboardInterrupt:
            interrupted()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with kept():
                return super().invoke(ctx)
        except USAGE as error:
            raise Misused(told(error)) from error
        except TinsmithError as error:
            raise Failed(told(error)) from error
        except MemoryError as error:
            raise Failed(f"there is not enough memory: {error}") from error
        except KeyboardInterrupt:
            interrupted()

    def main(self, *args: Any, **extra: Any) -> Any:
        for stream in ("stdout", "stderr"):
            if getattr(sys, stream) is None:  # closed by whoever started this process
                setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
        try:
            try:
                with warnings.catch_warnings():
                    warnings.showwarning = show_warning
                    return super().main(*args, **extra)
            finally:
                sys.stdout.flush()
        except OSError as error:
            drop_output()
            if error.errno != errno.EPIPE:
                where = f"{error.filename}: " if error.filename else ""
                Failed(f"{where}{error.strerror or error}").show()
            sys.exit(1)
        except KeyboardInterrupt:
            interrupted()


def interrupted() -> NoReturn:
    """End the process as after Ctrl-C: exit code 130."""
    click.echo("interrupted", err=True)
    sys.exit(INTERRUPTED)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on standard error, in one line and without its place in the code."""
    label = click.style("warning:", fg="yellow", bold=True)
    click.echo(f"{label} {' '.join(str(message).split())}", err=True)


def drop_output() -> None:
    """Flush standard output. If that fails, drop what is buffered, so that the interpreter does not
    fail again when it ends."""
    if sys.stdout is sys.__stdout__:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command takes --json where a machine reads the answer.",
)
@click.version_option(None, "--version", package_name="tinsmith")
def main() -> None:
    """Run neural networks with machine code that is generated for exactly your model.

    \b
    Start here:
      tinsmith run model.onnx                 run it once, on random inputs
      tinsmith run model.onnx cat.jpg         run it on a picture
      tinsmith bench model.onnx               how fast it is, layer by layer
      tinsmith inspect model.onnx             what is in it
      tinsmith explain model.onnx conv1       why that layer is computed as it is
    """
