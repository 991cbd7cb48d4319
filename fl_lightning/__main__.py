"""``fl-lightning`` and ``python -m fl_lightning``: the one place that reads the process's arguments."""

import os
import sys

from fl_lightning.commands import main as run


def main() -> None:
    """Console script."""
    _find_own_classes()
    raise SystemExit(run(sys.argv[1:]))


def _find_own_classes() -> None:
    """A class of the current folder (``class_path: my_pkg.MyModel``) is found, as ``python -m`` finds it. Processes that are
    started from this one inherit the path, or are started in the same folder with ``-m``."""
    folder = os.getcwd()
    if folder not in sys.path and not getattr(sys.flags, "safe_path", False):  # `python -P` wants no such thing (from 3.11)
        sys.path.insert(0, folder)


if __name__ == "__main__":
    main()
