"""The table of passes, and the choice of those that run.

The text that chooses passes is a list separated by commas: `-name` leaves one out, `+name` adds
one that is off by default, `name{option=value,...}` sets options, `name@15` moves one to another
priority (both also add it), `stop-after=name` ends the stage there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from tinsmith.errors import OptionError, PassChoiceError, UnknownName
from tinsmith.records import dataclass
from tinsmith.registry import Registry

if TYPE_CHECKING:
    from tinsmith.passes.manager import Pass

STAGES = ("portable", "precision", "machine", "files")
COURSE = ("portable", "precision", "portable", "machine")
"""The stages of a graph that is compiled, in order: after a change of element types the portable
passes run again."""
FILED = ("portable", "files", "portable")
"""The stages of a graph that is written as a smaller file, in order."""


@dataclass(frozen=True)
class Entry:
    """One registered pass. A stage runs its passes by `priority`, the least first.

    devices  that it supports; None: all
    default  whether it runs unless `-name` leaves it out; if not, only with `+name`
    make     makes the pass from its options
    options  name of an option -> its default
    summary  what it does, in one line
    """

    name: str
    stage: str
    priority: float
    devices: frozenset[str] | None
    default: bool
    make: Callable[..., Pass]
    options: dict[str, Any]
    summary: str


PASSES: Registry[Entry] = Registry("pass", "tinsmith.passes", "tinsmith passes")


@dataclass
class _Choice:
    """What a `passes=` text says: the passes to skip and to add, options and priorities by pass,
    and the pass after which its stage stops ("": none)."""

    skip: set[str] = field(default_factory=set)
    add: set[str] = field(default_factory=set)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    at: dict[str, float] = field(default_factory=dict)
    stop_after: str = ""


_ITEM = re.compile(
    r"\s*(?P<sign>[-+]?)(?P<name>[A-Za-z][\w-]*)(?:\{(?P<options>[^{}]*)\})?"
    r"(?:@(?P<at>-?\d+(?:\.\d*)?))?\s*"
)

FORMS = "the forms are -name, +name, name{option=value}, name@priority and stop-after=name"


def parse_spec(text: str | None) -> _Choice:
    """The choice that a `passes=` text makes, in the forms at the top of this file; None and "" ask
    for nothing. Raises OptionError if it is no text; PassChoiceError for an item of another form
    (such as a name alone) or a value that an option cannot have; UnknownName for a pass or option.
    """
    choice = _Choice()
    if text is not None and not isinstance(text, str):
        raise OptionError(f"passes must be text such as '-merge-common', not {text!r}")
    for item in re.split(r",(?![^{]*\})", text or ""):
        if not item.strip():
            continue
        if item.strip().startswith("stop-after="):
            choice.stop_after = item.strip().removeprefix("stop-after=")
            PASSES[choice.stop_after]
            continue
        match = _ITEM.fullmatch(item)
        if match is None:
            raise PassChoiceError(f"{item.strip()!r} is not understood in passes={text!r}; {FORMS}")
        entry = PASSES[match["name"]]
        if not (match["sign"] or match["options"] or match["at"]):
            raise PassChoiceError(
                f"{item.strip()!r} in passes={text!r} changes nothing: write -{entry.name} to "
                f"leave it out or +{entry.name} to add it where it is off; {FORMS}"
            )
        if match["sign"] == "-":
            choice.skip.add(entry.name)
        else:
            choice.add.add(entry.name)
        if match["options"]:
            choice.options[entry.name] = _options(entry, match["options"])
        if match["at"]:
            choice.at[entry.name] = float(match["at"])
    return choice


def _options(entry: Entry, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = (s.strip() for s in part.partition("="))
        key = key.replace("-", "_")
        if key not in entry.options:
            raise UnknownName(f"option of the pass {entry.name!r}", key, entry.options)
        found[key] = _convert(entry, key, value)
    return found


def _convert(entry: Entry, key: str, value: str) -> Any:
    default = entry.options[key]
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                value.lower()
            ]
        if isinstance(default, tuple):
            return tuple(v for v in value.split("|") if v)
        return type(default)(value)
    except (KeyError, ValueError) as error:
        raise PassChoiceError(
            f"the option {key} of the pass {entry.name!r} cannot be {value!r}; "
            f"its default is {default!r}"
        ) from error


def list_passes(
    stage: str | None = None, device: str | None = None, spec: str | None = None
) -> list[Entry]:
    """The registered passes in the order in which they run, of one stage and for one device (None:
    of all). `spec` is a `passes=` text, which leaves out, adds and moves passes, and drops those of
    a stage after `stop-after`. If `spec` is None (not ""), passes that are off by default are
    listed too. Raises what `parse_spec` raises."""
    choice = parse_spec(spec)
    rows = [
        replace(e, priority=choice.at[e.name]) if e.name in choice.at else e for e in PASSES.rows()
    ]
    chosen = [
        e
        for e in rows
        if (stage is None or e.stage == stage)
        and (device is None or e.devices is None or device in e.devices)
        and e.name not in choice.skip
        and (spec is None or e.default or e.name in choice.add)
    ]
    chosen.sort(key=_order)
    last = next((e for e in chosen if e.name == choice.stop_after), None)
    if last is None:
        return chosen
    return [e for e in chosen if e.stage != last.stage or _order(e) <= _order(last)]


def _order(entry: Entry) -> tuple[int, float, str]:
    return STAGES.index(entry.stage), entry.priority, entry.name
