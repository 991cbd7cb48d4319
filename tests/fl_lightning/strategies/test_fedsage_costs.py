"""What the phases of FedSage+ cost, by hand: rings of nodes, and a generator whose weights can be counted.

That a run sends this is in ``reporting/test_inspection.py``.
"""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from datamodules import SyntheticCitationDataModule
from fl_lightning import FederatedTrainer
from fl_lightning.strategies import FedSagePlus, FedSagePrototype
from fl_lightning.strategies.base import PhaseCosts
from fl_lightning.strategies.fedsage_costs import NOTE
from lit_models import GraphSAGE, LitNeighGen, LitNodeClassifier

FGEN = 4 * (2 * 3 + 3 + 3 * 6 + 6)
"""Bytes of its weights: from 2 numbers to 3, and from 3 to 2 slots of 3 features, with biases."""
ROW = 2 * 4 + 8
"""Bytes of a row of a question: two floats and a count."""


def ring(num_nodes, links_elsewhere=None):
    there = torch.arange(num_nodes)
    back = (there + 1) % num_nodes
    edges = torch.cat([torch.stack([there, back]), torch.stack([back, there])], dim=1)
    data = Data(x=torch.ones(num_nodes, 3), edge_index=edges, num_nodes=num_nodes)
    return SimpleNamespace(data=data, schema={"num_features": 3, "num_classes": 2}, links_elsewhere=links_elsewhere)


def generator(**options):
    return LitNeighGen(GraphSAGE(hidden_channels=2), embedding_channels=2, num_slots=2, hidden_channels=[3], **options)


def costs(clients, max_rows=None, oracle=None, **options):
    plus = FedSagePlus(generator=generator(max_rows=max_rows), **{"exchange_rounds": 1, "hide_portion": 0.2, **options})
    plus._oracle = oracle or {}
    return plus.phase_costs(clients)


def mended(nodes, new):
    """Bytes of a ring with so many new nodes: dense features, and links in both directions to their one neighbour."""
    return 4 * 3 * (nodes + new) + 16 * (2 * nodes + 2 * new)


def asks_for(*arguments, **options):
    """How many rows a lone client asks for in a round; ``None``: it never asks."""
    up = costs([ring(*arguments)], **{"min_batch": 1, **options}).up
    assert (up - FGEN) % ROW == 0 or up == 0
    return (up - FGEN) // ROW if up else None


def test_three_clients_that_all_ask():
    """20 nodes, 4 of them hidden, so 16 rows: two slots of each are the 32 vectors that a question must have."""
    found = costs([ring(20) for _ in range(3)], exchange_rounds=5, min_batch=32)
    query, asked, answered, summed = 3 * (FGEN + 16 * ROW), 2 * 3 * (FGEN + 16 * ROW), 2 * 3 * FGEN, 3 * FGEN
    assert (found.up, found.down) == (5 * (query + answered), 5 * (asked + summed))
    assert found.messages == query + answered + summed
    assert found.data == 3 * mended(20, 8)  # .2 of 40 directed links
    built = copy.deepcopy(generator())
    built.build(ring(20).schema)
    whole = sum(t.numel() * t.element_size() for t in built.state_dict().values())
    assert sum(4 * p.numel() for p in built.fgen.parameters()) == FGEN
    assert found.clients == 3 * (whole + 2 * FGEN) and found.note == NOTE


def test_a_client_asks_for_what_it_does_not_hide_if_that_is_enough():
    assert asks_for(20, min_batch=33) is None and asks_for(20, min_batch=32) == 16
    assert asks_for(20, max_rows=5) == 5 and asks_for(20, max_rows=16) == 16 and asks_for(20, max_rows=17) == 16
    assert asks_for(3, hide_portion=0.2) == 2 and asks_for(3, hide_portion=0.1) is None  # one hidden node, and none
    assert asks_for(2, hide_portion=0.9) == 1 and asks_for(1, hide_portion=0.9) is None  # one node at least is kept


def test_of_clients_that_do_not_ask_no_weights_are_sent():
    found = costs([ring(20), ring(2), ring(10)], min_batch=16)  # the second hides nothing
    asking, rows = 2 * FGEN, (16 + 8) * ROW
    assert (found.up, found.down) == (asking + rows + 2 * asking, 2 * (asking + rows) + asking)


