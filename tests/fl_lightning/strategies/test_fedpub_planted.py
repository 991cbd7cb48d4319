"""FED-PUB's equations put together by hand, on a planted federation of two groups: does the similarity work?

No federation engine here: networks, masks, embeddings and aggregation only, one full-batch Adam step a round. On Cora
the similarity changes nothing measurable (docs/papers/fedpub.md#what-the-similarity-does), so this is where it shows what it
is for.
"""

import pytest
import torch
import torch.nn.functional as F

from datamodules.planted import PlantedDataModule
from fl_lightning.strategies.fedpub import proxy_graph
from fl_lightning.strategies.mixtures import cosine_similarity, personal_average, similarity_weights
from lit_models.functional_embedding import functional_embedding
from lit_models.masked_gcn import GCNWithHead, MaskedGCN
from lit_models.objectives.fedpub import MaskedProximal

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
SAME = (GROUPS[:, None] == GROUPS) & ~torch.eye(6, dtype=torch.bool)
OTHER = GROUPS[:, None] != GROUPS


@pytest.fixture(scope="module")
def graphs():
    data = PlantedDataModule(num_clients=6, num_groups=2, split="random_20_40_40")
    data.setup()
    assert data.groups == GROUPS.tolist()
    return [client.data for client in data.client_datamodules()]


def _partners(matrix):
    """The three clients that each client is closest to, itself included."""
    return [set(row.topk(3).indices.tolist()) for row in matrix]


class Federation:
    """K networks with their optimisers; ``shared`` is the stacked flat weights without the masks, shape (K, P)."""

    def __init__(self, encoder, graphs):
        torch.manual_seed(0)
        self.graphs, self.networks = graphs, []
        for _ in graphs:
            network = encoder()
            network.build(graphs[0].x.size(1), 4)
            self.networks.append(network)
        for network in self.networks[1:]:
            network.load_state_dict(self.networks[0].state_dict())
        self.optimizers = [torch.optim.Adam(n.parameters(), lr=0.01, weight_decay=1e-6) for n in self.networks]
        self.objectives = [MaskedProximal() if encoder is MaskedGCN else None for _ in graphs]
        self.proxy = proxy_graph(graphs[0].x.size(1), seed=0)

    def _entries(self, network):
        return [p for name, p in network.named_parameters() if not name.endswith(".mask")]

    def shared(self):
        return torch.stack([torch.cat([p.detach().flatten() for p in self._entries(n)]) for n in self.networks])

    def receive(self, weights):
        for network, row in zip(self.networks, weights, strict=True):
            torch.nn.utils.vector_to_parameters(row, self._entries(network))

    def train(self, steps=1):
        for network, graph, optimizer, objective in zip(
            self.networks, self.graphs, self.optimizers, self.objectives, strict=True
        ):
            network.train()
            if objective:
                objective.on_train_start(network)
            for _ in range(steps):
                logits = network(graph.x, graph.edge_index)
                loss = F.cross_entropy(logits[graph.train_mask], graph.y[graph.train_mask])
                if objective:
                    loss = loss + sum(objective.penalties(network).values())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    @torch.no_grad()
    def accuracy(self):
        right = []
        for network, graph in zip(self.networks, self.graphs, strict=True):
            found = network.eval()(graph.x, graph.edge_index).argmax(1) == graph.y
            right.append(found[graph.test_mask].float().mean())
        return torch.stack(right).mean().item()

    def embeddings(self):
        return torch.stack([functional_embedding(n, self.proxy.x, self.proxy.edge_index) for n in self.networks])


def test_functional_embeddings_separate_the_groups_after_twenty_local_steps(graphs):
    clients = Federation(MaskedGCN, graphs)
    clients.train(steps=20)
    similarity = cosine_similarity(clients.embeddings())
    # each client overfits its own 40 nodes by now, so single pairs are noisy: the means are not
    assert similarity[SAME].mean() > similarity[OTHER].mean() + 0.3


def test_fedpub_finds_the_groups_and_beats_fedavg(graphs):
    fedavg = Federation(GCNWithHead, graphs)
    for _ in range(20):
        fedavg.train()
        scores = fedavg.accuracy()  # after the local step, as FED-PUB's authors do
        fedavg.receive(fedavg.shared().mean(0).expand(6, -1))
    fedpub = Federation(MaskedGCN, graphs)
    for _ in range(20):
        fedpub.train()
        personal = fedpub.accuracy()
        alpha = similarity_weights(fedpub.embeddings(), tau=10.0)
        assert alpha[SAME].mean() > 3 * alpha[OTHER].mean()
        fedpub.receive(personal_average(alpha, fedpub.shared()))
    assert _partners(alpha) == [{0, 1, 2}] * 3 + [{3, 4, 5}] * 3
    assert personal > scores + 0.05
