"""Run by `test_ddp.py`: ``python ddp_script.py ROOT DEVICES``. Every rank runs the same rounds."""

import json
import sys
from pathlib import Path

import torch
from federations import Central, Linear, Table

from fl_lightning import FederatedTrainer


class Counted(Linear):
    def on_train_start(self):
        self.world = self.trainer.world_size


def main(root: Path, devices: int) -> None:
    strategy = {"strategy": "ddp"} if devices > 1 else {}
    torch.manual_seed(0)
    module = Counted()
    fed = FederatedTrainer(
        trainer={"accelerator": "cpu", "devices": devices, "max_epochs": 1, "default_root_dir": str(root), **strategy},
        num_rounds=3,
        carry_optimizer_state=True,
        seed=0,
        name="ddp",
    )
    # Both ranks hold half of every client's points: 8 and 12 are even, so the mean of means is the mean.
    fed.fit(module, Central(Table(8, 1, shuffle=False), Table(12, 2, shuffle=False)))
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    found = {"run_dir": fed.run_dir and str(fed.run_dir), "weight": module.net.weight.tolist(), "results": fed.results}
    (root / f"rank_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
