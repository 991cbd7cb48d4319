"""Small experiments, and sites made of them, for the tests of `fl_lightning.flower`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

import fl_lightning.flower.engine as engine_module
from fl_lightning.cli import FederatedCLI
from fl_lightning.engine.store import ClientStore
from fl_lightning.flower.processes import frames
from fl_lightning.flower.site_config import SiteConfig
from fl_lightning.flower.worker import SiteWorker
from lit_models import LitNodeClassifier


class ScaledNodes(LitNodeClassifier):
    """Makes a scaler of its client's own features."""

    def build_layers(self, schema):
        super().build_layers(schema)
        self.register_buffer("center", torch.zeros(schema["num_features"]))

    def setup(self, stage):
        if stage == "fit":
            self.center.copy_(self.trainer.datamodule.data.x.mean(dim=0))


NODES = {
    "class_path": "datamodules.SyntheticCitationDataModule",
    "init_args": {"num_nodes": 120, "num_classes": 3, "num_features": 30, "num_clients": 3, "blocks_per_class": 2},
}
MOLECULES = {
    "class_path": "datamodules.ChEMBLDataModule",
    "init_args": {"num_clients": 3, "fractions": [0.1, 0.45, 0.45], "batch_size": 16, "min_client_size": 4},
}


FOREST = {
    "seed_everything": 0,
    "federation": {
        "num_rounds": 2,
        "clients_per_round": 2,
        "strategy": {"class_path": "fl_lightning.strategies.ForestEnsemble"},
    },
    "trainer": {"max_epochs": 1, "accelerator": "cpu"},
    "model": {"class_path": "lit_models.LitMoleculeForest", "init_args": {"num_trees": 3}},
    "data": {**MOLECULES, "init_args": {**MOLECULES["init_args"], "fingerprint_size": 128}},
}


def experiment(strategy: str, encoder: str, data: dict, **more: Any) -> dict[str, Any]:
    """A config of two rounds."""
    molecules = data is MOLECULES
    module = {
        "encoder": {"class_path": f"lit_models.{encoder}", "init_args": {"hidden_channels": 8}},
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}},
    }
    module |= {name: more.pop(name) for name in ("objective", "lr_scheduler", "optimizer") if name in more}
    return {
        "seed_everything": 0,
        "federation": {"num_rounds": 2, "strategy": {"class_path": f"fl_lightning.strategies.{strategy}", **more}},
        "trainer": {"max_steps": 2, "accelerator": "cpu"} if molecules else {"max_epochs": 1, "accelerator": "cpu"},
        "model": {
            "class_path": f"lit_models.{'LitMoleculePredictor' if molecules else 'LitNodeClassifier'}",
            "init_args": module,
        },
        "data": data,
    }


