"""A client weighs only in what it has learnt: the row of a task is averaged over the clients that have a label of it.

Hand values for the server's halves, and the closed form in whole runs: with any number of sites without the task, its row is
bit for bit that of the one site that has it, alone.
"""

import math

import pytest
import torch
from federations import Linear, clients, federate
from torch import nn

from datamodules import MoleculeCSVDataModule
from fl_lightning import FedAvg, FederatedTrainer
from fl_lightning.engine import InProcess, WorkerProcesses
from fl_lightning.engine.entries import rows_by_learners
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Message, Payload
from fl_lightning.strategies import FedPub, FedSagePlus, LocalOnly
from fl_lightning.strategies.averaging import average, average_learnt
from fl_lightning.strategies.fedpub import EMBEDDING
from lit_models import MPNN, GCNMolecule, GINMolecule, LitMoleculePredictor, SchNet

HEAD = ("encoder.head.2.weight", "encoder.head.2.bias")


class Scripted(InProcess):
    """Answers ``fit`` with what the test wrote down."""

    def __init__(self, replies):
        super().__init__()
        self.replies = replies

    def exchange(self, requests, timeout):
        for request in requests:
            yield Message("fit", "run", request.round, request.client, self.replies[request.client])


def reply(tensors, samples, untrained=None):
    values = {"num_samples": samples, "metrics": {}}
    return Payload(tensors, values | ({} if untrained is None else {"untrained_rows": untrained}))


def one_round(strategy, initial, replies):
    strategy.start(initial, ())
    federation = Federation(Scripted(replies), "run", tuple(replies))
    strategy.round(federation, 0, sorted(replies))
    assert federation.failures == []
    return strategy


# ---- the server's halves by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FedAvg, FedSagePlus])
def test_rows_by_hand(kind):
    # n = (10, 30, 60). Row 0: all, (10 + 60 + 180) / 100 = 2.5. Row 1: clients 0 and 2, (10 + 180) / 70. Row 2: client 1 alone,
    # 2. Row 3: nobody, the server's 7. The bias is trained by all: 2.5.
    missing = {0: {"w": [2, 3]}, 1: {"w": [1, 3]}, 2: {"w": [2, 3]}}
    replies = {
        c: reply({"w": torch.full((4, 2), c + 1.0), "b": torch.full((4,), c + 1.0)}, n, missing[c])
        for c, n in enumerate((10, 30, 60))
    }
    weights = one_round(kind(weighting="num_samples"), {"w": torch.full((4, 2), 7.0), "b": torch.zeros(4)}, replies).weights
    torch.testing.assert_close(weights["w"], torch.tensor([[2.5], [190 / 70], [2.0], [7.0]]).expand(4, 2))
    assert weights["b"].tolist() == [2.5] * 4
    uniform = one_round(kind(weighting="uniform"), {"w": torch.zeros(4, 2), "b": torch.zeros(4)}, replies).weights
    assert uniform["w"][:, 0].tolist() == [2.0, 2.0, 2.0, 0.0]  # means of (1, 2, 3), (1, 3) and (2)


@pytest.mark.parametrize("others", [1, 4, 9])
def test_a_row_of_one_client_is_its_own_bit_for_bit(others):
    generator = torch.Generator().manual_seed(others)
    shapes = {"w": (3, 5), "b": (3,)}
    models = [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in range(1 + others)]
    counts = [7.0 + 13 * k for k in range(1 + others)]
    untrained = [{}] + [{"w": [1], "b": [1]}] * others
    found = average_learnt(models, counts, untrained, models[1])
    plain = average(models, counts)
    for name in ("w", "b"):
        assert torch.equal(found[name][1], models[0][name][1])
        assert torch.equal(found[name][[0, 2]], plain[name][[0, 2]])  # what all have learnt keeps its bits


def test_rows_of_some_are_the_average_of_those_alone():
    generator = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(40, 11, generator=generator)} for _ in range(5)]
    counts = [3.0, 50.0, 7.0, 1000.0, 11.0]
    untrained = [{"w": list(range(k, 40, k + 2))} for k in range(5)]
    found = average_learnt(models, counts, untrained, {"w": torch.full((40, 11), 9.0)})["w"]
    for row in range(40):
        who = [k for k in range(5) if row not in untrained[k]["w"]]
        alone = average([models[k] for k in who], [counts[k] for k in who])["w"][row] if who else torch.full((11,), 9.0)
        assert torch.equal(found[row], alone), row


def test_each_row_is_in_one_group():
    groups = dict((tuple(rows.tolist()), who) for rows, who in rows_by_learners(4, [[0], [0, 2], []]))
    assert groups == {(0,): [2], (1, 3): [0, 1, 2], (2,): [0, 2]}


