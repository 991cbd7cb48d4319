"""Who can tell the classes of nodes, and what is said where nobody can."""

import lightning as L
import pytest
import torch

from datamodules import PlantedDataModule
from fl_lightning.engine.client import Client, ClientHalf, LocalSettings, Worker
from fl_lightning.engine.store import ClientStore
from fl_lightning.strategies.node_classes import check_predict_step, predicted_classes
from lit_models import GraphSAGE, LitNodeClassifier


def test_a_module_that_cannot_tell_classes_is_refused():
    check_predict_step(LitNodeClassifier(GraphSAGE(4)), "`X`")
    text = r"`X` asks .* `LightningModule` has no `predict_step`. Write one that gives a dict with `probabil"
    with pytest.raises(ValueError, match=text):
        check_predict_step(L.LightningModule(), "`X`")


class FewNodes(LitNodeClassifier):
    def predict_step(self, batch, batch_idx):
        return {name: tensor[:3] for name, tensor in super().predict_step(batch, batch_idx).items()}


@pytest.mark.parametrize("kind", [LitNodeClassifier, FewNodes])
def test_probabilities_of_all_nodes_without_dropout(kind):
    data = PlantedDataModule(num_clients=2, nodes_per_client=10, num_features=6)
    data.setup("fit")
    module = kind(GraphSAGE(4, dropout=0.9)).train()
    own = data.client_datamodules()[0]
    module.build(own.schema)
    settings = LocalSettings("r", 3, 1, {"max_epochs": 1, "accelerator": "cpu"})
    client = Client(Worker(module, ClientHalf(), {0: own}, settings), 0, 0, ClientStore())
    if kind is FewNodes:
        with pytest.raises(ValueError, match="`X` needs the classes of all nodes, but `FewNodes.predict_step` does not give"):
            predicted_classes(client, own.data, "`X`")
        return
    found = predicted_classes(client, own.data, "`X`")
    torch.testing.assert_close(found, module.eval()(own.data).softmax(-1).detach())
