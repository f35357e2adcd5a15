"""The command line: `tinsmith COMMAND --help` teaches. One file a command."""

try:
    from tinsmith.cli._interrupts import kept  # before anything that takes long

    with kept():
        from tinsmith.cli._group import main
except KeyboardInterrupt:  # during these imports
    raise SystemExit(130) from None

__all__ = ["main"]