def test_fed_pub_mixes_a_row_among_those_who_trained_it():
    # cos = identity for clients 0, 1; client 2 points as client 0. tau = log 3: weights 3 where alike, else 1.
    # Row 0, all: client 0 gets (3, 1, 3) / 7 of (1, 2, 4). Row 1, clients 1 and 2: client 0 is like 2 and gets (1, 3) / 4 of
    # (2, 4) = 3.5; client 1 (3, 1) / 4, so 2.5; client 2 3.5. Row 2, client 1: 2 for all. Row 3, nobody: as each client has it.
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    missing = ([1, 2, 3], [3], [2, 3])
    replies = {
        c: reply({"w": torch.full((4, 2), float(2**c)), EMBEDDING: embeddings[c]}, 5, {"w": missing[c]}) for c in range(3)
    }
    strategy = one_round(FedPub(tau=math.log(3.0)), {"w": torch.full((4, 2), 7.0)}, replies)
    for client, wanted in enumerate(([17 / 7, 3.5, 2, 1], [(1 + 6 + 4) / 5, 2.5, 2, 2], [17 / 7, 3.5, 2, 4])):
        torch.testing.assert_close(strategy.download(client).tensors["w"], torch.tensor(wanted)[:, None].expand(4, 2))


def test_fed_pub_without_untrained_rows_keeps_its_bits():
    generator = torch.Generator().manual_seed(1)
    tensors = [{"w": torch.randn(6, 3, generator=generator), EMBEDDING: torch.randn(4, generator=generator)} for _ in range(3)]
    found = []
    for rows in (None, {}, {"w": []}):
        strategy = one_round(FedPub(), {"w": torch.zeros(6, 3)}, {c: reply(tensors[c], 5, rows) for c in range(3)})
        found.append(strategy.download(0).tensors["w"])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


# ---- whole runs ------------------------------------------------------------------------------------------------------


def sites(path, **rows_of_site):
    """One table, and per site how many chains have label a, label b, both."""
    lines, length = ["smiles,site,a,b"], 1
    for site, (only_a, only_b, both) in rows_of_site.items():
        for labels in ["{0},"] * only_a + [",{1}"] * only_b + ["{0},{1}"] * both:
            lines.append(f"{'C' * length}O,{site}," + labels.format(length / 10, 10))
            length += 1
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return MoleculeCSVDataModule(files=str(path), client_column="site", targets=["a", "b"], task="regression", cache_dir=None,
                                 fractions=(1.0, 0.0, 0.0), batch_size=32)  # fmt: skip


def predictor():
    return LitMoleculePredictor(GCNMolecule(hidden_channels=4, num_layers=1), optimizer=adam)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2, weight_decay=0.1)


def fit(folder, data, engine=None, **settings):
    settings = {"num_rounds": 1, "strategy": FedAvg(), "trainer": {"max_steps": 1}, "engine": engine, **settings}
    fed = federate(folder, predictor, data, **settings)
    assert fed.results["failures"] == []
    return fed, {name: tensor.clone() for name, tensor in fed.module.state_dict().items()}


class Encoded(InProcess):
    """What worker processes and sites send: bytes."""

    def exchange(self, requests, timeout):
        for reply in super().exchange([Message.decode(request.encode()) for request in requests], timeout):
            yield Message.decode(reply.encode())


@pytest.mark.parametrize(
    "engine",
    [
        lambda: InProcess(rebuild_clients=True),
        Encoded,
        pytest.param(lambda: WorkerProcesses(2), marks=pytest.mark.slow),
    ],
    ids=["rebuilt", "encoded", "workers"],
)
def test_the_row_of_a_task_is_that_of_the_site_that_has_it(tmp_path, engine):
    """One step from the same weights: that of task b depends on its labels alone, whoever else takes part."""
    _, alone = fit(tmp_path / "alone", sites(tmp_path / "alone" / "t.csv", s0=(0, 12, 0)))
    crowd = {"s0": (0, 12, 0), **{f"s{k}": (5 * k, 0, 0) for k in range(1, 5)}}
    _, among = fit(tmp_path / "among", sites(tmp_path / "among" / "t.csv", **crowd), engine())
    others = {k: v for k, v in crowd.items() if k != "s0"}
    _, without = fit(tmp_path / "others", sites(tmp_path / "others" / "t.csv", **others), engine())
    for name in HEAD:
        assert torch.equal(among[name][1], alone[name][1]) and not torch.equal(among[name][0], alone[name][0])
        assert not torch.equal(among[name][1], without[name][1])  # which is as it began


