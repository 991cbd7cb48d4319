"""The CNN beside this file in bfloat16 (`trainer.precision: bf16-mixed`): weights, and what is sent, stay in float32."""

from __future__ import annotations

import lightning as L
from cnn import LitCNN, site
from sites import LOCAL, show

from fl_lightning import FederatedTrainer

SETTINGS = {"num_rounds": 3, "monitor": "acc", "trainer": {**LOCAL, "precision": "bf16-mixed"}}


def model():
    return LitCNN()


def main():
    L.seed_everything(0, verbose=False)
    trainer = FederatedTrainer(**SETTINGS, name="mixed_precision")
    trainer.fit(model(), [site(number) for number in range(3)])
    return show(trainer)


if __name__ == "__main__":
    main()
