"""Clients that fail: told when each fails first, and in one line each where a fit ends. All are in results.json."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fl_lightning.reporting.clients import name_client

SHOWN = 5
IN_ROUNDS = ("fit", "evaluate")
"""Steps that belong to rounds; other steps are of phases before them, or after them all."""

Failure = Mapping[str, Any]
"""``{"round", "client", "kind", "reason"}``; ``client`` is ``None`` for the server with its data, rounds count from 0."""


class ClientFailed(UserWarning):
    """A client has failed for the first time, and was left out of a step."""


class ClientsFailed(ClientFailed):
    """A fit has ended in which clients failed."""


class Failures:
    """Says of each client its first failure, as a warning.

    Args:
        names: What the clients are called; may be empty.
        known: Failures from before, which have been told.
    """

    def __init__(self, names: Sequence[str], known: Sequence[Failure] = ()) -> None:
        self._clients, self._number = {"client_names": names}, len(known)
        self._told: set[int | None] = set()

    def tell(self, failures: Sequence[Failure]) -> None:
        """Warn of what is new in a list that has grown."""
        for failure in failures[self._number :]:
            if failure["client"] not in self._told:
                self._told.add(failure["client"])
                warnings.warn(
                    f"{_who(self._clients, failure['client'])} failed in round {failure['round'] + 1}, step "
                    f"`{failure['kind']}`, and is left out of it: {_reason(failure)}. Further failures of it are in `failures` "
                    "in results.json.",
                    ClientFailed,
                    stacklevel=3,
                )
        self._number = len(failures)


def failure_lines(results: Mapping[str, Any]) -> list[str]:
    """One line for each that failed, those that failed most first: ``client 1 (north) failed in 3 of 3 rounds (...)``."""
    by_client: dict[int | None, list[Failure]] = {}
    for failure in results["failures"]:
        by_client.setdefault(failure["client"], []).append(failure)
    often = sorted(by_client.items(), key=lambda item: -len(item[1]))
    lines = [f"{_who(results, client)} {_how_often(own, results)}" for client, own in often[:SHOWN]]
    if len(often) > SHOWN:
        lines.append(f"and {len(often) - SHOWN} more failed: see `failures` in results.json")
    return lines


def warn_of_all(results: Mapping[str, Any]) -> None:
    """Say :func:`failure_lines` as a warning, for who sees no terminal output of ``fit``."""
    if results["failures"]:
        warnings.warn(f"{'; '.join(failure_lines(results))}.", ClientsFailed, stacklevel=3)


def _how_often(own: Sequence[Failure], results: Mapping[str, Any]) -> str:
    rounds = {failure["round"] for failure in own if failure["kind"] in IN_ROUNDS}
    unit = "epochs" if results["strategy"] == "Central" else "rounds"
    often = f"{len(rounds)} of {results['rounds_run']} {unit}" if rounds else f"{len(own)} step{'s' if len(own) > 1 else ''}"
    return f"failed in {often} (the last, `{own[-1]['kind']}`: {_reason(own[-1])})"


def _who(clients: Mapping[str, Any], client: int | None) -> str:
    return "the server" if client is None else name_client(clients, client)


def _reason(failure: Failure) -> str:
    """The first line of it, without the stop at its end."""
    return (str(failure["reason"]).strip().splitlines() or [""])[0].rstrip(".")
