"""The command line: `tinsmith COMMAND --help` teaches. One file a command."""

try:
    import tinsmith.cli._interrupts  # noqa: F401 - before anything that takes long
    from tinsmith.cli._group import main
except KeyboardInterrupt:  # during these imports
    raise SystemExit(130) from None

__all__ = ["main"]
