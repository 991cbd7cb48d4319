r"""FedSage+ (Zhang et al., NeurIPS 2021): FedSage on subgraphs mended by a missing-neighbour generator. Server and protocol.

Phase                  request (down)                            reply (up)
1  generator           ``pretrain``                              nothing but scalars
2a exchange            ``query``                                 U_i = z + eps, k, theta_i^f; scalar N̄_i
2b                     ``peer_gradient``: those of all i != j    g_{j->i}, summed over i's batch
2c, 2d                 ``exchange``: sum over j of g_{j->i}      nothing but scalars
3  mending             ``mend``                                  nothing but scalars
4  rounds              FedAvg of the classifier on the mended subgraphs, tested on the untouched global graph

The protocol, and what must not cross: docs/papers/fedsage_plus.md#protocol. The client half is in ``fedsage_client.py``, its
equations in ``lit_models/neighgen/``, impairing and mending in ``datamodules``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from datamodules.mending import cross_neighbours
from fl_lightning.engine.client import ClientHalf
from fl_lightning.engine.diagnostics import Diagnostics, Histogram
from fl_lightning.engine.federation import Federation
from fl_lightning.engine.messages import Payload
from fl_lightning.engine.replies import Expected, figures_reply, positive_count
from fl_lightning.strategies.base import Phase, PhaseCosts
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.strategies.fedsage_client import FedSagePlusClient
from fl_lightning.strategies.fedsage_costs import phase_costs
from fl_lightning.strategies.node_classes import check_predict_step
from fl_lightning.strategies.prototypes import WHO, Prototypes, mending_request, sums_reply
from lit_models.neighgen import LitNeighGen
from lit_models.neighgen.generators import check_features

MENDINGS = ("generator", "prototype", "zero", "mean", "oracle", "none")
COUNTS = ("predicted", "known", "any", "mean", "one")


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
        mending: What mended nodes get: the ``generator``'s features; what class prototypes say (``prototype``: ours, see
            `prototypes.py`); ``zero`` or the client's ``mean`` vector in their place; the ``oracle``, true neighbours on other
            clients (needs the server's global graph: benchmarks only); ``none``.
        counts: How many neighbours a node gets: as many as dGen ``predicted`` (the paper's), or as many as are ``known`` to be
            missing, where clients know which of their links lead elsewhere (``ClientGraphDataModule.links_elsewhere``: links
            to other clients and, in own tables, to ids that nobody has), at most ``num_slots``. The numbers stay with the
            client, and the exchange is the paper's. With ``mending: zero``, ``mean`` or ``prototype`` no generator is trained
            then. With ``mending: prototype`` also one for each node that misses ``any`` (for every node where a client does
            not know), or the same for all: ``one``, or the ``mean`` number of all clients that know theirs (1 if none does).
        draws: Impairments of a client's graph in one step of phase 1; each is used once, the next step takes new ones.
        holdout: Share of the hidden nodes never trained on, to measure the generator with.
        diagnostics: Clients also report aggregate figures of their generator (errors, calibration, degrees): after each pass of
            phase 1, after every fifth round of phase 2 and its last, and after mending.
        prototypes: How ``mending: prototype`` goes about it.
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
        mending: Literal["generator", "prototype", "zero", "mean", "oracle", "none"] = "generator",
        counts: Literal["predicted", "known", "any", "mean", "one"] = "predicted",
        draws: int = 50,
        holdout: float = 0.1,
        diagnostics: bool = True,
        prototypes: Prototypes | None = None,
    ) -> None:
        super().__init__(weighting)
        key = "`federation.strategy.init_args"
        if mending not in MENDINGS:
            raise ValueError(f"{key}.mending` must be one of {', '.join(MENDINGS)}, got `{mending}`.")
        if counts not in COUNTS:
            raise ValueError(f"{key}.counts` must be one of {', '.join(COUNTS)}, got `{counts}`.")
        if counts in ("any", "mean", "one") and mending != "prototype":
            raise ValueError(f"{key}.counts: {counts}` goes with `mending: prototype` only, got `mending: {mending}`.")
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
        self.prototypes = Prototypes() if prototypes is None else prototypes
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
        super().check(module, datamodules, server_data)
        for datamodule in datamodules:
            if not (hasattr(datamodule, "with_data") and hasattr(datamodule, "schema") and hasattr(datamodule, "data")):
                raise ValueError(
                    f"`FedSagePlus` mends subgraphs, but a client's data module is `{type(datamodule).__name__}`, which has no "
                    "`data`, `schema` and `with_data(data)`. Use `datamodules.ClientGraphDataModule`."
                )
        checked: Sequence[Any] = datamodules  # which have `data`
        if self.needs_counts:
            _check_links_elsewhere(datamodules)
        if self.mending == "prototype":
            check_predict_step(module, WHO)
        if self.needs_generator:
            for client, datamodule in enumerate(checked):
                try:
                    check_features(datamodule.data.x, self.generator.feature_range)
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
        return self.counts == "known" and self.mending in ("generator", "prototype", "zero", "mean")

    @property
    def needs_generator(self) -> bool:
        """Does any of what mended nodes get come from NeighGen: their features, or how many they are?"""
        trained = ("generator", "prototype", "zero", "mean") if self.counts == "predicted" else ("generator",)
        return self.hide_portion > 0 and self.mending in trained

    # ---- phases -----------------------------------------------------------------------------------------------------

    def phases(self) -> list[Phase]:
        mending = Phase("mending", 1, self._mend)
        if self.mending == "none" or self.hide_portion == 0:
            return []
        if not self.needs_generator:
            return [mending]
        pretraining = Phase("generator", -(-self.pretrain_steps // self.draws), self._pretrain)
        if self.mending == "prototype":  # only dGen's counts are used, and the exchange trains fGen
            return [pretraining, mending]
        return [pretraining, Phase("exchange", self.exchange_rounds, self._exchange), mending]

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
            queries = {c: r for c, r in replies.items() if r.tensors and int(r.tensors["counts"].sum()) >= self.min_batch}
        gradients: dict[int, dict[str, Tensor]] = {}
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
        if self.mending == "prototype":
            sums = federation.call("class_sums", requests, step, expected=sums_reply())
            told = mending_request(sums, self.prototypes.min_nodes)
            requests = dict.fromkeys(requests, told)
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


def _check_links_elsewhere(datamodules: Sequence[L.LightningDataModule]) -> None:
    strangers = [c for c, d in enumerate(datamodules) if getattr(d, "links_elsewhere", None) is None]
    if strangers:
        raise ValueError(
            "`federation.strategy.init_args.counts: known` needs data modules that know how many links of each node "
            f"lead elsewhere, but clients {strangers} have no `links_elsewhere`. Use `counts: predicted`, or pass "
            "`links_elsewhere` to `datamodules.ClientGraphDataModule`."
        )


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


def _padded_sum(a: Tensor, b: Tensor) -> Tensor:
    """Of two lines, the shorter one padded with zeros; or of two tables, which have one size."""
    size = max(len(a), len(b))
    return torch.nn.functional.pad(a, (0, size - len(a))) + torch.nn.functional.pad(b, (0, size - len(b)))
