r"""AdaFGL: adaptive federated graph learning (Li, Wu, Zhang, Sun, Li, Wang; ICDE 2024, arXiv 2401.11750).

Step 1    FedAvg of the shared encoder                                   fedavg.py
Step 2    each client on its own: the encoder stays as the server has it, heads are trained on the client's graph as
          the encoder sees it; how they are mixed, HCS tells              lit_models/adaptive_propagation.py

Step 1 are the first ``shared_rounds`` rounds, step 2 are all others: so a personal round is a round like any, with local
epochs, validation, a checkpoint and a place among the best. Scores of step 1 are of the global model, those of step 2 of each
client's own; a client that has not taken part in a personal round yet is scored with the global model. The rounds are counted
from the beginning, so that a run that is resumed with more rounds goes on with step 2.

The authors train 200 epochs in step 2, in one go: with E local epochs that is ``shared_rounds + 200 / E`` rounds, with the
optimiser's state kept. What was chosen where paper and codes differ stands with the equations.

Measured once (`configs/adafgl_cora_disjoint_10.yaml`, seed 0, client mean of validation accuracy): after 60, 80 and 100 shared
rounds FedAvg has .738, .783 and .811, the first personal round .801, .811 and .819; after 40, 20 and 40 of them it is .798,
.807 and .807. So the step is worth most where FedAvg has not come to its end. Test accuracy of the best round by validation:
.813, .819 and .830; 100 rounds of FedAvg alone .818 (140 were not tried). With the authors' weight decay of 5e-4, on normalised
features, 100 rounds of FedAvg have .398, and 80 with 20 personal ones .774.

What leaves a client: in step 1 its weights, as in FedAvg; in step 2 no tensor, and beside its scores the loss of its training.
HCS, P and the heads stay. A client keeps no copy of the encoder: the server sends it in step 2, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
from torch import Tensor

from fl_lightning.engine.client import Client, ClientHalf
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.seeds import stream
from fl_lightning.strategies.fedavg import FedAvg
from lit_models.adaptive_node_classifier import HOMOPHILY, LitAdaptiveNodeClassifier
from lit_models.adaptive_propagation import check_size, homophily_confidence


class AdaFGL(FedAvg):
    """FedAvg for some rounds; from then on the model stays, and each client trains heads of its own over it.

    Early stopping (``federation.early_stopping``) may end a run before the personal rounds. An objective of the module is for
    the shared rounds.

    Args:
        shared_rounds: Rounds of FedAvg; all later ones are personal. At least 1, and fewer than ``federation.num_rounds``.
        weighting: ``num_samples`` or ``uniform``, as for ``FedAvg``.
    """

    carry_optimizer_state = True
    _is_personal = False

    def __init__(self, shared_rounds: int, weighting: Literal["uniform", "num_samples"] = "num_samples") -> None:
        super().__init__(weighting)
        if shared_rounds < 1:
            raise ValueError(f"`federation.strategy.init_args.shared_rounds` must be at least 1, got {shared_rounds}.")
        self.shared_rounds = shared_rounds

    def client_half(self) -> ClientHalf:
        return AdaFGLClient(self.shared_rounds)

    def check_rounds(self, num_rounds: int) -> None:
        if self.shared_rounds >= num_rounds:
            raise ValueError(
                f"`AdaFGL` trains each client's own heads in the rounds after the first {self.shared_rounds} "
                f"(`federation.strategy.init_args.shared_rounds`), but `federation.num_rounds` is {num_rounds}, so that there "
                f"are none. Write `federation.num_rounds: {self.shared_rounds + 1}` or more, or `federation.strategy: FedAvg`."
            )

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        super().check(module, datamodules, server_data)
        if not isinstance(module, LitAdaptiveNodeClassifier):
            raise ValueError(
                f"`AdaFGL` trains heads of each client's own over a shared encoder, but `{type(module).__name__}` has none. "
                "Use `model: lit_models.LitAdaptiveNodeClassifier`, or `federation.strategy: FedAvg`."
            )
        for datamodule in datamodules:
            for name in ("batch_size", "eval_batch_size"):
                size = getattr(datamodule, name, None)
                if size is not None:
                    raise ValueError(
                        f"`AdaFGL` compares all pairs of a client's nodes, so a batch is the client's graph, but "
                        f"`data.init_args.{name}` is {size}. Leave it out, or use `federation.strategy: FedAvg`."
                    )
            nodes = getattr(getattr(datamodule, "data", None), "num_nodes", None)  # not known of a client elsewhere
            check_size(nodes or 0)

    def round(self, federation: Federation, round: int, clients: Sequence[int]) -> dict[int, dict[str, float]]:
        self._is_personal = round >= self.shared_rounds
        return super().round(federation, round, clients)

    def uploads(self) -> Mapping[str, Tensor]:
        """The weights, and nothing in a personal round, so that the average changes nothing."""
        return {} if self._is_personal else super().uploads()


class AdaFGLClient(ClientHalf):
    """Takes HCS in a personal round, which tells the module to train its heads.

    Args:
        shared_rounds: As for `AdaFGL`.
    """

    def __init__(self, shared_rounds: int) -> None:
        super().__init__()
        self.shared_rounds = shared_rounds

    def fit(self, client: Client, request: Payload) -> Payload:
        if client.round >= self.shared_rounds and client.num_train_samples:  # else its heads would be scored untrained
            take_confidence(client)
        return super().fit(client, request)

    def reply_tensors(self, client: Client) -> dict[str, Tensor]:
        return {} if client.round >= self.shared_rounds else client.upload()


def take_confidence(client: Client) -> None:
    """Remember HCS of the client's training labels, the same in every round, as the module's own entry."""
    graph: Any = client.datamodule.data
    known = graph.train_mask & (graph.y >= 0)  # no other label is looked at
    with stream(client.settings.seed, "halves of the labels", 0, client.id):
        confidence = homophily_confidence(graph.y, known, graph.edge_index, int(client.datamodule.schema["num_classes"]))
    client.store.put_section("module", {**client.store.section("module"), HOMOPHILY: confidence})
