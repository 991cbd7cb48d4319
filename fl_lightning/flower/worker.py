"""A site's worker: has the data, the model and the private state, and answers the requests that the ClientApp hands it.

Started by `processes/run_site.py` as ``python -m fl_lightning.flower.worker site.yaml socket``. The server can ask for the
experiments that `site.yaml` names and for nothing else: what it sends is compared, never instantiated.
"""

from __future__ import annotations

import copy
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fl_lightning.assembly import build_layers, private_patterns
from fl_lightning.cli import FederatedCLI
from fl_lightning.engine.buffers import hashes, unlearnt
from fl_lightning.engine.client import LocalSettings, Worker
from fl_lightning.engine.ledger import Ledger
from fl_lightning.engine.lightning_fast.versions import tell_if_unproven
from fl_lightning.engine.local import quiet, set_up
from fl_lightning.engine.messages import Message, NoReply, Payload
from fl_lightning.engine.rehearsal import Rehearsal
from fl_lightning.engine.samples import count_samples
from fl_lightning.engine.statistics import exchange, use
from fl_lightning.flower.contact import agreed, closest, tensors_sha256, version_error
from fl_lightning.flower.processes import frames
from fl_lightning.flower.site_config import SiteConfig
from fl_lightning.flower.state import StateFolder
from fl_lightning.trainer import FederatedTrainer


class Experiment(FederatedCLI):
    """An experiment's config with a site's own values: parsed and instantiated, not run."""

    trainer: FederatedTrainer

    def _run_subcommand(self, subcommand: str) -> None:
        pass


