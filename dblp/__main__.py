"""`python -m dblp` is the same as `dblp`."""

from .cli import main

if __name__ == "__main__":
    main()
