"""What chemprop is given of ESOL: the clients' molecules, the server's held-out ones, equally many steps (needs chemprop)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("chemprop") is None, reason="chemprop is not installed (see CONTRIBUTING)"),
    pytest.mark.skipif(not (ROOT / "moleculenet/esol").is_dir(), reason="ESOL is not here"),
]


@pytest.fixture(scope="module")
def both():
    from benchmarks.chemprop_esol import Sites, esol

    data = esol(str(ROOT), seed=2)
    return data, Sites(data)


def test_the_molecules_and_labels_are_those_of_the_data_module(both):
    data, sites = both
    labels = data.molecules.packed.y.numpy()
    for client, parts in zip(sites.clients, data.division.clients, strict=True):
        np.testing.assert_array_equal(client.sets["train"].Y, labels[parts["train"]])
    sizes = [client.num_train_samples for client in sites.clients]
    assert sum(sizes) == sites.trained.num_train_samples == 902 and len(set(sizes)) > 1
    for name in ("val", "test"):
        np.testing.assert_array_equal(sites.sets[name].Y, labels[data.division.server[name]])
    row = int(data.division.server["test"][5])  # atoms as counted by the other featuriser
    assert sites.sets["test"][5].mg.V.shape[0] == int(data.molecules.packed.node_ptr.diff()[row])


def test_each_client_and_all_together_have_the_same_number_of_steps(both):
    from benchmarks.chemprop_esol import BATCH, STEPS

    _, sites = both
    for molecules in (*sites.clients, sites.trained):
        torch.manual_seed(0)
        assert [len(batch.Y) for batch in molecules.train_dataloader()] == [BATCH] * STEPS


def test_labels_to_test_on_stay_in_units(both):
    from benchmarks.chemprop_esol import chemprops
    from fl_lightning.engine.statistics import exchange, use

    data, sites = both
    in_units, module = sites.sets["test"].Y.copy(), chemprops()
    use(exchange(sites.clients).agreed, sites, *sites.clients, module)
    np.testing.assert_array_equal(sites.sets["test"].Y, in_units)
    together = np.concatenate([client.sets["train"].Y for client in sites.clients])
    assert abs(together.mean()) < 1e-6 and together.std() == pytest.approx(1, abs=1e-5)
    assert module.predictor.output_transform.mean.item() == pytest.approx(data.schema["label_mean"][0], rel=1e-6)
