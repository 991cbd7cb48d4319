"""Does a module want its hyperparameters logged? Lightning has no public name for the answer."""

import lightning as L
import pytest

from fl_lightning.engine.lightning_fast.hyperparameters import are_logged


@pytest.mark.parametrize(("logger", "expected"), [(True, True), (False, False), (None, False)])
def test_hyperparameters_are_logged_if_they_were_saved_for_loggers(logger, expected):
    class Module(L.LightningModule):
        def __init__(self, lr=0.1):
            super().__init__()
            if logger is not None:
                self.save_hyperparameters(logger=logger)

    assert are_logged(Module()) is expected
