"""``fl-lightning`` and ``python -m fl_lightning``. The commands of a site and of a server start without torch."""

import os
import sys

from fl_lightning.flower.commands import COMMANDS
from fl_lightning.flower.commands import main as site_or_server


def main() -> None:
    """Console script."""
    _find_own_classes()
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        try:
            code = site_or_server(sys.argv[1:])
        except (ValueError, OSError) as error:
            sys.stderr.write(f"fl-lightning: error: {error}\n")
            code = 1
        raise SystemExit(code)
    from fl_lightning.cli import main as cli

    cli()


def _find_own_classes() -> None:
    """A class of the current folder (``class_path: my_pkg.MyModel``) is found, as ``python -m`` finds it. Processes that are
    started from this one inherit the path, or are started in the same folder with ``-m``."""
    folder = os.getcwd()
    if folder not in sys.path and not getattr(sys.flags, "safe_path", False):  # `python -P` wants no such thing (from 3.11)
        sys.path.insert(0, folder)


if __name__ == "__main__":
    main()
