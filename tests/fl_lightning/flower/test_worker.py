"""The engine `Flower` and sites' workers, with nothing of Flower between them: bits, memory, faults, refusals."""

import copy
import json
import re
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from federations import assert_same_bits, without_times
from flower_sites import EXPERIMENTS, Here, experiment, memory, server_tensors, write_site

from fl_lightning import FederatedTrainer
from fl_lightning.engine.store import ClientStore
from fl_lightning.flower import Flower
from fl_lightning.flower.site_config import SiteConfig
from fl_lightning.flower.worker import SiteWorker


def results(run):
    return without_times(json.loads((run / "results.json").read_text()))


def ledger(run):
    return sorted((run / "ledger.jsonl").read_text().splitlines())


QUICK = ("fedsage_plus", "fedpub", "moon")
REMEMBER = (*QUICK, "scaffold")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXPERIMENTS])
def test_same_bits_as_in_process_and_the_memory_stays_at_the_site(name, tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS[name])

    def leave_behind(action, client, group):  # what a worker computed for another run must not be used
        if action == "step" and here.asked.count(("step", client)) == 1:
            here.workers[client]._worker.memos[client, "mended"] = (None, "of another run")

    here.before = leave_behind
    local, there = here.fit(monkeypatch, flower=False), here.fit(monkeypatch)
    assert_same_bits(server_tensors(local), server_tensors(there))
    assert results(local) == results(there) and results(there)["failures"] == []
    assert ledger(local) == ledger(there)
    last = sorted((local / "checkpoints").glob("round_*"))[-1]
    for client in range(3):
        kept = last / f"client_{client:05d}.pt"
        assert_same_bits(ClientStore.load(kept).tensors, memory(here.state(client)))
    assert not list((there / "checkpoints").rglob("client_*")), "private state came to the server"
    remembers = name in REMEMBER
    assert bool(memory(here.state(0))) == remembers
    assert here.state(0).stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_workers_may_be_started_anew_before_any_request(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedpub"])
    local = here.fit(monkeypatch, flower=False)
    here.before = lambda action, client, group: here.restart(client)
    there = here.fit(monkeypatch)
    assert_same_bits(server_tensors(local), server_tensors(there))
    assert results(local) == results(there)


def test_a_resumed_run_gives_the_bits_of_one_that_was_not_interrupted(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedpub"])
    whole = here.fit(monkeypatch, flower=False)
    here.fit(monkeypatch, "--federation.num_rounds", "1")
    for client in range(3):
        here.restart(client)
    # A run in between, of other rounds, must not touch what the first one left.
    here.fit(monkeypatch, "--federation.num_rounds", "1", "--federation.name", "other")
    resumed = here.fit(monkeypatch, "--ckpt_path", "last")
    assert results(whole)["last"] == results(resumed)["last"]
    last = sorted((whole / "checkpoints").glob("round_*"))[-1].name
    assert_same_bits({n: t for n, t in server_tensors(whole).items() if n.startswith(last)},
                     {n: t for n, t in server_tensors(resumed).items() if n.startswith(last)})  # fmt: skip


@pytest.mark.slow
def test_a_reply_that_is_lost_leaves_no_trace_in_the_clients_memory(tmp_path, monkeypatch):
    # Client 1's reply of round 0 is lost after it was committed. In round 1 it must train like one that has not trained yet:
    # as in a federation in which client 1 fails in round 0.
    def run(root, fault):
        root.mkdir()
        here = Here(root, EXPERIMENTS["fedpub"])
        fault(here)
        run = here.fit(monkeypatch)
        return server_tensors(run), memory(here.state(1)), results(run)["failures"]

    def lose(here):
        here.before = lambda action, client, group: (
            here.lost.add(1) if (action, client, group) == ("step", 1, "fit 0") else None
        )

    def leave_out(here):
        here.before = lambda action, client, group: (
            here.offline.add(1) if group == "fit 0" and client == 0 else here.offline.clear()
        )
        asked = here.ask
        here.ask = lambda action, requests, *rest: asked(
            action, {c: r for c, r in requests.items() if not (rest[1] == "fit 0" and c == 1)}, *rest
        )

    lost, absent = run(tmp_path / "lost", lose), run(tmp_path / "absent", leave_out)
    assert [f["client"] for f in lost[2]] == [1] and "no answer within 1 s" in lost[2][0]["reason"]
    assert_same_bits(lost[1], absent[1])
    assert_same_bits(lost[0], absent[0])


def test_an_absent_site_is_named_and_comes_back(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedsage"])
    here.before = lambda action, client, group: here.offline.add(2) if group == "fit 0" else None
    run = here.fit(monkeypatch, "--federation.num_rounds", "1")
    failed = results(run)["failures"]
    assert {(f["client"], f["kind"]) for f in failed} == {(2, "evaluate")}
    assert "site `site-2` is not connected" in failed[0]["reason"]
    assert results(run)["test"]["per_client"][2] is None and results(run)["test"]["per_client"][0] is not None


def test_a_full_disk_fails_that_client_alone_and_loses_nothing(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedpub"])
    full = {1}
    original = ClientStore.save

    def save(self, path):
        if "site-1" in str(path) and full:
            path.write_bytes(b"half of it")
            raise OSError(28, "No space left on device")
        original(self, path)

    monkeypatch.setattr(ClientStore, "save", save)
    here.before = lambda action, client, group: full.clear() if group == "fit 1" else None
    run = here.fit(monkeypatch)
    (failure,) = results(run)["failures"]
    assert (failure["client"], failure["round"]) == (1, 0)
    assert "the disk is full, make room" in failure["reason"] and "site-1" in failure["reason"]
    assert memory(here.state(1)), "once there is room it goes on"
    assert not list((tmp_path / "site-1").rglob("*.writing"))


def test_a_site_does_what_its_operator_approved_and_nothing_else(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedsage"])
    with pytest.raises(ValueError) as error:
        here.fit(monkeypatch, "--model.init_args.encoder.init_args.hidden_channels", "16")
    text = str(error.value)
    assert "3 of 3 sites cannot take part" in text and "no experiment that is approved here" in text
    assert "model.init_args.encoder.init_args.hidden_channels: 8 -> 16" in text
    other = yaml.safe_load((tmp_path / "experiment.yaml").read_text())
    other["trainer"]["max_epochs"] = 3
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    here.own = [{"whole_data": True, "experiments": ["../other.yaml", "../experiment.yaml"]}] * 3
    for client in range(3):
        here.restart(client)
    assert results(here.fit(monkeypatch))["failures"] == []
    assert results(here.fit(monkeypatch, "--trainer.max_epochs", "3", "--federation.name", "b"))["failures"] == []


def test_an_experiment_without_a_federation_is_told_by_name(tmp_path):
    (tmp_path / "central.yaml").write_text(yaml.safe_dump({**EXPERIMENTS["fedsage"], "federation": None}))
    path = write_site(tmp_path / "site", "site", ["../central.yaml"])
    with pytest.raises(ValueError, match="central.yaml` has `federation: null`.* Name configs with a `federation:` section"):
        SiteWorker(SiteConfig.read(path))


def test_sites_are_told_of_fast_loops_and_give_the_same_bits(tmp_path, monkeypatch):
    """The generators of FedSage+, too, which have Trainers of their own."""
    config = copy.deepcopy(EXPERIMENTS["fedsage_plus"])
    config["federation"] |= {"num_rounds": 1, "fast_loops": False}
    kinds = set()
    real = L.Trainer.fit
    here = Here(tmp_path, config)
    with monkeypatch.context() as patch:
        patch.setattr(L.Trainer, "fit", lambda self, *a, **k: (kinds.add(type(self)), real(self, *a, **k)))
        stock = here.fit(patch)
    assert kinds == {L.Trainer} and results(stock)["failures"] == []
    fast = here.fit(monkeypatch, "--federation.fast_loops", "true", flower=False)
    assert_same_bits(server_tensors(stock), server_tensors(fast))


def test_an_engine_that_is_not_connected_says_so():
    with pytest.raises(OSError, match="`federation.engine: Flower` is closed: .* Start the run anew."):
        next(Flower().exchange([], None))


def test_other_versions_and_other_data_are_refused_before_round_one(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedsage"])
    here.restart(1, data={"seed": 5})
    with pytest.raises(ValueError, match="1 of 3 sites cannot take part:\n  site-1: no experiment .* equals"):
        here.fit(monkeypatch)
    here.restart(1, whole_data=False)
    with pytest.raises(ValueError, match="site-1: the server trains on a public data set that all sites hold"):
        here.fit(monkeypatch)
    here.restart(1)
    import fl_lightning.flower.engine as engine

    with monkeypatch.context() as patch:
        patch.setattr(engine, "versions", lambda: {"fl-lightning": "9.9", "torch": "1.0"})
        with pytest.raises(ValueError, match="other versions: fl-lightning .* here, 9.9 on the server"):
            here.fit(monkeypatch)


def test_a_site_rehearses_with_its_own_data_at_the_first_contact(tmp_path, monkeypatch):
    config = copy.deepcopy(EXPERIMENTS["fedsage"])
    config["data"]["init_args"]["num_clients"] = 1
    stop = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val/accuracy"}}
    config["trainer"]["callbacks"] = [stop]
    config["federation"]["local_clock"] = "round"
    here = Here(tmp_path, config, own=[{"whole_data": True}])
    with pytest.raises(ValueError, match=r"(?s)1 of 1 sites cannot take part.*site-0: `EarlyStopping\(.*waits for a metric"):
        here.fit(monkeypatch)


def test_a_request_cannot_choose_a_path_or_another_client(tmp_path, monkeypatch):
    here = Here(tmp_path, EXPERIMENTS["fedpub"])
    seen = []
    asked = here.ask

    def spy(action, requests, *rest):
        seen.extend((header, body) for header, body in requests.values() if rest[1] == "fit 0")
        return asked(action, requests, *rest)

    here.ask = spy
    here.fit(monkeypatch, "--federation.num_rounds", "1")
    from fl_lightning.flower.processes import frames

    header, body = seen[0]
    before = sorted(p for p in tmp_path.rglob("*.pt"))
    for wrong in ({"session": "../../../tmp/x"}, {"session": "ab" * 8 + "/"}, {"step": "../7"}, {"step": -1}):
        answer, _ = frames.unpack(here.workers[0].answer(frames.pack({**header, **wrong}, body)))
        assert "16 hexadecimal digits" in answer["error"]
    answer, _ = frames.unpack(here.workers[0].answer(frames.pack({**header, "after": 99}, body)))
    assert "private state of step 99 is not in" in answer["error"]
    answer, _ = frames.unpack(here.workers[1].answer(frames.pack({**seen[1][0]}, body)))
    assert "another client" in answer["error"]
    assert sorted(p for p in tmp_path.rglob("*.pt")) == before


def table(path, rows):
    path.parent.mkdir(exist_ok=True)
    lines = [f"{i},{'C' * (2 + i % 7)}{'ON'[i % 2]},{5 + i % 7 / 3}" for i in rows]
    path.write_text("\n".join(["id,smiles,pIC50", *lines, ""]))


def test_sites_whose_columns_mean_something_else_are_refused_by_name(tmp_path, monkeypatch):
    """The schema goes over the contact, and the same rule decides as for data modules in one process."""
    for client, columns in enumerate(("age,income", "income,age")):
        folder = tmp_path / f"site-{client}"
        folder.mkdir()
        rows = "".join(f"{i},{'ab'[i % 2]},{i % 7},{i / 8}\n" for i in range(8))
        (folder / "nodes.csv").write_text(f"id,label,{columns}\n{rows}")
        (folder / "edges.csv").write_text("source,target\n0,1\n2,3\n")
    tables = {"class_path": "datamodules.GraphCSVDataModule", "init_args": {"num_clients": 1, "partition": "random"}}
    own = [{"data": {"root": str(tmp_path / f"site-{client}")}} for client in range(2)]
    here = Here(tmp_path, experiment("FedAvg", "GraphSAGE", tables), own)
    with pytest.raises(ValueError, match=r"client 1 \(site `site-1`\) has the same feature_names in another order: .*'income'"):
        here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("results.json"))


def test_the_experiment_of_the_documentation_on_tables_that_only_the_sites_have(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = (Path(__file__).resolve().parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    for client, size in enumerate((20, 30, 40)):
        table(tmp_path / f"site-{client}" / "molecules.csv", range(size))
    own = [{"data": {"files": str(tmp_path / f"site-{client}" / "molecules.csv")}} for client in range(3)]
    here = Here(tmp_path, config, own)
    run = here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites", "--federation.num_rounds", "1")
    found = results(run)
    assert found["failures"] == [] and found["test"]["global"] is None and len(found["test"]["per_client"]) == 3
    trained = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in trained} == {"fit", "evaluate"}
    # A site whose table has other tasks than the others is named before round 1.
    (tmp_path / "site-1" / "molecules.csv").write_text("id,smiles,logP\n1,CCO,2\n")
    here.restart(1)
    with pytest.raises(ValueError, match="1 of 3 sites cannot take part:\n  site-1: .*pIC50"):
        here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites")
    # And one that would be several clients.
    table(tmp_path / "site-1" / "molecules.csv", range(30))
    table(tmp_path / "site-1" / "more.csv", range(30))
    here.restart(1, data={"files": [str(tmp_path / "site-1" / f"{name}.csv") for name in ("molecules", "more")]})
    with pytest.raises(ValueError, match="site-1: `data` makes 2 clients, but a site is one"):
        here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites")


def test_schedules_at_sites_watch_the_servers_validation(tmp_path, monkeypatch):
    """Two validations before round 3: the second is not better by the threshold, so that round has a tenth of the rate."""
    config = copy.deepcopy(EXPERIMENTS["schedule"])
    config["federation"]["num_rounds"] = 3
    here = Here(tmp_path, config)
    local, there = here.fit(monkeypatch, flower=False), here.fit(monkeypatch)
    assert_same_bits(server_tensors(local), server_tensors(there))
    assert ledger(local) == ledger(there)
    config["federation"]["local_clock"] = "round"
    del config["model"]["init_args"]["lr_scheduler"]
    (tmp_path / "plain").mkdir()
    plain = Here(tmp_path / "plain", config).fit(monkeypatch, flower=False)
    first, other = server_tensors(local), server_tensors(plain)
    same = {folder: all(bool((first[n] == other[n]).all()) for n in first if n.startswith(folder)) for folder in
            ("round_00001", "round_00002")}  # fmt: skip
    assert same == {"round_00001": True, "round_00002": False}


def own_sites(tmp_path, write, data, model):
    """Three sites with files of their own; the run on them, and the same clients in one process."""
    config = {
        "seed_everything": 0,
        "federation": {"num_rounds": 2},
        "trainer": {"max_epochs": 1, "accelerator": "cpu"},
        "model": model,
        "data": data,
    }
    own = []
    for client in range(3):
        folder = tmp_path / f"site-{client}"
        folder.mkdir()
        own.append({"data": write(folder, client)})
    return Here(tmp_path, config, own)


def in_one_process(tmp_path, here, seed=0):
    """The sites' own data modules as the clients of a simulation."""
    clis = [next(iter(here.workers[client].experiments.values())) for client in range(3)]
    for cli in clis:
        cli.datamodule.setup("fit")
    clients = [cli.datamodule.client_datamodules()[0] for cli in clis]
    trainer = FederatedTrainer(
        num_rounds=2, seed=seed, trainer={"max_epochs": 1, "accelerator": "cpu", "default_root_dir": str(tmp_path / "sim")}
    )
    trainer.fit(copy.deepcopy(clis[0].model), clients)
    return trainer.run_dir, clients


def test_sites_with_other_label_means_share_one_scale(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(folder, client):
        rows = "".join(f"m{k},{'C' * k}O,{k + 10 * client}\n" for k in range(1, 21))
        (folder / "m.csv").write_text("id,smiles,y\n" + rows)
        return {"files": str(folder / "m.csv")}

    data = {"class_path": "datamodules.MoleculeCSVDataModule", "init_args": {
        "files": "x.csv", "id_column": "id", "targets": "y", "task": "regression", "partition": "file",
        "fractions": [1.0, 0.0, 0.0], "client_holdout": 0.2, "normalize_labels": True, "cache_dir": None,
    }}  # fmt: skip
    encoder = {"class_path": "lit_models.GCNMolecule", "init_args": {"hidden_channels": 8}}
    model = {"class_path": "lit_models.LitMoleculePredictor", "init_args": {"encoder": encoder}}
    here = own_sites(tmp_path, write, data, model)
    run = here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites")
    told = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [line["direction"] for line in told if line["kind"] == "statistics"] == ["up"] * 3 + ["down"] * 3
    here.workers[0].ledger.flush()
    (site,) = (tmp_path / "site-0").rglob("ledger.jsonl")  # the site's own list of what left it and what came
    kinds = [(line["kind"], line["direction"]) for line in map(json.loads, site.read_text().splitlines())]
    assert kinds[:3] == [("contact", "up"), ("statistics", "down"), ("contact", "up")]
    simulated, clients = in_one_process(tmp_path, here)
    assert_same_bits(server_tensors(run), server_tensors(simulated))
    labels = torch.cat([c.packed.y[c.part("train").positions] for c in clients]).double()
    assert clients[0].schema["label_mean"] == pytest.approx([float(labels.mean())])
    assert clients[0].schema["label_std"] == pytest.approx([float(labels.std(unbiased=False))])


def write_graph(folder, labels, shift=0):
    """A chain of 30 nodes with two features; ``labels`` go by turns."""
    rows = "".join(f"n{k},{k % 7 + shift},{(k * 3) % 5},{labels[k % 2]}\n" for k in range(30))
    (folder / "nodes.csv").write_text("id,a,b,label\n" + rows)
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"n{k},n{k + 1}\n" for k in range(29)))
    return {"root": str(folder)}


def graph_sites(tmp_path, model, write):
    """Sites with a graph of such tables each."""
    options = {"root": "x", "num_clients": 1, "partition": "random", "features": ["a", "b"], "sparse_features": False}
    data = {"class_path": "datamodules.GraphCSVDataModule", "init_args": options}
    encoder = {"class_path": "lit_models.GraphSAGE", "init_args": {"hidden_channels": 8}}
    return own_sites(tmp_path, write, data, {"class_path": model, "init_args": {"encoder": encoder}})


def test_a_scaler_that_differs_between_sites_is_refused_by_name(tmp_path, monkeypatch):
    here = graph_sites(tmp_path, "flower_sites.ScaledNodes", lambda folder, client: write_graph(folder, "xy", client))
    with pytest.raises(ValueError, match=r"`center` is a buffer or .* in 3 versions \(site `site-0`, "):
        here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites")
    assert ("step", 0) not in here.asked


def test_sites_whose_classes_are_as_many_but_others_merge_them_by_name(tmp_path, monkeypatch):
    names = (("blue", "red"), ("red", "white"), ("blue", "white"))
    here = graph_sites(tmp_path, "lit_models.LitNodeClassifier", lambda folder, client: write_graph(folder, names[client]))
    run = here.fit(monkeypatch, "--data", "fl_lightning.flower.AtSites")
    assert results(run)["failures"] == []
    simulated, clients = in_one_process(tmp_path, here)
    assert_same_bits(server_tensors(run), server_tensors(simulated))
    for client, data in enumerate(clients):
        assert data.schema["class_names"] == ["blue", "red", "white"] and data.schema["num_classes"] == 3
        ids = data.data.node_id.tolist()
        assert [data.schema["class_names"][y] for y in data.data.y.tolist()] == [names[client][k % 2] for k in ids]
