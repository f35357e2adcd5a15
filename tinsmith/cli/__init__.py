"""The command line: `tinsmith COMMAND --help` teaches. One file a command."""

try:
    import tinsmith.cli._interrupts  # noqa: F401 - before anything that takes its time
    from tinsmith.cli._group import main
except KeyboardInterrupt:  # while its packages are read
    raise SystemExit(130) from None

__all__ = ["main"]
