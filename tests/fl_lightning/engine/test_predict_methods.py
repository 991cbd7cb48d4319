"""What `predict` asks of a module and of data is told by name where it is not there."""

import lightning as L
import pytest
import torch
from federations import Central, Linear, Table, clients, federate

from fl_lightning import LocalOnly
from fl_lightning.engine.predict_methods import LOADER, STEP, check_predicts, explain_forward
from fl_lightning.engine.remote import SiteData
from fl_lightning.errors import FederationError


class Bare(L.LightningModule):
    """Can be trained and no more."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Forward(Bare):
    """Has what Lightning calls where there is no ``predict_step``; batches here are pairs, which it cannot take."""

    def forward(self, x):
        return self.net(x)


class Ready(Table):
    predict_dataloader = Table.val_dataloader


class ReadyServer(Central):
    predict_dataloader = Central.val_dataloader


STEP_OF_BARE = f"`model: Bare` has no `predict_step`. {STEP}"
LOADER_OF_TABLE = f"`data: Table` has no `predict_dataloader`. {LOADER}"


@pytest.mark.parametrize(
    ("module", "data", "told"),
    [
        (Bare, [Table(4, 1), Table(4, 2)], f"{STEP_OF_BARE} {LOADER_OF_TABLE}"),
        (Bare, [Ready(4, 1)], STEP_OF_BARE),
        (Bare, [], STEP_OF_BARE),
        (Linear, [Table(4, 1)], LOADER_OF_TABLE),
        (Forward, [Table(4, 1)], LOADER_OF_TABLE),
        (Linear, [Central(), Table(4, 1)], f"`data: Central`, `data: Table` have no `predict_dataloader`. {LOADER}"),
        (Linear, [Table(4, 1), Ready(4, 1)], None),
        (Forward, [Ready(4, 1)], None),
        (Linear, [], None),
    ],
)
def test_all_that_is_missing_is_told_at_once(module, data, told):
    if told is None:
        return check_predicts(module(), data)
    with pytest.raises(ValueError) as error:
        check_predicts(module(), data)
    assert str(error.value) == f"Nothing can be predicted: {told}"


def test_an_error_of_forward_is_told_as_what_a_predict_step_would_mend():
    text = "`model: Forward` has no `predict_step`, so `forward` was given the whole batch, and failed: TypeError.*list"
    with pytest.raises(ValueError, match=text):
        with explain_forward(Forward()):
            raise TypeError("argument must be Tensor, not list")
    with pytest.raises(TypeError, match="^mine$"), explain_forward(Linear()):
        raise TypeError("mine")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of the modules, whose layers are the same; without and with data of the server."""
    root = tmp_path_factory.mktemp("predict")
    return {kind: federate(root, Bare, kind(*clients((6,))) if kind else clients((6,)), num_rounds=1, name=f"{kind is None}")
            for kind in (None, Central)}  # fmt: skip


@pytest.mark.parametrize("server", [None, Central])
def test_a_federation_says_it_before_any_request(trained, server):
    fed = trained[server]
    data = server(*clients((6,))) if server else clients((6,))
    with pytest.raises(ValueError, match="^Nothing can be predicted: `model: Bare` has no `predict_step`.* `data: "):
        fed.predict(fed.module, data)


def test_forward_on_whole_batches_at_the_server_and_at_a_client(tmp_path):
    for data in (ReadyServer(*clients((6,))), [Ready(6, 1)]):
        fed = federate(tmp_path, Forward, data, num_rounds=1)
        with pytest.raises((ValueError, FederationError), match="Forward` has no `predict_step`, so `forward` was given"):
            fed.predict(fed.module, data)


def test_clients_whose_data_nobody_else_can_see_answer_for_themselves(tmp_path):
    """As at sites: the server cannot look. Also where only the server could predict, and has no model."""
    data = ReadyServer(*clients((6, 8)))
    fed = federate(tmp_path, Linear, data, num_rounds=1, strategy=LocalOnly())
    with pytest.raises(FederationError, match=r"(?s)client 0: ValueError: `data: Table` has no `predict_dataloader`.*client 1"):
        fed.predict(fed.module, data)
    mixed = [Table(6, 1), Ready(8, 2)]
    fed = federate(tmp_path, Linear, mixed, num_rounds=1)
    assert list(fed.predict(fed.module, mixed)) == [1]


def test_data_at_sites_are_not_judged_from_afar(tmp_path):
    from dataclasses import replace

    from fl_lightning.assembly import assemble
    from fl_lightning.settings import FederationSettings

    here = assemble(Linear(), Central(*clients((6,))), FederationSettings(), 0, None)
    assert [type(one) for one in here.known_data] == [Central, Table]
    site = SiteData({"num_train_samples": 6, "schema": None, "fingerprint": None}, "basel")
    assert replace(here, server_data=None, datamodules=[*here.datamodules, site]).known_data == []
