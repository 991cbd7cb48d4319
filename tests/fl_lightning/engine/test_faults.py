"""What a client says of an error that ended its step."""

import pytest
import torch
from federations import Linear, federate

from fl_lightning.engine.faults import fault
from fl_lightning.errors import FederationError


def caught(run):
    try:
        run()
    except Exception as error:
        return fault(error)


class Untyped(Linear):
    """Takes a learning rate of any kind, as a module without type hints does."""

    def training_step(self, batch, batch_idx):
        raise RuntimeError("no such file")


def test_an_optimiser_that_cannot_be_made_names_the_modules_method(tmp_path):
    with pytest.raises(FederationError) as failed:
        federate(tmp_path, lambda: Untyped(lr="abc"), num_rounds=1)
    text = "TypeError in `Untyped.configure_optimizers` (check `model.init_args`): '<' not supported between"
    assert all(f"client {client}: {text}" in str(failed.value) for client in range(4))


def test_other_errors_are_told_as_they_are():
    class Own:
        def configure_optimizers(self):
            raise KeyError("lr")

    assert caught(lambda: Untyped().training_step(None, 0)) == "RuntimeError: no such file"
    assert caught(Own().configure_optimizers) == "KeyError: 'lr'"  # no module's
    assert fault(ValueError("never raised")) == "ValueError: never raised"
    assert caught(lambda: torch.ones(2) @ torch.ones(3)).startswith("RuntimeError: ")
