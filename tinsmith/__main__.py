"""`python -m tinsmith`, where the `tinsmith` script is not on the path."""

from tinsmith.cli import main

if __name__ == "__main__":
    main()
