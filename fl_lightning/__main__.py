"""``fl-lightning`` and ``python -m fl_lightning``. The commands of a site and of a server start without torch."""

import sys

from fl_lightning.flower.commands import COMMANDS
from fl_lightning.flower.commands import main as site_or_server


def main() -> None:
    """Console script."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        try:
            code = site_or_server(sys.argv[1:])
        except (ValueError, OSError) as error:
            sys.stderr.write(f"fl-lightning: error: {error}\n")
            code = 1
        raise SystemExit(code)
    from fl_lightning.cli import main as cli

    cli()


if __name__ == "__main__":
    main()
