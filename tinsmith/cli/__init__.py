"""The command line: `tinsmith COMMAND --help` teaches. One file a command."""

from tinsmith.cli._group import main

__all__ = ["main"]
