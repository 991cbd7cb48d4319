"""The transformer beside this file with gradients of two batches in a step, clipped by their norm: arguments of the Trainer."""

from __future__ import annotations

import lightning as L
from sites import LOCAL, show
from transformer import LitTransformer, site

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 6, "trainer": {**LOCAL, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}}


def model(dropout=0.1):
    return LitTransformer(dropout=dropout, warmup_steps=3)


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="accumulation")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
