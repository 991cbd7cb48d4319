"""The same split for chemprop, an independent message passing network: how hard a set is for one.

    python -m benchmarks.chemprop_split --root DATA --data bace --seed 0 --out bace_0.csv
    chemprop train -i bace_0.csv -s smiles --target-columns label -t classification --splits-column split --metrics roc
             --pytorch-seed 0 -o bace_0

(chemprop 2.3.1 in an environment of its own; it is not among this project's packages.) Writes the first task's labels.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from benchmarks.forest import rows_of_split


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    asked = parser.parse_args(arguments)
    parts, smiles, label = rows_of_split(asked.root, asked.data, asked.split, asked.seed)
    with Path(asked.out).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "label", "split"])
        for part, rows in parts.items():
            writer.writerows([smiles[row], f"{label[row][0]:g}", part] for row in rows)


if __name__ == "__main__":
    main()
