"""A model that waits in the middle of training, for the tests of faults: imported by sites' workers."""

import time
from pathlib import Path

from lit_models import LitNodeClassifier


class Holding(LitNodeClassifier):
    """Notes each training in ``trainings`` of the site's folder, and waits while ``hold`` there allows fewer."""

    def on_train_start(self):
        super().on_train_start()
        with open("trainings", "a") as file:
            file.write(".")
        while Path("hold").is_file() and len(Path("trainings").read_text()) > int(Path("hold").read_text() or 0):
            time.sleep(0.05)
