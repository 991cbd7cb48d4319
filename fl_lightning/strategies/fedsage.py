r"""FedSage+ (Zhang et al., NeurIPS 2021): FedSage on subgraphs mended by a missing-neighbour generator. Server and protocol.

Phase                  request (down)                            reply (up)
1  generator           ``pretrain``                              nothing but scalars
2a exchange            ``query``                                 U_i = z + eps, k, theta_i^f; scalar N̄_i
2b                     ``peer_gradient``: those of all i != j    g_{j->i}, summed over i's batch
2c, 2d                 ``exchange``: sum over j of g_{j->i}      nothing but scalars
3  mending             ``mend``                                  nothing but scalars
4  rounds              FedAvg of the classifier on the mended subgraphs, tested on the untouched global graph

The protocol, and what must not cross: docs/papers/fedsage_plus.md#protocol. The client's equations are in
``lit_models/neighgen*.py``, impairing and mending in ``datamodules``.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor
from torch_geometric.utils import degree

from datamodules.impairing import ImpairedDataModule, impair
from datamodules.mending import constant_features, cross_neighbours, mend
from fl_lightning.engine.client import Client, ClientHalf, protocol_step
from fl_lightning.engine.diagnostics import Diagnostics, Histogram
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.local import LocalTrainer
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.optimizer_state import flatten_optimizers, restore_optimizers
from fl_lightning.engine.replies import Expected, figures_reply, positive_count
from fl_lightning.engine.seeds import derive, stream
from fl_lightning.strategies.base import Phase, PhaseCosts
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.strategies.fedsage_costs import phase_costs
from lit_models.neighgen import LitNeighGen
from lit_models.neighgen_generators import peer_gradient

MENDINGS = ("generator", "zero", "mean", "oracle", "none")
COUNTS = ("predicted", "known")
REPORT_EVERY = 5
"""Rounds of the exchange from one report to the next: on wide features a report costs a third of a round."""


class FedSagePlus(FedAvg):
    """Trains a neighbour generator on every client, lets the clients' generators learn from each other's features, mends the
    subgraphs with it, and then runs FedSage.

    Args:
        weighting: As in ``FedAvg``, of the classifier's rounds; ``uniform`` is the paper's.
        generator: NeighGen; its profile sets the lambdas.
        hide_portion: h, the share of nodes that are hidden to train the generator. ``0``: no generator; the run is FedSage.
        pretrain_steps: Optimiser steps of phase 1, rounded up to whole passes over ``draws``.
        exchange_rounds: Federated generator rounds of phase 2.
        alpha: Weight of the cross-client term; ``0``: nothing is exchanged, and phase 2 goes on locally. The paper has 1, with
            which the term outweighs the local one: generated features end up farther from the hidden ones than the client's
            mean vector is (docs/fedsage_plus.md).
        min_batch: A query for fewer generated vectors is neither sent nor answered: its gradient could reveal a feature row.
        mending: What mended nodes get: the ``generator``'s features; ``zero`` or the client's ``mean`` vector in their place;
            the ``oracle``, true neighbours on other clients (needs the server's global graph: benchmarks only); ``none``.
        counts: How many neighbours a node gets: as many as dGen ``predicted`` (the paper's), or as many as are ``known`` to be
            missing, where clients know which of their links lead elsewhere (``ClientGraphDataModule.links_elsewhere``: links
            to other clients and, in own tables, to ids that nobody has), at most ``num_slots``. The numbers stay with the
            client, and the exchange is the paper's. With ``mending: zero`` or ``mean`` no generator is trained then.
        draws: Impairments of a client's graph in one step of phase 1; each is used once, the next step takes new ones.
        holdout: Share of the hidden nodes never trained on, to measure the generator with.
        diagnostics: Clients also report aggregate figures of their generator (errors, calibration, degrees): after each pass of
            phase 1, after every fifth round of phase 2 and its last, and after mending.
    """

    def __init__(
        self,
        weighting: Literal["uniform", "num_samples"] = "uniform",
        generator: LitNeighGen | None = None,
        hide_portion: float = 0.15,
        pretrain_steps: int = 200,
        exchange_rounds: int = 50,
        alpha: float = 0.1,
        min_batch: int = 32,
        mending: Literal["generator", "zero", "mean", "oracle", "none"] = "generator",
        counts: Literal["predicted", "known"] = "predicted",
        draws: int = 50,
        holdout: float = 0.1,
        diagnostics: bool = True,
    ) -> None:
        super().__init__(weighting)
        key = "`federation.strategy.init_args"
        if mending not in MENDINGS:
            raise ValueError(f"{key}.mending` must be one of {', '.join(MENDINGS)}, got `{mending}`.")
        if counts not in COUNTS:
            raise ValueError(f"{key}.counts` must be one of {', '.join(COUNTS)}, got `{counts}`.")
        if not 0 <= hide_portion < 1:
            raise ValueError(f"{key}.hide_portion` must be in [0, 1), got {hide_portion}.")
        if pretrain_steps < 1 or exchange_rounds < 0 or draws < 1 or min_batch < 1 or not alpha >= 0:
            raise ValueError(
                f"{key}`: `pretrain_steps`, `draws` and `min_batch` must be at least 1, `exchange_rounds` and `alpha` at "
                f"least 0; got {pretrain_steps}, {draws}, {min_batch}, {exchange_rounds} and {alpha}."
            )
        self.generator = LitNeighGen() if generator is None else generator
        self.hide_portion, self.pretrain_steps, self.exchange_rounds = hide_portion, pretrain_steps, exchange_rounds
        self.alpha, self.min_batch, self.mending = alpha, min_batch, mending
        self.counts, self.draws, self.holdout, self.diagnostics = counts, draws, holdout, diagnostics
        self._pictures: dict[str, Any] = {}
        self._oracle: dict[int, tuple[Tensor, Tensor]] = {}

    def client_half(self) -> ClientHalf:
        return FedSagePlusClient(self)

    def check(
        self,
        module: L.LightningModule,
        datamodules: Sequence[L.LightningDataModule],
        server_data: L.LightningDataModule | None,
    ) -> None:
        for datamodule in datamodules:
            if not (hasattr(datamodule, "with_data") and hasattr(datamodule, "schema") and hasattr(datamodule, "data")):
                raise ValueError(
                    f"`FedSagePlus` mends subgraphs, but a client's data module is `{type(datamodule).__name__}`, which has no "
                    "`data`, `schema` and `with_data(data)`. Use `datamodules.ClientGraphDataModule`."
                )
        checked: Sequence[Any] = datamodules  # which have `data`
        if self.needs_counts:
            strangers = [c for c, d in enumerate(datamodules) if getattr(d, "links_elsewhere", None) is None]
            if strangers:
                raise ValueError(
                    "`federation.strategy.init_args.counts: known` needs data modules that know how many links of each node "
                    f"lead elsewhere, but clients {strangers} have no `links_elsewhere`. Use `counts: predicted`, or pass "
                    "`links_elsewhere` to `datamodules.ClientGraphDataModule`."
                )
        if self.needs_generator:
            for client, datamodule in enumerate(checked):
                try:
                    self.generator.check_features(datamodule.data.x)
                except ValueError as error:
                    raise ValueError(f"`federation.strategy.init_args.generator` and client {client}: {error}") from error
        if self.mending == "oracle":
            whole = getattr(server_data, "data", None)
            if whole is None:
                raise ValueError(
                    "`federation.strategy.init_args.mending: oracle` needs the global graph on the server (`data.data`)."
                )
            self._oracle = {c: cross_neighbours(d.data, whole) for c, d in enumerate(checked)}

    @property
    def needs_counts(self) -> bool:
        """Do clients mend with known numbers of missing neighbours?"""
        return self.counts == "known" and self.mending in ("generator", "zero", "mean")

    @property
    def needs_generator(self) -> bool:
        """Does any of what mended nodes get come from NeighGen: their features, or how many they are?"""
        trained = ("generator",) if self.needs_counts else ("generator", "zero", "mean")
        return self.hide_portion > 0 and self.mending in trained

    # ---- phases -----------------------------------------------------------------------------------------------------

    def phases(self) -> list[Phase]:
        mending = Phase("mending", 1, self._mend)
        if self.mending == "none" or self.hide_portion == 0:
            return []
        if not self.needs_generator:
            return [mending]
        passes = -(-self.pretrain_steps // self.draws)
        return [
            Phase("generator", passes, self._pretrain),
            Phase("exchange", self.exchange_rounds, self._exchange),
            mending,
        ]

    def phase_costs(self, datamodules: Sequence[L.LightningDataModule]) -> PhaseCosts:
        return phase_costs(self, datamodules, self._oracle)

    def _pretrain(self, federation: Federation, step: int) -> Mapping[str, float]:
        requests = {c: Payload() for c in federation.clients}
        return self._scalars(federation.call("pretrain", requests, step, expected=figures_reply()))

    def _exchange(self, federation: Federation, step: int) -> Mapping[str, float]:
        queries: dict[int, Payload] = {}
        if self.alpha > 0:
            requests = {c: Payload() for c in federation.clients}
            replies = federation.call("query", requests, step, expected=query_reply(self.generator.num_slots))
            queries = {
                c: r for c, r in replies.items() if r.tensors and int(r.tensors["counts"].sum()) >= self.min_batch
            }
        gradients: dict[int, dict[str, Tensor]] = {}
        if queries:
            requests = {j: self._questions(j, queries) for j in federation.clients}
            requests = {j: p for j, p in requests.items() if p.tensors}
            layouts = {j: Expected(layout=_gradients(j, queries)) for j in requests}
            answers = federation.call("peer_gradient", requests, step, required=False, expected=layouts)
            for reply in answers.values():  # in client order: float sums are the same on every engine
                for name, tensor in reply.tensors.items():
                    asker, key = name.split("/", 1)
                    total = gradients.setdefault(int(asker), {})
                    total[key] = total[key] + tensor if key in total else tensor
        sums = {c: Payload(gradients.get(c, {})) for c in federation.clients}
        return self._scalars(federation.call("exchange", sums, step, expected=figures_reply()))

    def _questions(self, peer: int, queries: Mapping[int, Payload]) -> Payload:
        """All other clients' queries, for one peer."""
        others = {i: q for i, q in queries.items() if i != peer}
        tensors = {f"{i}/{name}": tensor for i, q in others.items() for name, tensor in q.tensors.items()}
        return Payload(tensors, {"num_nodes": {str(i): q.values["num_nodes"] for i, q in others.items()}})

    def _mend(self, federation: Federation, step: int) -> Mapping[str, float]:
        requests = {c: Payload() for c in federation.clients}
        if self.mending == "oracle":
            requests = {c: Payload({"counts": n, "features": x}) for c, (n, x) in self._oracle.items()}
        return self._scalars(federation.call("mend", requests, step, expected=figures_reply()))

    def _scalars(self, replies: Mapping[int, Payload]) -> dict[str, float]:
        """Per client, and the mean over clients that report a figure; pictures are kept for TensorBoard."""
        result: dict[str, float] = {}
        sums: dict[str, list[float]] = {}
        self._pictures = {}
        for client, reply in replies.items():
            for name, value in reply.values.get("metrics", {}).items():
                if value is None:  # undefined there
                    continue
                result[f"clients/{client}/{name}"] = value
                sums.setdefault(name, []).append(value)
            for name, table in reply.values.get("pictures", {}).items():
                counts = torch.tensor(table, dtype=torch.float64)
                self._pictures[name] = _padded_sum(self._pictures[name], counts) if name in self._pictures else counts
        return result | {name: sum(values) / len(values) for name, values in sums.items()}

    def diagnose_phase(self) -> Diagnostics:
        # Tables: rows are the true number of missing neighbours, columns the predicted one, rounded.
        tables = {name: counts for name, counts in self._pictures.items() if counts.dim() == 2}
        lines = {name: counts.long().tolist() for name, counts in self._pictures.items() if counts.dim() == 1}
        return Diagnostics(tables=tables, histograms={name: Histogram(line, unit=False) for name, line in lines.items()})


class FedSagePlusClient(ClientHalf):
    """Client half. Generator, its optimiser and the mended graph stay here; the encoder never leaves.

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

    # ---- phase 1 ----------------------------------------------------------------------------------------------------

    @protocol_step
    def pretrain(self, client: Client, request: Payload) -> Payload:
        """One pass over the impaired graphs: L^d and L^f local. Nothing leaves but scalars."""
        if not self._can_hide(client):
            return Payload()
        generator = self._generator(client)
        first, seed = client.round * self.draws, self._hide_seed(client)
        data = ImpairedDataModule(
            client.datamodule, self.hide_portion, self.draws, self.holdout, seed, first_draw=first
        )
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
        weights = {f"theta_f/{name}": weight for name, weight in generator.generator_weights().items()}
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
        generator.freeze()
        optimizer = generator.exchange_optimizer()
        kept = client.store.section("exchange_optimizer")
        if kept:
            restore_optimizers([optimizer], kept)
        generator.exchange_step(self._impaired(client), query, dict(request.tensors) or None, optimizer)
        client.store.put_section("exchange_optimizer", flatten_optimizers([optimizer]))
        self._keep(client, generator)
        due = (client.round + 1) % REPORT_EVERY == 0 or client.round + 1 == self.exchange_rounds
        return self._report(client, generator, {}) if due else Payload()

    # ---- phase 3 ----------------------------------------------------------------------------------------------------

    @protocol_step
    def mend(self, client: Client, request: Payload) -> Payload:
        """Decide on the neighbours to add. They follow from the generator's weights and a seed, so only these are kept."""
        client.store.put_section("oracle", dict(request.tensors))  # nothing with another `mending`
        client.store.put_section("generator_optimizer", {})
        client.store.put_section("exchange_optimizer", {})
        client.store.values["mended"] = True
        if not self.diagnostics:
            return Payload()
        before, after = client.datamodule.data, self._mended(client).data
        degrees = torch.bincount(degree(after.edge_index[0], after.num_nodes).long())
        metrics = {"generated_nodes": float(after.num_nodes - before.num_nodes)}
        return Payload(values={"metrics": metrics, "pictures": {"mended_degrees": degrees.tolist()}})

    # ---- phase 4: FedSage on the mended subgraph ----------------------------------------------------------------------

    def fit(self, client: Client, request: Payload) -> Payload:
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

    def _query(self, client: Client, generator: LitNeighGen) -> Any:
        return generator.query(self._impaired(client), _slot_seed(client, client.id))

    def _mended(self, client: Client) -> Any:
        """The client's data module over its mended graph; as it is before mending."""
        if not client.store.values.get("mended"):
            return client.datamodule
        original = client.datamodule

        def compute() -> Any:
            if self.mending == "oracle":
                kept = client.store.section("oracle")
                return original.with_data(mend(original.data, kept["counts"], kept["features"]))
            known = original.links_elsewhere if self.needs_counts else None
            if known is not None and self.mending != "generator":
                counts = known.clamp(max=self.template.num_slots)
            elif client.store.section("generator"):
                seed = derive(client.settings.seed, "mend", client=client.id)
                counts, features = self._generator(client).generate(original.data, seed, known)
            else:  # nothing to hide, or phase 1 has failed here
                return original
            if self.mending in ("zero", "mean"):
                features = constant_features(original.data.x, counts, self.mending)
            return original.with_data(mend(original.data, counts, features)) if int(counts.sum()) else original

        return client.memo("mended", None, compute)

    def _report(self, client: Client, generator: LitNeighGen, metrics: Mapping[str, float]) -> Payload:
        if not self.diagnostics:
            return Payload()
        batch = self._impaired(client)
        figures = {**metrics, **generator.report(batch, seed=derive(client.settings.seed, "report"))}
        with torch.no_grad():
            predicted = generator.eval()(batch)
        table = torch.zeros(generator.num_slots + 1, generator.num_slots + 1, dtype=torch.long)
        true = batch.missing_count.clamp(max=generator.num_slots)
        guess = predicted.round().clamp(0, generator.num_slots).long()
        table.index_put_((true, guess), torch.ones_like(true), accumulate=True)
        return Payload(values={"metrics": figures, "pictures": {"missing_true_by_predicted": table.tolist()}})


def query_reply(num_slots: int) -> Expected:
    """U ``(B, d_z)``, counts ``(B,)`` from 1 to ``num_slots``, fGen's weights, of the same sizes at all clients, and |V̄|; or
    nothing."""

    def fault(payload: Payload) -> str | None:
        u, counts = payload.tensors.get("u"), payload.tensors.get("counts")
        if u is None or u.dim() != 2 or not u.is_floating_point():
            return "`u` of its query must be a matrix of floats"
        if (
            counts is None
            or counts.dtype != torch.int64
            or counts.shape != u.shape[:1]
            or bool(((counts < 1) | (counts > num_slots)).any())
        ):
            return f"`counts` of its query must be a whole number from 1 to {num_slots} for each row of `u`"
        rest = [n for n in payload.tensors if n not in ("u", "counts") and not n.startswith("theta_f/")]
        return f"its query has unexpected entries: {', '.join(rest)}" if rest else None

    def alike(payload: Payload) -> dict[str, Hashable]:
        if not payload.tensors:
            return {}
        sizes = [(n, str(t.dtype), tuple(t.shape)) for n, t in payload.tensors.items() if n.startswith("theta_f/")]
        return {"the width of `u`": payload.tensors["u"].shape[1], "the layout of fGen": tuple(sorted(sizes))}

    return Expected(values={"num_nodes": positive_count}, tensors=fault, may_be_empty=True, alike=alike)


def _gradients(peer: int, queries: Mapping[int, Payload]) -> dict[str, Tensor]:
    """What a peer's answer looks like: a gradient for each weight of each other client's fGen."""
    return {
        f"{asker}/{name.removeprefix('theta_f/')}": tensor
        for asker, query in queries.items()
        if asker != peer
        for name, tensor in query.tensors.items()
        if name.startswith("theta_f/")
    }


def _slot_seed(client: Client, asker: int) -> int:
    """Public: both sides derive the drawn slots of a query from (run seed, step, asking client)."""
    return derive(client.settings.seed, "slots", client.round, asker)


def _padded_sum(a: Tensor, b: Tensor) -> Tensor:
    """Of two lines, the shorter one padded with zeros; or of two tables, which have one size."""
    size = max(len(a), len(b))
    return torch.nn.functional.pad(a, (0, size - len(a))) + torch.nn.functional.pad(b, (0, size - len(b)))
