"""``fl-lightning COMMAND ...``: who does it. Only what the command needs is imported: help of a site, `report` and mistakes
wait for no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from fl_lightning.command_names import AT_SITES, COMPARING
from fl_lightning.config_errors import describe_mistake
from fl_lightning.errors import MISTAKES
from fl_lightning.packaged_configs import find_config


def main(args: Sequence[str]) -> int:
    """Run a command; mistakes of the configuration or the data end with a message.

    Args:
        args: The command and its options, never those of the process.

    Returns:
        The exit code.
    """
    given = with_packaged_configs(args)
    command = given[0] if given else ""
    try:
        return _runner(command)(given)
    except MISTAKES as error:
        if os.environ.get("FL_LIGHTNING_TRACEBACK"):
            raise
        hint = "" if command in AT_SITES else "(FL_LIGHTNING_TRACEBACK=1 shows where.)\n"
        sys.stderr.write(f"fl-lightning: error: {describe_mistake(error)}\n{hint}")
        return 1


def _runner(command: str) -> Callable[[list[str]], int]:
    if command in AT_SITES:
        from fl_lightning.flower.commands import main as at_sites

        return at_sites
    if command in COMPARING:
        from fl_lightning.comparison.commands import main as comparing

        return comparing
    from fl_lightning.cli import main as training

    return training


def with_packaged_configs(args: Sequence[str]) -> list[str]:
    """Names of configs that are no files here become those of the package, if there are such."""
    found = list(args)
    for place, argument in enumerate(found):
        name, equals, value = argument.partition("=")
        if name in ("--config", "-c"):
            if equals:
                found[place] = f"{name}={find_config(value)}"
            elif place + 1 < len(found):
                found[place + 1] = find_config(found[place + 1])
    return found
