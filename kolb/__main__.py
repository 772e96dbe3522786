"""``python -m kolb`` is the ``kolb`` command."""

from kolb.cli import main

if __name__ == "__main__":
    main()
