"""Every error a user can meet, one class each.

A message says what went wrong, where (model, node, file), why, and what to try. Classes are grouped
by the room that raises them.
"""

from __future__ import annotations

from collections.abc import Iterable


class TinsmithError(Exception):
    """Base of every error that Tinsmith raises on purpose."""


FEW = 5  # names that are all told beside the nearest


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with up to 5 known names that begin with `name`, else up to 3
    that are spelled alike; "" if there are none."""
    import difflib

    names = sorted({str(k) for k in known})
    close = [n for n in names if name and n.startswith(str(name))][:5]
    close = close or difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def size_text(nbytes: float) -> str:
    """Return a number of bytes as text: '1.5 GiB', or in MiB if it is less than 0.1 GiB."""
    small = nbytes < 2**30 / 10
    return f"{nbytes / 2**20:.1f} MiB" if small else f"{nbytes / 2**30:.1f} GiB"


def counted(number: int, noun: str) -> str:
    """'1 step', '2 steps'."""
    return f"{number} {noun}" + "s" * (number != 1)


def told(error: Exception) -> str:
    """Return the message of an error, followed by its notes (`add_note`)."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that names the line of the caller's code, outside this package."""
    import sys
    import warnings

    level = 2
    while sys._getframe(level - 1).f_globals.get("__name__", "").startswith("tinsmith."):
        level += 1
    warnings.warn(message, category, stacklevel=level)


class UnknownName(TinsmithError, KeyError):
    """A look-up by a name that a table does not hold. `command`: the command line, if there is one,
    that prints the table; `first`: known names that are told before the others."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], command: str = "",
        first: Iterable[str] = (),
    ) -> None:  # fmt: skip
        known = list(dict.fromkeys([*first, *sorted(set(known))]))
        more = f" and {len(known) - 12} more" if len(known) > 12 else ""
        hint = suggest(name, known)
        if known and (not hint or len(known) <= FEW):
            hint += f" Known: {', '.join(known[:12])}{more}."
            hint += f" `{command}` lists them." if more and command else ""
        hint = hint or " There are none."
        super().__init__(f"there is no {kind} named {name!r}.{hint}")

    def __str__(self) -> str:
        return str(self.args[0])


class OptionError(TinsmithError, TypeError, ValueError):
    """An argument of a public function, or a setting in the environment, is of the wrong kind, or
    out of range."""


class BudgetExceeded(TinsmithError):
    """A model asks for more than is allowed; says how much, of what, and how to allow more."""


class ExtensionError(TinsmithError):
    """An installed package that extends Tinsmith cannot be used."""


class DuplicateName(TinsmithError):
    """Two rows of one table claim the same name."""


class MissingPackage(TinsmithError):
    """An optional package is needed for what was asked; names it and how to install it."""


# ---- graph


class GraphError(TinsmithError):
    """A graph is not well formed (a cycle, a dangling value, a name used twice), or an edit makes
    it so."""


class TypeRuleError(TinsmithError):
    """The inputs or attributes of a node do not fit its operator."""


class GraphSyntaxError(TinsmithError):
    """The text form of a graph cannot be parsed."""


# ---- files and frontends


class ModelFileError(TinsmithError):
    """A model file is missing, unreadable, damaged, changed, of no known format, or not
    writable."""


class MissingFile(ModelFileError, FileNotFoundError):
    """A file to read, as of a model or of data, does not exist."""


class ModelKindError(ModelFileError, TypeError):
    """The object given as a model is of a kind from which no model is read, such as a list."""


class FileNameError(ModelFileError):
    """The name of a file to write says no format, one that cannot hold what is written, or is that
    of a file that the model is read from."""


class ImportFailed(TinsmithError):
    """A model was read, but holds what the importer does not understand; lists all of it."""


class ExternalDataError(ModelFileError):
    """External weights are missing, outside the model's folder, or of the wrong size."""


class NotWritable(TinsmithError):
    """A graph holds what a file format cannot say; lists all of it. Nothing was written."""


class ModelWarning(UserWarning):
    """A model was imported, but something in it is inconsistent, such as a declared type that is
    not the inferred one."""


# ---- rewriting and passes


class PassError(TinsmithError):
    """A pass failed; names the pass and the node."""


class PassChoiceError(PassError, ValueError):
    """A choice of passes (`passes=`) is not understood."""


class RewriteLimit(PassError):
    """Rewrite rules kept changing each other's results without an end."""


# ---- kernels, planning, code generation


class NoKernel(TinsmithError):
    """A kernel that is asked for by name does not take a node."""


class KernelChoiceError(NoKernel):
    """A kernel that is asked for by name computes other operators."""


class CodegenError(TinsmithError):
    """Generated code is ill-typed, or cannot be compiled, linked or loaded."""


class TargetError(TinsmithError):
    """A machine or instruction set is unknown or cannot be used here, or threads cannot be had."""


class NoBackend(TinsmithError):
    """There is a node that none of the backends that were asked for computes."""


class BackendFailed(TinsmithError):
    """A backend failed on its part of a graph, or gave results of other types than planned."""


class EngineFailed(TinsmithError):
    """Another engine, whose results `verify` was asked to compare with, does not open or run the
    model."""


class Cancelled(TinsmithError):
    """Work on another thread was dropped or stopped, as when the process ends or forks."""


class NestedCompilation(TinsmithError):
    """A compilation was to begin during another on the same thread, or while a module that it needs
    is imported there, as in a signal handler."""


class PlanError(TinsmithError):
    """A graph cannot be planned: its sizes contradict each other, or need more memory than there
    is."""


class OutOfMemory(PlanError, MemoryError):
    """The system does not give the memory that a model needs."""


class CacheError(TinsmithError):
    """The code cache cannot be used: foreign owner, wrong permissions, a malformed size limit."""


class UntrustedCode(TinsmithError):
    """A file carries machine code of another release or machine, which `trust=True` does not
    run."""


# ---- quantising


class CalibrationError(TinsmithError, ValueError):
    """Calibration data that are missing, do not fit the model, are constant, or hold NaN or
    infinity."""


class QuantizeError(TinsmithError, ValueError):
    """A quantisation that is not possible, as with bit widths without a kernel, or scales that are
    zero, negative or not finite."""


class ScaleError(ImportFailed, QuantizeError):
    """Constant scales in a model file are infinite or NaN, all zero, or, where they divide, zero or
    negative; lists all of them."""


# ---- running


class InputError(TinsmithError):
    """An input that does not fit the model; says what was expected."""


class InputNameError(InputError, TypeError):
    """An input is missing, unknown, or given twice."""


class InputTypeError(InputError, TypeError):
    """An input is not an array, or its dtype is not the model's."""


class InputShapeError(InputError, ValueError):
    """An input's rank or shape is not the model's."""


class OutsideHint(InputShapeError):
    """A size of an input is outside the range that the model was compiled for."""


class OutputError(TinsmithError, ValueError):
    """The outputs that a caller asks for are not a list of known names, or an array given for a
    result does not fit it."""


class StateError(TinsmithError, ValueError):
    """States that a session cannot keep: the output and the input do not fit each other, an array
    does not fit the state, or an earlier run has not ended well."""


class ForkError(TinsmithError):
    """A forked child process cannot compile: another thread of its parent compiled at the fork."""


class DataError(TinsmithError):
    """The values of an input do not fit the model: an index is out of range, a declared size is not
    so."""


class ReferenceFailed(TinsmithError):
    """The numpy reference of a node failed, in a run or before; names the node and its inputs."""