def test_one_client_has_nobody_to_ask():
    found = costs([ring(20)])
    assert (found.up, found.down, found.messages) == (FGEN + 16 * ROW, 0, FGEN + 16 * ROW)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"exchange_rounds": 0}])
def test_without_exchange_the_generators_and_mended_graphs_are_left(options):
    found, full = costs([ring(20), ring(20)], **options), costs([ring(20), ring(20)])
    assert (found.up, found.down, found.messages) == (0, 0, 0)
    assert found.data == full.data == 2 * mended(20, 8) and found.clients == full.clients > 0


def test_one_step_of_the_exchange_is_counted_for_the_smallest_alpha():
    assert costs([ring(20)], alpha=1e-9).up == FGEN + 16 * ROW


@pytest.mark.parametrize(
    "options",
    [{"mending": "none"}, {"hide_portion": 0.0}, {"hide_portion": 0.0, "mending": "mean", "counts": "known"},
     {"mending": "none", "counts": "known"}],
)  # fmt: skip
def test_without_mending_there_are_no_costs(options):
    assert costs([ring(20, torch.ones(20, dtype=torch.long))] * 2, **options) == PhaseCosts()


def test_known_counts_are_cut_off_at_the_slots():
    links = torch.tensor([0, 1, 2, 3, 9])  # 0 + 1 + 2 + 2 + 2 of 2 slots
    clients = [ring(5, links), ring(5, torch.zeros(5, dtype=torch.long))]  # the second gets nothing, and keeps its graph
    assert costs(clients, mending="mean", counts="known") == PhaseCosts(data=mended(5, 7))
    assert costs(clients, counts="known").data == mended(5, 7)
    assert costs(clients, mending="mean").data == 2 * mended(5, 2)  # .2 of 10 links where they are predicted


def test_the_oracles_neighbours_are_sent_and_kept():
    counts = [torch.tensor([3, 0, 1, 0]), torch.zeros(4, dtype=torch.long)]
    oracle = {c: (n, torch.ones(int(n.sum()), 3)) for c, n in enumerate(counts)}
    told = 2 * 4 * 8 + 4 * 3 * 4  # counts of both, and features of four neighbours
    assert costs([ring(4), ring(4)], mending="oracle", oracle=oracle) == PhaseCosts(down=told, data=mended(4, 4), clients=told)


def test_prototypes_cost_sums_of_classes_and_the_clients_keep_what_they_are_told():
    """3 features, 2 classes: up 6 + 2 + 4 numbers of 8 bytes, down 6 + 4 of 4; kept with two probabilities a node."""
    found = costs([ring(20), ring(5)], mending="prototype", counts="mean")
    assert (found.up, found.down, found.messages) == (2 * 96, 2 * 40, 2 * 96)
    assert found.clients == 2 * 40 + 4 * 2 * 25 and found.data == mended(20, 20) + mended(5, 5) and found.note == ""
    known = costs([ring(20, torch.full((20,), 3))], mending="prototype", counts="known")
    assert known.data == mended(20, 40)  # at most two slots
    counted = costs([ring(20)], mending="prototype", counts="predicted")
    built = generator()
    built.build(ring(20).schema)
    assert counted.clients == 40 + 4 * 2 * 20 + sum(t.numel() * t.element_size() for t in built.state_dict().values())
    assert (counted.up, counted.down) == (96, 40)  # no exchange


def test_a_run_with_prototypes_sends_what_was_told(tmp_path):
    data = SyntheticCitationDataModule(num_nodes=120, num_classes=3, num_features=20, num_clients=2)
    trainer = FederatedTrainer(
        num_rounds=1, strategy=FedSagePrototype(), trainer={"accelerator": "cpu", "default_root_dir": str(tmp_path)}
    )
    trainer.fit(LitNodeClassifier(GraphSAGE(hidden_channels=4)), data)
    lines = [json.loads(line) for line in (trainer.run_dir / "ledger.jsonl").read_text().splitlines()]
    told = FedSagePrototype().phase_costs(data.client_datamodules())
    for way, wanted in (("up", told.up), ("down", told.down)):
        sent = sum(x["bytes"] for x in lines if x["direction"] == way and x["kind"] in ("class_sums", "mend"))
        assert wanted <= sent <= wanted + 4 * 300  # and a few numbers and names
