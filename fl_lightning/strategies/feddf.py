r"""FedDF: ensemble distillation for robust model fusion (Lin, Kong, Stich, Jaggi; NeurIPS 2020), for models of one kind.

theta_0    = sum_k w_k theta_k                               FedAvg's average begins the student          FedAvg.aggregate
theta_j+1  = theta_j - eta_j Adam(grad KL(sigma(mean_k f(x; theta_k)) || sigma(f(x; theta_j))))           distil

x are data that the server has: they need no labels, and what labels they have is taken off before any model sees them. f and
the distance are the module's: see ``lit_models/distillation.py``. Adam begins anew in each round, and its rate falls by a
cosine from ``lr`` to 0 over the steps, as in the paper. Other than there, the number of steps is fixed (early stopping would
ask the server's validation labels), batches come in their order, and models are in evaluation mode (no dropout, the averaged
running statistics): nothing is drawn. The teachers weigh alike; where only one has trained, the average is its model, and
nothing is distilled (Adam would take whole steps along rounding). In rows that a client has not trained (``untrained_rows``:
the output of a task of which it has no label) its model has the average's; a row that nobody has trained stays.

What leaves a client: its weights, as with FedAvg. But the server runs every client's model by itself, so a sum that hides the
single models (secure aggregation) will not do. The server computes on its CPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch_geometric.data import Data

from fl_lightning.engine.entries import Entries
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.predict_methods import LOADER, has_loader
from fl_lightning.strategies.fedavg import FedAvg, untrained_rows
from fl_lightning.strategies.fedpub import proxy_graph
from lit_models.distillation import OUTPUT_KINDS, OutputKind, distance

KEY = "`federation.strategy.init_args"
LABELS = ("y", "train_mask", "val_mask", "test_mask")
"""What is taken off a graph before a model sees it."""
NOT_APART = "is data of the federation. `FedDF` distils on data that are neither trained nor scored on."
FEATURES = ("num_features", "atom_features", "bond_features", "positions")
"""Of a schema: what the server's data and the clients' must have alike."""


def distil(
    module: L.LightningModule,
    kind: OutputKind,
    batches: Sequence[Any],
    teacher: Sequence[Tensor],
    steps: int,
    lr: float,
    temperature: float,
) -> None:
    """Pull a module's outputs towards the teachers', by Adam with a cosine from ``lr`` to 0.

    Args:
        module: The student, in place; all that requires a gradient learns.
        kind: What its outputs are.
        batches: Step j takes batch j modulo their number.
        teacher: Mean outputs of the teachers for each batch.
        steps: Optimiser steps.
        lr: First learning rate.
        temperature: See :func:`~lit_models.distillation.distance`.
    """
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=lr)
    schedule = CosineAnnealingLR(optimizer, T_max=steps)
    for step in range(steps):
        optimizer.zero_grad()
        place = step % len(batches)
        distance(kind, teacher[place], module(batches[place]), temperature).backward()
        optimizer.step()
        schedule.step()


class FedDF(FedAvg):
    """FedAvg, whose average then learns to say what the participants' models say together, on data of the server's own.

    Args:
        data: The server's data: a data module with ``predict_dataloader``, whose batches are PyG's ``Data`` (any of graphs or
            molecules of ``datamodules``; ``datamodules.UnlabelledMolecules`` reads bare SMILES) or tensors. It must be none of
            the federation's. Default: for graphs a random one (FED-PUB's proxy graph), which holds nobody's data.
        steps: Optimiser steps in each round.
        lr: Adam's first learning rate, above 0; 1e-3 is the paper's.
        temperature: Of the softmax, above 0; 1 is the paper's.
        graph_seed: Of the random graph.
        weighting: Of the average, as in ``FedAvg``.
    """

    takes_aggregation = False  # those that it leaves out would still be teachers

    def __init__(
        self,
        data: L.LightningDataModule | None = None,
        steps: int = 100,
        lr: float = 1e-3,
        temperature: float = 1.0,
        graph_seed: int = 0,
        weighting: Literal["uniform", "num_samples"] = "num_samples",
    ) -> None:
        super().__init__(weighting)
        if steps < 1:
            raise ValueError(f"{KEY}.steps` must be at least 1, got {steps}. Without a step it is `FedAvg`.")
        for name, value in (("lr", lr), ("temperature", temperature)):
            if not 0 < value < math.inf:
                raise ValueError(f"{KEY}.{name}` must be a number above 0, got {value}.")
        self.data, self.steps, self.lr, self.temperature, self.graph_seed = data, steps, lr, temperature, graph_seed

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        super().check(module, datamodules, server_data)
        name, kind = type(module).__name__, getattr(module, "output_kind", None)
        if kind not in OUTPUT_KINDS:
            raise ValueError(
                f"`FedDF` compares outputs, and must know whether those of `{name}` are {', '.join(OUTPUT_KINDS)}; "
                f'`{name}.output_kind` is {kind!r}. Write `output_kind = "classes"` (logits of a softmax), `"labels"` (of a '
                'sigmoid each) or `"values"` into the class, whose `forward(batch)` gives them, or take '
                "`federation.strategy: FedAvg`."
            )
        schema = dict(getattr(module, "schema", None) or {})
        if self.data is None and "num_features" not in schema:
            raise ValueError(
                f"`FedDF` makes a random graph where it has no data, but `{name}` is none for graphs of nodes. Write "
                f"{KEY}.data`: for molecules `{{class_path: datamodules.UnlabelledMolecules, init_args: {{files: m.csv}}}}`, "
                "else a data module with `predict_dataloader`."
            )
        if self.data is not None:
            self._check_apart([*datamodules, *([] if server_data is None else [server_data])])
        # A model of the server's own: the one that evaluates has the global weights, and its state is not ours to change.
        self._module, self._kind = copy.deepcopy(module).eval(), kind
        self._schema, self._theirs = schema, [*datamodules, *([] if server_data is None else [server_data])]

    def _check_apart(self, theirs: Sequence[L.LightningDataModule]) -> None:
        found = f"{KEY}.data: {type(self.data).__name__}`"
        if not has_loader(self.data):  # type: ignore[arg-type]  # asked only if there are any
            raise ValueError(f"{found} has no `predict_dataloader`, which gives `FedDF` what to distil on. {LOADER}")
        if any(self.data is one for one in theirs):
            raise ValueError(f"{found} {NOT_APART}")

    def start(self, initial: dict[str, Tensor], private: Sequence[str]) -> None:
        super().start(initial, private)
        if private:
            raise ValueError(
                f"`FedDF` runs the clients' models at the server, but {', '.join(private)} stay with them. Leave out "
                "`federation.private` and `federation.batch_norm: local`, or take `federation.strategy: FedAvg`."
            )
        self._entries = Entries(self._module)
        self._batches = self._load()

    def _load(self) -> list[Any]:
        """The server's batches, without labels."""
        if self.data is None:
            graph = proxy_graph(int(self._schema["num_features"]), seed=self.graph_seed)
            return [_without_labels(graph)]
        self.data.prepare_data()
        self.data.setup("predict")
        found, own = f"{KEY}.data: {type(self.data).__name__}`", getattr(self.data, "schema", None) or {}
        for key in FEATURES:
            if key in own and key in self._schema and own[key] != self._schema[key]:
                raise ValueError(f"{found} has {key}: {own[key]}, but the clients' data have {self._schema[key]}.")
        if hasattr(self.data, "fingerprint"):
            mine = self.data.fingerprint()
            if any(hasattr(one, "fingerprint") and one.fingerprint() == mine for one in self._theirs):
                raise ValueError(f"{found} {NOT_APART}")
        batches = [_without_labels(batch) for batch in self.data.predict_dataloader()]
        if not batches:
            raise ValueError(f"{found} gives no batch; `FedDF` has nothing to distil on.")
        return batches

    def aggregate(self, federation: Federation, round: int, replies: Mapping[int, Payload]) -> None:
        super().aggregate(federation, round, replies)
        if len(replies) == 1:
            return
        teacher = self._teachers(replies)
        self._entries.set(self.weights)
        distil(self._module, self._kind, self._batches, teacher, self.steps, self.lr, self.temperature)
        learnt = [name for name, parameter in self._module.named_parameters() if parameter.requires_grad]
        student = self._entries.get(learnt)
        for name, rows in self._still.items():
            if name in student:
                student[name][rows] = self.weights[name][rows]
        self.weights = {**self.weights, **student}

    @torch.no_grad()
    def _teachers(self, replies: Mapping[int, Payload]) -> list[Tensor]:
        """Mean outputs of the clients' models, for each batch, in float64 and cast back."""
        outputs: list[list[Tensor]] = []
        for reply, untrained in zip(replies.values(), untrained_rows(replies), strict=True):
            model = {name: tensor.clone() if name in untrained else tensor for name, tensor in reply.tensors.items()}
            for name, rows in untrained.items():
                model[name][rows] = self.weights[name][rows]
            self._entries.set({**self.weights, **model})
            outputs.append([self._module(batch) for batch in self._batches])
        return [torch.stack(of_batch).double().mean(0).to(of_batch[0].dtype) for of_batch in zip(*outputs, strict=True)]


def _without_labels(batch: Any) -> Any:
    """A batch as models may see it.

    Raises:
        ValueError: It is neither a graph nor a tensor, so that one cannot know where its labels are.
    """
    if isinstance(batch, Tensor):
        return batch
    if not isinstance(batch, Data):
        raise ValueError(
            f"{KEY}.data` gives batches that are {type(batch).__name__}, in which `FedDF` cannot tell labels from inputs. Let "
            "`predict_dataloader` give PyG's `Data` or `Batch`, or tensors of inputs."
        )
    bare = copy.copy(batch)
    for name in LABELS:
        if name in bare:
            del bare[name]
    return bare
