"""On an accelerator: what was received or remembered follows the module's device."""

import pytest
import torch
from federations import Central, Deep, clients, federate

from fl_lightning import LocalOnly
from fl_lightning.engine import InProcess, WorkerProcesses

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GPU = {"accelerator": "gpu", "devices": 1, "max_epochs": 2}


class OnDevice(Deep):
    def on_train_start(self):
        assert self.device.type == "cuda" and all(p.is_cuda for p in self.parameters())

    def training_step(self, batch, batch_idx):
        assert batch[0].is_cuda
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("strategy", [None, LocalOnly()])
@pytest.mark.parametrize("engine", [InProcess(), InProcess(rebuild_clients=True), WorkerProcesses(2)])
def test_clients_train_on_the_device_and_messages_are_on_the_cpu(tmp_path, strategy, engine):
    data = Central(*clients((12, 9, 20), batch_size=5))
    fed = federate(
        tmp_path, OnDevice, data, GPU, strategy=strategy, engine=engine, num_rounds=3, carry_optimizer_state=True
    )  # fmt: skip
    assert fed.results["failures"] == [] and fed.results["rounds_run"] == 3
    assert all(p.device.type == "cpu" for p in fed.module.parameters())


def test_mixed_precision_on_the_device(tmp_path):
    fed = federate(tmp_path, Deep, clients((12, 9)), {**GPU, "precision": "16-mixed"})
    assert fed.results["failures"] == []
