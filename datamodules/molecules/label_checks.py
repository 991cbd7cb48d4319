"""Labels that no model can be trained on are refused, by the rows that have them."""

from __future__ import annotations

import numpy as np

from datamodules.molecules.table import MoleculeSet

LARGEST_LABEL = 1e15  # squared errors of a batch stay below what float32 holds


def check_labels(molecules: MoleculeSet, task: str) -> None:
    """Refuse labels that do not fit the task.

    Raises:
        ValueError: Classes other than 0 and 1, values too large, or a task of another name.
    """
    y = molecules.packed.y.numpy()
    if task == "classification":
        _check_classes(y, molecules)
    elif task == "regression":
        _check_values(y, molecules)
    else:
        raise ValueError(f"`data.init_args.task` must be regression or classification, got {task!r}.")


def _check_values(y: np.ndarray, molecules: MoleculeSet) -> None:
    wrong = np.argwhere(np.abs(np.nan_to_num(y, nan=0.0, posinf=np.inf)) > LARGEST_LABEL)
    if len(wrong):
        position, task = wrong[0]
        raise ValueError(
            f"{molecules.where(position)} has label {y[position, task]:g} for task "
            f"`{molecules.task_names[task]}`, whose square no 32-bit number holds ({len(wrong)} such labels, the "
            f"largest allowed is {LARGEST_LABEL:g}). Correct it, or give the column in another unit."
        )


def _check_classes(y: np.ndarray, molecules: MoleculeSet) -> None:
    wrong = np.argwhere(~(np.isnan(y) | (y == 0) | (y == 1)))
    if len(wrong):
        told = "; ".join(
            f"{molecules.where(position)} has label {y[position, task]:g} for task `{molecules.task_names[task]}`"
            for position, task in wrong[:3]
        )
        raise ValueError(
            f"{told}; but the labels of a classification are 0, 1 or blank "
            f"({len(wrong)} such labels). Correct them, write a column of 0 and 1 for each class, or set "
            "`data.init_args.task: regression` for measurements."
        )