class SiteWorker:
    """Answers requests.

    Args:
        config: The site.
    """

    def __init__(self, config: SiteConfig) -> None:
        self.config = config
        self.state = StateFolder(config.folder)
        config.folder.mkdir(parents=True, exist_ok=True)
        os.chmod(config.folder, 0o700)
        self.ledger = Ledger()
        path = config.folder / "ledger.jsonl"
        self.ledger.open(path, resume_at=path.stat().st_size if path.is_file() else 0)
        self.experiments: dict[str, Experiment] = {}
        for file in config.experiments:
            self.experiments[str(file)] = Experiment(config.arguments(file))
            if not isinstance(self.experiments[str(file)].trainer, FederatedTrainer):
                raise ValueError(
                    f"`{config.path}`: the experiment `{file}` has `federation: null`, which trains centrally and has no part "
                    "for a site. Name configs with a `federation:` section."
                )
        self._contact: str | None = None
        self._worker: Worker | None = None
        self._held: tuple[str, int | None] | None = None  # session and step of the memory that is in the worker

    def answer(self, frame: bytes) -> bytes:
        """The reply to a request frame; a fault becomes an ``error`` in it."""
        try:
            header, body = frames.unpack(frame)
            torch.set_num_threads(int(header["threads"]))
            worker = self._get_ready(header)
            if not body:
                return frames.pack(self._hello(worker, header))
            return self._step(worker, header, Message.decode(body))
        except Exception as error:  # noqa: BLE001  whatever it is, the server is told and the site goes on
            self.ledger.flush()
            return frames.pack({"error": str(error) or type(error).__name__})

    # ---- first contact --------------------------------------------------------------------------------------------

    def _get_ready(self, header: Mapping[str, Any]) -> Worker:
        """The worker for this contact, built unless it is there."""
        contact = {key: header[key] for key in ("versions", "config", "with_data", "client", "clients", "statistics")}
        text = json.dumps(contact, sort_keys=True)
        if text == self._contact and self._worker is not None:
            return self._worker
        self._contact = self._worker = self._held = None
        problem = version_error(contact["versions"])
        if problem is not None:
            raise ValueError(problem)
        if contact["with_data"] != self.config.whole_data:
            raise ValueError(
                "the server trains on a public data set that all sites hold, but `whole_data` is false here"
                if contact["with_data"]
                else "`whole_data` is true here, but the server expects each site to have data of its own"
            )
        own = {}
        for name, cli in self.experiments.items():
            shared = {"config": cli.trainer.run_config, "federation": cli.trainer.settings.describe()}
            own[name] = json.loads(json.dumps(agreed(shared, contact["with_data"]), default=str))
        equal, lines = closest(contact["config"], own)
        if equal is None:
            raise ValueError(
                "no experiment that is approved here (`experiments` in site.yaml) equals the server's; here -> server:\n    "
                + "\n    ".join(lines[:10])
            )
        numbers = int(contact["client"]), int(contact["clients"])
        self._worker = self._build(self.experiments[equal], *numbers, contact["statistics"])
        self._contact = text
        return self._worker

    def _build(self, cli: Experiment, client: int, clients: int, agreed: Mapping[str, Any]) -> Worker:
        trainer, whole = cli.trainer, cli.datamodule
        whole.prepare_data()
        set_up(whole, "fit", trainer.seed)
        parts = list(whole.client_datamodules()) if hasattr(whole, "client_datamodules") else [whole]
        if len(parts) != (clients if self.config.whole_data else 1):
            raise ValueError(
                f"`data` makes {len(parts)} clients, but the federation has {clients} sites"
                if self.config.whole_data
                else f"`data` makes {len(parts)} clients, but a site is one: for tables `partition: file` and one file, for "
                "graphs `num_clients: 1`"
            )
        own = parts[client if self.config.whole_data else 0]
        own.prepare_data()
        set_up(own, "fit", trainer.seed, client)
        self._told_statistics = exchange([own]).told.get(0, {})
        use(agreed, whole, own)
        schema = whole.schema if self.config.whole_data else getattr(own, "schema", None)
        module, strategy = copy.deepcopy(cli.model), trainer.settings.strategy
        build_layers(module, schema, trainer.seed)
        use(agreed, module)
        strategy.check(module, [own], whole if self.config.whole_data else None)
        self._schema, self._initial = schema, tensors_sha256(module.state_dict())
        fast_loops = trainer.settings.fast_loops
        if fast_loops:
            tell_if_unproven()
        clock = trainer.settings.clock_rounds
        private = private_patterns(module, strategy, trainer.settings.private, trainer.settings.batch_norm)
        apart = [*private, *trainer.settings.average]
        half = strategy.client_half()
        rehearsal = Rehearsal(module, trainer.trainer_args, trainer.seed, fast_loops, clock, apart, half.check_optimizers)
        self._start = hashes(module, unlearnt(module, apart))
        trains = {client: own} if count_samples(own) else {}
        self._unlearnt = rehearsal.check(trains).get(client) or self._start
        settings = LocalSettings(
            run="",
            seed=trainer.seed,
            num_rounds=0,
            trainer_args=trainer.trainer_args,
            private=private,
            carry_optimizer_state=bool(trainer.settings.carry_optimizer_state),
            fast_loops=fast_loops,
            local_clock=trainer.settings.local_clock,
            upload_transforms=tuple(trainer.settings.upload_transforms),
        )
        return Worker(module, half, {client: own}, settings)

    def _hello(self, worker: Worker, header: Mapping[str, Any]) -> dict[str, Any]:
        client = int(header["client"])
        own = worker.datamodules[client]
        told = {
            "num_train_samples": count_samples(own),
            "schema": self._schema,
            "fingerprint": own.fingerprint() if hasattr(own, "fingerprint") else None,
            "initial": self._initial,
            "statistics": self._told_statistics,
            "start": self._start,
            "unlearnt": self._unlearnt,
        }
        if header["statistics"]:
            self.ledger.record("down", Message("statistics", "", -1, client, Payload(values=header["statistics"])))
        self.ledger.record("up", Message("contact", "", -1, client, Payload(values=told)))
        self.ledger.flush()
        return told

    # ---- requests -------------------------------------------------------------------------------------------------

    def _step(self, worker: Worker, header: Mapping[str, Any], request: Message) -> bytes:
        client, session, step, after = int(header["client"]), header["session"], header["step"], header["after"]
        if request.client != client:
            raise ValueError("a request for another client")
        if self._held != (session, after):
            worker.stores[client] = self.state.load(session, after)
            worker.memos.clear()  # they follow from the memory that was there before
            self._held = (session, after)
        run, rounds = str(header["run"]), int(header["num_rounds"])
        if (worker.settings.run, worker.settings.num_rounds) != (run, rounds):
            worker.settings = replace(worker.settings, run=run, num_rounds=rounds)
        self.ledger.record("down", request)
        before = worker.stores[client]
        with quiet():
            reply = worker.handle(request)
        if worker.stores[client] is not before:
            try:  # the reply is given only when what it came from cannot be lost any more
                self.state.save(session, step, worker.stores[client], [*map(int, header["keep"]), *filter(None, [after])])
                self._held = (session, step)
            except (OSError, ValueError) as error:
                worker.stores[client] = before
                reply = NoReply(reply.kind, reply.run, reply.round, client, error=str(error))
        self.ledger.record("up", reply)
        self.ledger.flush()
        return frames.pack({"error": reply.error, "after": self._held[1]}, reply.encode())


def serve(worker: SiteWorker, path: str) -> None:
    """Answer at a socket of this machine, one request after the other."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        os.chmod(path, 0o600)
        server.listen(16)
        while True:
            connection, _ = server.accept()
            with connection:
                try:
                    request = frames.receive(connection)
                except (OSError, EOFError):
                    continue  # somebody looked whether we listen
                try:
                    frames.send(connection, worker.answer(request))
                except OSError:
                    continue  # whoever asked is gone; the next request says which step counts


def main(arguments: list[str]) -> None:
    """Entry point."""
    config = SiteConfig.read(Path(arguments[0]))
    os.chdir(config.path.resolve().parent)  # paths in experiments and data are relative to the site's file
    config = replace(config, path=config.path.resolve())
    serve(SiteWorker(config), arguments[1])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from error