EXPERIMENTS = {
    "fedsage": experiment("FedAvg", "GraphSAGE", NODES),
    "fedsage_plus": experiment(
        "FedSagePlus", "GraphSAGE", NODES,
        init_args={"pretrain_steps": 2, "draws": 2, "exchange_rounds": 1, "min_batch": 1, "hide_portion": 0.3},
    ),
    "fedsage_prototype": experiment("FedSagePrototype", "GraphSAGE", NODES, init_args={"min_nodes": 1, "every": 1}),
    "fedpub": experiment(
        "FedPub", "MaskedGCN", NODES, objective={"class_path": "lit_models.objectives.MaskedProximal"}
    ),
    "scaffold": experiment(
        "Scaffold", "GraphSAGE", NODES, optimizer={"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    ),
    "flit_plus": experiment(
        "FedAvg", "GCNMolecule", MOLECULES, objective={"class_path": "lit_models.objectives.FLITPlus"},
        init_args={"weighting": "num_samples"},
    ),
    "schedule": experiment(  # watches the server's validation, and any change is too small for it
        "FedAvg", "GraphSAGE", NODES, lr_scheduler={
            "class_path": "lightning.pytorch.cli.ReduceLROnPlateau",
            "init_args": {"monitor": "val/loss", "patience": 0, "threshold": 0.9},
        },
    ),
    "moon": experiment(  # an objective with a memory, over one with a pass of its own
        "FedAvg", "GCNMolecule", MOLECULES, objective={
            "class_path": "lit_models.objectives.MOON",
            "init_args": {"base": {"class_path": "lit_models.objectives.FLITPlus"}},
        },
    ),
    "forest": FOREST,
}  # fmt: skip


def server_tensors(run: Path) -> dict[str, Tensor]:
    """The server's tensors of every checkpoint of a run, by folder and name."""
    found = {}
    for path in sorted((run / "checkpoints").glob("*/server.pt")):
        tensors = torch.load(path, weights_only=True)["tensors"]
        found |= {f"{path.parent.name}/{name}": tensor for name, tensor in tensors.items()}
    return found


def memory(folder: Path, session: str = "*") -> dict[str, Tensor]:
    """What a site has on its disk: tensors of its newest state."""
    files = sorted((folder / "state").glob(f"{session}/step_*.pt"), key=lambda path: path.name)
    return ClientStore.load(files[-1]).tensors if files else {}


def write_site(folder: Path, name: str, experiments: list[str], **own: Any) -> Path:
    """A site's folder with a ``site.yaml``, without real keys."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("ca.crt", "key"):
        (folder / file).touch()
    content = {"name": name, "server": "localhost:1", "ca": "ca.crt", "key": "key", "experiments": experiments,
               "accelerator": "cpu", **own}  # fmt: skip
    (folder / "site.yaml").write_text(yaml.safe_dump(content))
    return folder / "site.yaml"


class Here:
    """Stands for the SuperLink and the sites' Flower processes: hands frames to workers in this process.

    Args:
        root: Folder for ``server.yaml``, ``experiment.yaml`` and a folder for each site.
        config: The experiment.
        own: Each site's own keys of site.yaml.
    """

    def __init__(self, root: Path, config: Mapping[str, Any], own: list[dict[str, Any]] | None = None) -> None:
        self.root = root
        self.own = [{"whole_data": True}] * 3 if own is None else own
        (root / "experiment.yaml").write_text(yaml.safe_dump(dict(config)))
        self.names = [f"site-{client}" for client in range(len(self.own))]
        for file in ("ca.crt", "server.pem", "server.key", "key.pub"):
            (root / file).touch()
        server = {"listen": "127.0.0.1:1", "control": "127.0.0.1:2", "certificate": "server.pem", "key": "server.key",
                  "ca": "ca.crt", "sites": dict.fromkeys(self.names, "key.pub")}  # fmt: skip
        (root / "server.yaml").write_text(yaml.safe_dump(server))
        self.workers: dict[int, SiteWorker] = {}
        for client in range(len(self.own)):
            self.restart(client)
        self.asked: list[tuple[str, int]] = []
        self.offline: set[int] = set()
        self.lost: set[int] = set()  # clients whose next reply is lost after they have done the work

    def restart(self, client: int, **own: Any) -> None:
        """The site's worker process anew: what it remembers is on its disk."""
        own = {"experiments": ["../experiment.yaml"], **self.own[client], **own}
        path = write_site(self.root / self.names[client], self.names[client], **own)
        self.workers[client] = SiteWorker(SiteConfig.read(path))

    def state(self, client: int) -> Path:
        """A site's folder of private things."""
        return self.root / self.names[client] / "state"

    def relay(self, server: Any) -> Here:
        """Takes the place of ``_Relay``."""
        return self

    def nodes(self) -> dict[str, str]:
        return {name: name for client, name in enumerate(self.names) if client not in self.offline}

    def ask(self, action: str, requests: Any, timeout: Any, group: str) -> Iterator[tuple[int, str | None, bytes | None]]:
        for client, (header, body) in requests.items():
            self.asked.append((action, client))
            self.before(action, client, group)
            answer = self.workers[client].answer(frames.pack(json.loads(json.dumps(header)), body))
            if client in self.lost:
                self.lost.discard(client)
                yield client, "no answer within 1 s", None
            else:
                yield client, None, answer

    def before(self, action: str, client: int, group: str) -> None:
        """A test may do something to a site here."""

    def close(self) -> None:
        pass

    def fit(self, monkeypatch: Any, *arguments: str, flower: bool = True) -> Path:
        """`fl-lightning fit` of the experiment, on the sites or (``flower=False``) in process; the run's folder."""
        monkeypatch.setattr(engine_module, "_Relay", self.relay)
        monkeypatch.setattr(engine_module, "require_flower", lambda: None)
        engine = ["--federation.engine", "fl_lightning.flower.Flower",
                  "--federation.engine.init_args.server", str(self.root / "server.yaml")]  # fmt: skip
        runs = self.root / ("flower" if flower else "in_process")
        cli = FederatedCLI(["fit", "--config", str(self.root / "experiment.yaml"),
                            "--trainer.default_root_dir", str(runs), *(engine if flower else []), *arguments])  # fmt: skip
        return cli.trainer.run_dir