def test_it_is_learnt_as_fast_with_nine_others(tmp_path):
    """The label of b is 10 everywhere. Before, the bias took a tenth of the one site's step."""
    errors = []
    for others in (0, 9):
        data = sites(tmp_path / f"{others}.csv", s0=(0, 12, 0), **{f"s{k}": (6, 0, 0) for k in range(1, 1 + others)})
        _, weights = fit(tmp_path / str(others), data, num_rounds=5, trainer={"max_steps": 2})
        errors.append(float(weights[HEAD[1]][1]))
    assert errors[1] == pytest.approx(errors[0], abs=0.02) and errors[0] > 0.05


def test_what_is_told_is_in_the_ledger_only_where_a_task_is_missing(tmp_path):
    seen = []

    class Spy(InProcess):
        def exchange(self, requests, timeout):
            for reply in super().exchange(requests, timeout):
                seen.append(reply)
                yield reply

    fed, _ = fit(tmp_path, sites(tmp_path / "t.csv", s0=(0, 0, 12), s1=(8, 0, 0)), Spy())
    told = [r.payload.values.get("untrained_rows") for r in seen if r.kind == "fit"]
    assert told == [None, {name: [1] for name in HEAD}]
    lines = (fed.run_dir / "ledger.jsonl").read_text().splitlines()
    assert [line.count("untrained_rows") for line in lines if '"kind":"fit","bytes"' in line and '"up"' in line] == [0, 1]
    seen.clear()
    fit(tmp_path / "local", sites(tmp_path / "u.csv", s0=(0, 0, 12), s1=(8, 0, 0)), Spy(), strategy=LocalOnly())
    assert all("untrained_rows" not in r.payload.values for r in seen)  # nothing is averaged, so nothing is told


def test_resumed_it_is_the_same(tmp_path):
    rows = {"s0": (0, 0, 12), "s1": (8, 0, 0), "s2": (0, 9, 0)}
    _, whole = fit(tmp_path / "whole", sites(tmp_path / "t.csv", **rows), num_rounds=2)
    half, _ = fit(tmp_path / "half", sites(tmp_path / "t.csv", **rows), num_rounds=1)
    torch.manual_seed(0)
    module = predictor()
    trainer = {"max_steps": 1, "max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "logger": False,
               "default_root_dir": str(tmp_path / "half")}  # fmt: skip
    again = FederatedTrainer(trainer=trainer, num_rounds=2, strategy=FedAvg(), seed=0)
    again.fit(module, sites(tmp_path / "t.csv", **rows), ckpt_path="last")
    for name, tensor in whole.items():
        assert torch.equal(module.state_dict()[name], tensor), name


# ---- the hook --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", [GCNMolecule, GINMolecule, MPNN, SchNet])
def test_every_encoder_names_the_rows_of_its_last_layer(encoder):
    module = LitMoleculePredictor(encoder())
    module.build({"task": "regression", "num_tasks": 3, "atom_features": 74, "bond_features": 13,
                  "positions": None, "metric": "rmse"})  # fmt: skip
    assert module.untrained_rows() == {}
    module._unseen = torch.tensor([False, True, False])
    found = module.untrained_rows()
    assert len(found) == 2 and all(mask.tolist() == [False, True, False] for mask in found.values())
    assert all(module.state_dict()[name].shape[0] == 3 and name.startswith("encoder.head") for name in found)


class Words(Linear):
    """Any module: a table of words (tied to a second name), of which a client has trained as many as it has samples."""

    def __init__(self, told=None):
        super().__init__()
        self.table = nn.Embedding(30, 2)
        self.tied = nn.Linear(2, 30, bias=False)
        self.tied.weight = self.table.weight
        self.told = told

    def training_step(self, batch, batch_idx):
        self.size = len(batch[0])
        return super().training_step(batch, batch_idx) + self.table.weight[: self.size].sum()

    def untrained_rows(self):
        return {"tied.weight": torch.arange(30) >= self.size} if self.told is None else self.told


def test_any_module_can_offer_it_and_tied_weights_have_one_name(tmp_path):
    # Gradient 1 and learning rate .05: a trained row falls by .05, whoever else has not trained it.
    module = Words()
    before = module.table.weight.detach().clone()
    fed = federate(tmp_path, module, clients((10, 16, 24)), num_rounds=1)
    moved = (before - fed.module.table.weight).mean(1)
    torch.testing.assert_close(moved, torch.tensor([0.05] * 24 + [0.0] * 6))


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"nothing": torch.ones(30, dtype=torch.bool)}, "There is no entry `nothing` in the model; it has: net.weight"),
        ({"table.weight": torch.ones(3, dtype=torch.bool)}, r"each row of `table.weight` \[30, 2\], but gives bool\[3\]"),
        ({"table.weight": torch.ones(30)}, r"`Words.untrained_rows` must give a bool tensor .* but gives float32\[30\]"),
    ],
)
def test_a_mask_that_fits_no_entry_is_told(tmp_path, told, text):
    with pytest.raises(Exception, match=text):
        federate(tmp_path, Words(told), clients((10,)), num_rounds=1)
