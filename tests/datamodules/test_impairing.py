"""Impairing: the graph Γ by hand (T6), the cases of docs/papers/fedsage_plus.md#edge-cases, and counts on random graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from datamodules.impairing import ImpairedDataModule, impair


def graph(num_nodes, edges, x=None):
    pairs = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
    mask = torch.arange(num_nodes) % 2 == 0
    return Data(
        x=torch.arange(2.0 * num_nodes).reshape(num_nodes, 2) if x is None else x,
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        y=torch.arange(num_nodes) % 3,
        train_mask=mask,
        val_mask=~mask,
        test_mask=torch.zeros(num_nodes, dtype=torch.bool),
        node_id=100 + torch.arange(num_nodes),
        num_nodes=num_nodes,
    )


GAMMA = graph(6, [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (0, 4)])


def impair_hiding(data, hidden, **options):
    """The impaired graph of the first seed that hides exactly these nodes."""
    share = len(hidden) / data.num_nodes
    for seed in range(2000):
        impaired = impair(data, share, seed, **options)
        if (impaired.hidden_id - 100).tolist() == hidden:
            return impaired
    raise AssertionError("no seed hides these nodes")


def test_t6_gamma_by_hand():
    impaired = impair_hiding(GAMMA, [3, 4])
    assert impaired.node_id.tolist() == [100, 101, 102, 105]
    assert impaired.missing_count.tolist() == [1, 0, 2, 0]  # sum 3 = |cut|
    # |E| = |E of V̄| + cut + |E(V^h)|: 7 = 3 + 3 + 1; edge 34 vanishes and is no pair
    assert impaired.edge_index.shape[1] // 2 == 3
    assert impaired.pair_ptr.tolist() == [0, 1, 1, 3, 3]
    assert impaired.hidden_x[impaired.pair_target].tolist() == [[8.0, 9.0], [6.0, 7.0], [8.0, 9.0]]
    assert impaired.x.tolist() == GAMMA.x[[0, 1, 2, 5]].tolist()
    assert impaired.y.tolist() == GAMMA.y[[0, 1, 2, 5]].tolist()
    assert impaired.train_mask.tolist() == [True, False, True, False]
    assert impaired.holdout_target.numel() == 0 and bool(impaired.count_mask.all())


def test_same_seed_same_draw_and_the_graph_is_left_alone():
    before = {name: value.clone() for name, value in GAMMA.to_dict().items() if isinstance(value, torch.Tensor)}
    global_state = torch.get_rng_state()
    first, again = impair(GAMMA, 0.3, 5), impair(GAMMA, 0.3, 5)
    assert first.to_dict().keys() == again.to_dict().keys()
    assert all(torch.equal(first[name], again[name]) for name in first.to_dict() if name != "num_nodes")
    draws = {tuple(impair(GAMMA, 0.3, seed).hidden_id.tolist()) for seed in range(40)}
    assert len(draws) > 5
    assert all(torch.equal(GAMMA[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), global_state)


def test_hidden_nodes_are_uniform():
    times = torch.zeros(6)
    for seed in range(1500):
        times[impair(GAMMA, 0.34, seed).hidden_id - 100] += 1
    assert ((times - 500) ** 2 / 500).sum() < 20.5  # chi^2, 5 degrees of freedom, 99.9 %


@given(st.integers(0, 500), st.integers(1, 12), st.floats(0, 0.95), st.floats(0, 0.9))
@settings(max_examples=60, deadline=None)
def test_counts_and_pairs_on_random_graphs(seed, num_nodes, share, holdout):
    generator = torch.Generator().manual_seed(seed)
    adjacency = torch.triu(torch.rand(num_nodes, num_nodes, generator=generator) < 0.4, diagonal=1)
    data = graph(num_nodes, adjacency.nonzero().tolist())
    impaired = impair(data, share, seed, holdout)
    kept, hidden = impaired.node_id - 100, impaired.hidden_id - 100
    assert len(hidden) == min(round(share * num_nodes), num_nodes - 1) and len(kept) >= 1
    assert sorted(kept.tolist() + hidden.tolist()) == list(range(num_nodes))
    both = adjacency | adjacency.T
    assert torch.equal(impaired.missing_count, both[kept][:, hidden].sum(1))
    assert impaired.edge_index.shape[1] == int(both[kept][:, kept].sum())
    found = torch.zeros(len(kept), len(hidden), dtype=torch.bool)
    for name in ("pair", "holdout"):
        pointer, target = impaired[f"{name}_ptr"], impaired[f"{name}_target"]
        for v in range(len(kept)):
            found[v, target[pointer[v] : pointer[v + 1]]] = True
    assert torch.equal(found, both[kept][:, hidden])
    assert impaired.pair_target.numel() + impaired.holdout_target.numel() == int(found.sum())
    # A held-out node is never a training target.
    assert not set(impaired.pair_target.tolist()) & set(impaired.holdout_target.tolist())
    assert int((~impaired.count_mask).sum()) <= round(holdout * num_nodes)
    assert holdout > 0 or bool(impaired.count_mask.all())


def test_held_out_nodes_are_seen_in_no_draw():
    """The held-out error is on new vectors, an input or a target in no draw; held-out counts are trained on in none."""
    data = graph(40, [(i, (i + step) % 40) for i in range(40) for step in (1, 3, 7)])
    draws = [impair(data, 0.25, 0, holdout=0.3, draw=draw) for draw in range(8)]
    held = {tuple(d.hidden_id[d.holdout_target.unique()].tolist()) for d in draws}
    unseen = set().union(*held)
    assert len(unseen) == 3  # round(.3 * 10), and every node has neighbours
    for impaired in draws:
        assert not unseen & set(impaired.node_id.tolist())
        assert not unseen & set(impaired.hidden_id[impaired.pair_target].tolist())
    assert len({tuple(d.hidden_id.tolist()) for d in draws}) == 8
    trained = set().union(*[set(d.node_id[d.count_mask].tolist()) for d in draws])
    assert all(not trained & set(d.node_id[~d.count_mask].tolist()) for d in draws)
    seen = set().union(*[set(d.hidden_id[d.pair_target].tolist()) for d in draws])
    assert len(seen) > 20  # many draws show most nodes as targets, one shows 7


def test_data_module_cycles_through_the_draws():
    class Client:
        data, schema = GAMMA, {"num_features": 2, "num_classes": 3}

    module = ImpairedDataModule(Client(), hide_portion=0.34, draws=4, holdout=0.5)
    batches = list(module.train_dataloader())
    expected = [impair(GAMMA, 0.34, 0, 0.5, draw).hidden_id.tolist() for draw in range(6)]
    assert [batch.hidden_id.tolist() for batch in batches] == expected[:4]
    assert [batch.hidden_id.tolist() for batch in module.val_dataloader()] == expected[:1]
    assert module.schema["num_classes"] == 3 and module.train_dataloader() is module.train_dataloader()
    later = ImpairedDataModule(Client(), hide_portion=0.34, draws=2, holdout=0.5, first_draw=4)
    assert [batch.hidden_id.tolist() for batch in later.train_dataloader()] == expected[4:]
    assert [batch.hidden_id.tolist() for batch in later.val_dataloader()] == expected[:1]
    with pytest.raises(ValueError, match="`draws: 0` must be at least 1"):
        ImpairedDataModule(Client(), draws=0)


@pytest.mark.parametrize(
    ("data", "share", "num_hidden"),
    [
        (GAMMA, 0.0, 0),
        (graph(1, []), 0.9, 0),
        (graph(2, [(0, 1)]), 0.99, 1),  # round(1.98) = 2, but one node stays
        (graph(4, []), 0.5, 2),
        (GAMMA, 0.05, 0),  # round(.3) = 0
        (graph(90, []), 0.35, 32),  # round(31.5) = 32, though the float .35 * 90 lies below it
    ],
    ids=["h=0", "one node", "almost all", "no edges", "share of none", "as written"],
)
def test_edge_cases(data, share, num_hidden):
    impaired = impair(data, share, 0)
    assert len(impaired.hidden_id) == num_hidden and impaired.num_nodes == data.num_nodes - num_hidden
    assert impaired.hidden_x.shape == (num_hidden, 2)
    if num_hidden == 0:
        assert impaired.missing_count.sum() == 0 and impaired.pair_ptr.sum() == 0
        assert torch.equal(impaired.x, data.x) and torch.equal(impaired.edge_index, data.edge_index)


def test_sparse_features():
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0], [3.0, 4.0], [0.0, 5.0], [6.0, 0.0]])
    dense, sparse = GAMMA.clone(), GAMMA.clone()
    dense.x, sparse.x = x, x.to_sparse_csr()
    from_dense, from_sparse = impair(dense, 0.34, 1), impair(sparse, 0.34, 1)
    assert from_sparse.x.layout == torch.sparse_csr and torch.equal(from_sparse.x.to_dense(), from_dense.x)
    assert torch.equal(from_sparse.hidden_x, from_dense.hidden_x)


def test_refusals():
    with pytest.raises(ValueError, match="`hide_portion: 1.0` must be at least 0 and below 1"):
        impair(GAMMA, 1.0, 0)
    with pytest.raises(ValueError, match="`holdout: -0.1`"):
        impair(GAMMA, 0.1, 0, holdout=-0.1)
    with pytest.raises(ValueError, match="without nodes"):
        impair(graph(0, []), 0.1, 0)


def test_what_is_hidden_by_default():
    """h = .15 of 40 nodes is 6, of which round(.1 * 6) = 1 is held out; 50 draws, from 0 on."""
    data = graph(40, [(i, (i + step) % 40) for i in range(40) for step in (1, 3, 7)])

    class Client:
        schema = {}

    Client.data = data
    module = ImpairedDataModule(Client())
    first = module.train_dataloader().dataset[0]
    assert len(module.train_dataloader()) == 50 and len(first.hidden_id) == 6
    assert len(first.holdout_target.unique()) == 1 and int((~first.count_mask).sum()) <= 4
    assert torch.equal(first.hidden_id, impair(data, 0.15, 0, 0.1, 0).hidden_id)
    assert bool(impair(data, 0.15, 0).count_mask.all())
