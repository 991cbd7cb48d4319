"""results.json is always written: what is undefined or fails at the end costs its own score and nothing else."""

import json

import numpy as np
import pytest
import torch
from federations import CPU, Central, Linear, Table, clients, federate

from fl_lightning import FederatedTrainer, LocalOnly
from fl_lightning.reporting.monitor import Monitor
from fl_lightning.reporting.plain import plain
from fl_lightning.reporting.results import Results
from fl_lightning.reporting.run_folder import RunFolder
from fl_lightning.reporting.run_lock import RunLock


def written(fed):
    """As a strict reader sees it."""

    def refuse(text):
        raise AssertionError(f"{text} is no JSON")

    return json.loads((fed.run_dir / "results.json").read_text(), parse_constant=refuse)


def test_plain_values():
    assert plain({
        1: float("nan"), "a": [float("inf"), -float("inf"), 0.5], "b": (np.int64(3), np.float32("nan"), np.bool_(True)),
        "c": torch.tensor([1.0, float("nan")]), "d": np.array(["x"]), "e": None, "f": True, "g": object,
    }) == {
        "1": None, "a": [None, None, 0.5], "b": [3, None, True], "c": [1.0, None], "d": ["x"], "e": None, "f": True,
        "g": "<class 'object'>",
    }  # fmt: skip


class Undefined(Linear):
    def test_step(self, batch, batch_idx):
        self.log("test_loss", float("nan"))  # as an AUROC of one class


@pytest.mark.parametrize("asked", [{"strategy": LocalOnly()}, {"score_each_on_global": True}])
def test_an_undefined_score_on_the_global_data_is_null(tmp_path, asked):
    fed = federate(tmp_path, Undefined, Central(*clients((8, 9))), num_rounds=1, **asked)
    assert written(fed)["test"]["each_on_global"] == [None, None]
    assert written(fed)["test"]["global"] is None and written(fed)["test"]["per_client_metrics"] == [{"loss": None}] * 2


class FailsAtTheEnd(Linear):
    """Cannot be tested where there are 16 samples: at the server."""

    def test_step(self, batch, batch_idx):
        if len(batch[0]) == 16:
            raise RuntimeError("no such file")
        super().test_step(batch, batch_idx)


def test_a_test_that_fails_at_the_server_costs_its_score_and_not_the_run(tmp_path):
    fed = federate(tmp_path, FailsAtTheEnd, Central(*clients((8, 9))), num_rounds=1, score_each_on_global=True)
    found = written(fed)
    assert found["test"]["global"] is None and None not in found["test"]["per_client"]
    assert found["test"]["each_on_global"] == [None, None] and found["val"]["global"] is not None
    assert {(f["client"], f["kind"]) for f in found["failures"]} == {(None, "evaluate")}
    assert {f["reason"] for f in found["failures"]} == {"RuntimeError: no such file"}
    with pytest.raises(RuntimeError, match="no such file"):  # where nothing but the score was asked for, it is an error
        fed.test(fed.module, Central(*clients((8, 9))))


class Dropping(Central):
    """Tells of a row in the numbers of its own libraries."""

    task_names = np.array(["y"])
    num_rows_read = 20
    dropped_rows = [{"row": np.int64(3), "reason": "blank", "value": np.float64("nan")}]


def test_rows_left_out_are_written_whatever_numbers_they_hold(tmp_path):
    with pytest.warns(UserWarning, match="1 of 20 rows was left out"):
        fed = federate(tmp_path, Linear, Dropping(*clients((8, 9))), num_rounds=1)
    found = written(fed)
    assert found["dropped_rows"] == [{"row": 3, "reason": "blank", "value": None}] and found["task_names"] == ["y"]
    assert found["num_rows_read"] == 20 and found["row_counts"] == {"rows": {"read": 20, "left_out": 1}}


def test_the_document_by_hand(tmp_path):
    folder = RunFolder(str(tmp_path), "run", False, RunLock())
    part = {"global": 0.5, "mean": float("nan"), "undefined": 2}
    data = Table(3, 1)
    document = Results(
        name="run", strategy="Central", seed=4, monitor=Monitor("auc", "max"), num_clients=0, rounds_run=3, best_round=1,
        chosen={"val": part, "test": part}, last={"val": part, "test": part}, data=data, total_seconds=5.0, train_seconds=3.0,
        failures=[{"round": 1, "client": 0, "kind": "fit", "reason": "x"}], workers_rss_mb=1e6,
    ).write(folder)  # fmt: skip
    assert json.loads((folder.path / "results.json").read_text()) == document
    assert (document["metric"], document["mode"], document["best_round"]) == ("auc", "max", 1)
    assert document["seconds"] == {"total": 5.0, "train": 3.0, "overhead": 2.0} and document["peak_rss_mb"] > 1e6
    assert document["val"] == part | {"mean": None}
    assert document["test"] == {"global": 0.5, "mean": None, "undefined": 2, "each_on_global": None}
    assert document["bytes"] == {"up": 0, "down": 0, "by_kind": {}} and document["dropped_rows"] == []


def test_federated_and_central_results_have_the_same_keys(tmp_path):
    import lightning as L

    from fl_lightning.central import fit_centrally

    fed = federate(tmp_path, data=Central(*clients((8, 9))), num_rounds=1)
    stock = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    found, _ = fit_centrally(stock, Linear(), Central(*clients((8, 9))), None, "c", {"default_root_dir": str(tmp_path)})
    assert found.keys() == fed.results.keys()
    assert all(found[stage].keys() == fed.results[stage].keys() for stage in ("val", "test", "last", "seconds", "bytes"))


def test_fast_dev_run_has_results_too(tmp_path):
    fed = FederatedTrainer(trainer={**CPU, "fast_dev_run": True, "logger": False}, num_rounds=1)
    assert fed.fit(Linear(), clients((8,)))["rounds_run"] == 1
