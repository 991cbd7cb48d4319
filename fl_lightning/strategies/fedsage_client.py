r"""FedSage+, client half: what a client answers in each step of the protocol (``fedsage.py``).

Generator, its optimisers and the mended graph stay here; the encoder never leaves. What must survive until the next step is in
the client's store, so that a half which was built anew goes on with the same bits. Equations: ``lit_models/neighgen/``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.utils import degree

from datamodules.impairing import ImpairedDataModule, impair
from datamodules.mending import constant_features, mend
from fl_lightning.engine.client import Client, ClientHalf, protocol_step
from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.optimizer_state import flatten_optimizers, restore_optimizers
from fl_lightning.engine.seeds import derive, stream
from fl_lightning.strategies.prototypes import PROTOTYPES, look, mended_with_prototypes, sums_of
from lit_models.neighgen import LitNeighGen
from lit_models.neighgen.exchange import (
    Query,
    exchange_step,
    fgen_optimizer,
    fgen_weights,
    make_query,
    peer_gradient,
    train_fgen_alone,
)
from lit_models.neighgen.report import report_quality

if TYPE_CHECKING:
    from fl_lightning.strategies.fedsage import FedSagePlus

REPORT_EVERY = 5
"""Rounds of the exchange from one report to the next: on wide features a report costs a third of a round."""


class FedSagePlusClient(ClientHalf):
    """Answers the steps ``pretrain``, ``query``, ``peer_gradient``, ``exchange`` and ``mend``, and trains on the mended graph.

    Args:
        strategy: Gives the generator's template and the schedule.
    """

    def __init__(self, strategy: FedSagePlus) -> None:
        super().__init__()
        self.template = copy.deepcopy(strategy.generator)
        self.hide_portion, self.draws, self.holdout = strategy.hide_portion, strategy.draws, strategy.holdout
        self.alpha, self.min_batch, self.mending = strategy.alpha, strategy.min_batch, strategy.mending
        self.exchange_rounds = strategy.exchange_rounds
        self.diagnostics, self.needs_counts = strategy.diagnostics, strategy.needs_counts
        self.counts, self.prototypes = strategy.counts, strategy.prototypes

    # ---- phase 1 ----------------------------------------------------------------------------------------------------

    @protocol_step
    def pretrain(self, client: Client, request: Payload) -> Payload:
        """One pass over the impaired graphs: L^d and L^f local. Nothing leaves but scalars."""
        if not self._can_hide(client):
            return Payload()
        generator = self._generator(client)
        first, seed = client.round * self.draws, self._hide_seed(client)
        data = ImpairedDataModule(client.datamodule, self.hide_portion, self.draws, self.holdout, seed, first_draw=first)
        skip = ("max_steps", "max_epochs", "max_time", "callbacks", "fast_dev_run")
        arguments = {k: v for k, v in client.settings.trainer_args.items() if k not in skip}
        trainer = LocalTrainer(generator, {**arguments, "max_epochs": 1}, fast_loops=client.settings.fast_loops)
        with stream(client.settings.seed, "pretrain", client.round, client.id):
            metrics = trainer.fit(data, client.store.section("generator_optimizer"))
        client.store.put_section("generator_optimizer", trainer.optimizer_state)
        self._keep(client, generator)
        return self._report(client, generator, metrics)

    # ---- phase 2 ----------------------------------------------------------------------------------------------------

    @protocol_step
    def query(self, client: Client, request: Payload) -> Payload:
        """2a: U = z + eps of the nodes with k >= 1, their counts and fGen's weights; nothing if they are too few."""
        if not client.store.section("generator"):  # nothing to hide, or phase 1 has failed here
            return Payload()
        generator = self._generator(client)
        query = self._query(client, generator)
        if int(query.counts.sum()) < self.min_batch:
            return Payload()
        weights = {f"theta_f/{name}": weight for name, weight in fgen_weights(generator).items()}
        return Payload({"u": query.u[: query.sent], "counts": query.counts, **weights}, {"num_nodes": query.num_nodes})

    @protocol_step
    def peer_gradient(self, client: Client, request: Payload) -> Payload:
        """2b: for every asking client the gradient of the cross term over this client's features, summed over its batch."""
        generator = self._fresh(client)
        answers: dict[str, Tensor] = {}
        for asker, num_nodes in request.values["num_nodes"].items():
            asked = {k.removeprefix(f"{asker}/"): t for k, t in request.tensors.items() if k.startswith(f"{asker}/")}
            gradient = peer_gradient(
                generator.fgen,
                {k.removeprefix("theta_f/"): t for k, t in asked.items() if k.startswith("theta_f/")},
                asked["u"],
                asked["counts"],
                client.datamodule.data.x,
                num_nodes=num_nodes,
                slot_seed=_slot_seed(client, int(asker)),
                alpha=self.alpha,
                sampler=generator.sampler,
                min_batch=self.min_batch,
            )
            answers |= {f"{asker}/{name}": tensor for name, tensor in gradient.items()}
        return Payload(answers)

    @protocol_step
    def exchange(self, client: Client, request: Payload) -> Payload:
        """2d: one step of fGen with the local gradient and the peers' sum, at the weights and the U that were sent."""
        if not client.store.section("generator"):
            return Payload()
        generator = self._generator(client)
        query = self._query(client, generator)
        train_fgen_alone(generator)
        optimizer = fgen_optimizer(generator)
        kept = client.store.section("exchange_optimizer")
        if kept:
            restore_optimizers([optimizer], kept)
        exchange_step(generator, self._impaired(client), query, dict(request.tensors) or None, optimizer)
        client.store.put_section("exchange_optimizer", flatten_optimizers([optimizer]))
        self._keep(client, generator)
        due = (client.round + 1) % REPORT_EVERY == 0 or client.round + 1 == self.exchange_rounds
        return self._report(client, generator, {}) if due else Payload()

    # ---- phase 3 ----------------------------------------------------------------------------------------------------

    @protocol_step
    def class_sums(self, client: Client, request: Payload) -> Payload:
        """Sums over training nodes of a class, for prototypes."""
        return sums_of(client, self.prototypes.min_nodes)

    @protocol_step
    def mend(self, client: Client, request: Payload) -> Payload:
        """Decide on the neighbours to add. They follow from the generator's weights and a seed, so only these are kept."""
        section = PROTOTYPES if self.mending == "prototype" else "oracle"
        client.store.put_section(section, dict(request.tensors))  # nothing with another `mending`
        client.store.values |= request.values
        client.store.put_section("generator_optimizer", {})
        client.store.put_section("exchange_optimizer", {})
        client.store.values["mended"] = True
        if not self.diagnostics:
            return Payload()
        if self.mending == "prototype":  # nothing is mended until the model has learnt something
            counts = self._counts_for_prototypes(client)
            return Payload(values={"metrics": {"generated_nodes": 0.0 if counts is None else float(counts.sum())}})
        before, after = client.datamodule.data, self._mended(client).data
        degrees = torch.bincount(degree(after.edge_index[0], after.num_nodes).long())
        metrics = {"generated_nodes": float(after.num_nodes - before.num_nodes)}
        return Payload(values={"metrics": metrics, "pictures": {"mended_degrees": degrees.tolist()}})

    # ---- phase 4: FedSage on the mended subgraph ----------------------------------------------------------------------

    def fit(self, client: Client, request: Payload) -> Payload:
        last = client.store.values.get("looked")
        if self.mending == "prototype" and self.prototypes.is_due(client.round, client.settings.num_rounds, last):
            client.load(request.tensors)
            look(client, self._mended(client), self.prototypes.labels)
            client.forget("mended")
        client.datamodule = self._mended(client)
        return super().fit(client, request)

    def evaluate(self, client: Client, request: Payload) -> Payload:
        client.datamodule = self._mended(client)
        return super().evaluate(client, request)

    def predict(self, client: Client, request: Payload) -> Payload:
        client.datamodule = self._mended(client)
        return super().predict(client, request)

    # ---- helpers ------------------------------------------------------------------------------------------------------

    def _can_hide(self, client: Client) -> bool:
        nodes: int = client.datamodule.data.num_nodes
        return round(self.hide_portion * nodes) >= 1 and nodes >= 2

    def _hide_seed(self, client: Client) -> int:
        return derive(client.settings.seed, "impair", client=client.id)

    def _fresh(self, client: Client) -> LitNeighGen:
        """A generator as every client starts with it."""
        generator = copy.deepcopy(self.template)
        with stream(client.settings.seed, "generator weights"):
            generator.build(client.datamodule.schema)
        return generator

    def _generator(self, client: Client) -> LitNeighGen:
        """This client's generator, from its store."""
        generator = self._fresh(client)
        kept = client.store.section("generator")
        if kept:
            generator.load_state_dict(kept)
        return generator

    def _keep(self, client: Client, generator: LitNeighGen) -> None:
        state = {n: t.detach().to("cpu", copy=True) for n, t in generator.state_dict().items()}
        client.store.put_section("generator", state)

    def _impaired(self, client: Client) -> Any:
        draw = client.round
        data, seed = client.datamodule.data, self._hide_seed(client)
        return client.memo("impaired", draw, lambda: impair(data, self.hide_portion, seed, self.holdout, draw))

    def _query(self, client: Client, generator: LitNeighGen) -> Query:
        return make_query(generator, self._impaired(client), _slot_seed(client, client.id))

    def _mended(self, client: Client) -> Any:
        """The client's data module over its mended graph; as it is before mending."""
        if not client.store.values.get("mended"):
            return client.datamodule
        original = client.datamodule
        looked = client.store.values.get("looked")
        if self.mending == "prototype" and looked is None:
            return original

        def compute() -> Any:
            if self.mending == "prototype":
                counts = self._counts_for_prototypes(client)
                return original if counts is None else mended_with_prototypes(client, counts, self.prototypes.nodes)
            if self.mending == "oracle":
                kept = client.store.section("oracle")
                return original.with_data(mend(original.data, kept["counts"], kept["features"]))
            known = original.links_elsewhere if self.needs_counts else None
            if known is not None and self.mending != "generator":
                counts = known.clamp(max=self.template.num_slots)
            elif client.store.section("generator"):
                counts, features = self._generate(client, known)
            else:  # nothing to hide, or phase 1 has failed here
                return original
            if self.mending in ("zero", "mean"):
                features = constant_features(original.data.x, counts, self.mending)
            return original.with_data(mend(original.data, counts, features)) if int(counts.sum()) else original

        return client.memo("mended", looked, compute)

    def _generate(self, client: Client, known: Tensor | None) -> tuple[Tensor, Tensor]:
        seed = derive(client.settings.seed, "mend", client=client.id)
        return self._generator(client).generate(client.datamodule.data, seed, known)

    def _counts_for_prototypes(self, client: Client) -> Tensor | None:
        """How many neighbours each node misses, ``(N,)``: known, the clients' mean, or what dGen says (if there is one)."""
        original = client.datamodule
        known: Tensor | None = getattr(original, "links_elsewhere", None)
        if known is not None and self.counts in ("known", "any"):  # `known` was checked before round 1
            return known.clamp(max=1 if self.counts == "any" else self.template.num_slots)
        if self.counts in ("any", "mean", "one"):
            number = int(client.store.values["mean_count"]) if self.counts == "mean" else 1
            return torch.full((original.data.num_nodes,), number)
        return self._generate(client, None)[0] if client.store.section("generator") else None

    def _report(self, client: Client, generator: LitNeighGen, metrics: Mapping[str, float]) -> Payload:
        if not self.diagnostics:
            return Payload()
        batch = self._impaired(client)
        figures = {**metrics, **report_quality(generator, batch, seed=derive(client.settings.seed, "report"))}
        with torch.no_grad():
            predicted = generator.eval()(batch)
        table = torch.zeros(generator.num_slots + 1, generator.num_slots + 1, dtype=torch.long)
        true = batch.missing_count.clamp(max=generator.num_slots)
        guess = predicted.round().clamp(0, generator.num_slots).long()
        table.index_put_((true, guess), torch.ones_like(true), accumulate=True)
        return Payload(values={"metrics": figures, "pictures": {"missing_true_by_predicted": table.tolist()}})


def _slot_seed(client: Client, asker: int) -> int:
    """Public: both sides derive the drawn slots of a query from (run seed, step, asking client)."""
    return derive(client.settings.seed, "slots", client.round, asker)
