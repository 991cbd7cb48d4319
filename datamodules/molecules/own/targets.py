"""Which columns of people's own molecules are learnt where nobody has said it: those of numbers, but no counters and no ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from datamodules.findings import Finding, finding
from datamodules.tables.guessing import counter_or_id, date_or_batch, number_owners, reason_at_each
from datamodules.tables.names import fold

NO_COUNT = (5.0, 3.0, 9.0)  # whole numbers of which only a name can say that they are ids


@dataclass(frozen=True)
class GuessedTasks:
    """Columns taken for labels, and why others were not.

    Attributes:
        tasks: Those that are learnt, in the order of their first appearance.
        left_out: Counters and ids, with the reason.
        doubtful: Tasks that count, but are learnt since there is no other column of numbers; with the reason.
    """

    tasks: list[str]
    left_out: dict[str, str]
    doubtful: dict[str, str]

    def describe_left_out(self) -> str:
        """What was left out, to be put behind a list of columns; ``""`` if nothing."""
        return f"; not {_describe(self.left_out)}" if self.left_out else ""

    def findings(self) -> list[Finding]:
        """What was guessed and may be wrong."""
        name = "Name the labels in `data.init_args.targets`"
        found = []
        if self.left_out:
            found.append(
                finding(
                    "targets_left_out",
                    None,
                    len(self.left_out),
                    f"These columns of numbers are not learnt: {_describe(self.left_out)}.",
                    f"{name}; ids may be named in `data.init_args.id_column`.",
                )
            )
        if self.doubtful:
            found.append(
                finding(
                    "targets_doubtful",
                    None,
                    len(self.doubtful),
                    f"Is there a label at all? What is learnt: {_describe(self.doubtful)}.",
                    f"{name}.",
                )
            )
        return found


def guess_tasks(
    found: Mapping[str, Mapping[str, np.ndarray]], owners: Mapping[str, Sequence[str]] | None = None
) -> GuessedTasks:
    """What is learnt of the columns of numbers in each file.

    A column is a counter or an id (``counter_or_id``) if it is one over all rows, in each file or at each client. One that only
    counts, by its numbers and not by its name, is learnt all the same if nothing else is left; dates and batches never are.

    Args:
        found: By file (a client, as a rule), by name of a column, its numbers, ``nan`` where there is none.
        owners: By file, the client of each row, where a column says so.

    Raises:
        ValueError: As :func:`agreed_tasks`.
    """
    left_out, dated = {}, set()
    for name in dict.fromkeys(name for columns in found.values() for name in columns):
        parts = [columns[name] for columns in found.values() if name in columns]
        clients = [client for file, texts in (owners or {}).items() if name in found[file] for client in texts]
        numbers = None if owners is None else number_owners(clients)
        date = date_or_batch(name, np.concatenate(parts))
        reason = date or counter_or_id(name, np.concatenate(parts), numbers) or reason_at_each(name, parts)
        dated |= {name} if date else set()
        if reason:
            left_out[name] = reason
    doubtful = {}
    if all(name in left_out for columns in found.values() for name in columns):
        doubtful = {
            name: reason for name, reason in left_out.items() if counter_or_id(name, NO_COUNT) is None and name not in dated
        }
        left_out = {name: reason for name, reason in left_out.items() if name not in doubtful}
    tasks = agreed_tasks({client: [name for name in columns if name not in left_out] for client, columns in found.items()})
    return GuessedTasks(tasks, left_out, doubtful)


def _describe(columns: Mapping[str, str], most: int = 8) -> str:
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(f"`{name}` ({reason})" for name, reason in list(columns.items())[:most]) + more


def agreed_tasks(found: Mapping[str, Sequence[str]]) -> list[str]:
    """All tasks of all clients, in the order of their first appearance; a task that a client lacks is masked there.

    Args:
        found: Tasks of each client, by the client's name.

    Raises:
        ValueError: Two clients write the same task in two ways (``logS`` and ``log_s``).
    """
    tasks: dict[str, str] = {}
    for client, names in found.items():
        for name in names:
            known = tasks.setdefault(fold(name), name)
            if known != name:
                raise ValueError(
                    f"client {client!r} calls a task {name!r}, which others call {known!r}: rename the column "
                    "in one of the files, or name the tasks in `data.init_args.targets`."
                )
    return list(tasks.values())
