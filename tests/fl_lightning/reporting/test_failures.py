"""Clients that fail are told when they fail first and where the fit ends; a mean that leaves them out says so."""

import csv
import warnings

import pytest
from federations import Central, Linear, clients, federate

from fl_lightning.comparison.runner import _headline
from fl_lightning.reporting.clients import names_of
from fl_lightning.reporting.failures import ClientFailed, ClientsFailed, Failures, failure_lines
from fl_lightning.reporting.monitor import said
from fl_lightning.reporting.tables import score_lines


class FailsAt(Linear):
    """Fails in training where there are 9 samples, and in validation where there are 5."""

    def training_step(self, batch, batch_idx):
        if len(batch[0]) == 9:
            raise KeyError("my own error")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if len(batch[0]) == 5:
            raise RuntimeError("no such file\nat all")
        super().validation_step(batch, batch_idx)


class Named(Central):
    def partition_record(self):
        return {"client_names": ["north", "1", "south", "west"]}

    val_dataloader = Central.__mro__[1].val_dataloader  # the server has no data to choose by
    test_dataloader = Central.__mro__[1].test_dataloader


def data():
    first, second, third, fourth = clients((8, 9, 10, 11))
    third.held_out = 5
    return Named(first, second, third, fourth)


def test_each_client_is_told_at_its_first_failure_and_once_at_the_end(tmp_path, capsys):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fed = federate(tmp_path, FailsAt, data(), num_rounds=3, progress=True)
    told = [str(w.message) for w in caught if w.category is ClientFailed]
    assert told == [
        "client 1 failed in round 1, step `fit`, and is left out of it: KeyError: 'my own error'. Further failures of it are "
        "in `failures` in results.json.",
        "client 2 (south) failed in round 1, step `evaluate`, and is left out of it: RuntimeError: no such file. Further "
        "failures of it are in `failures` in results.json.",
    ]
    lines = ["client 2 (south) failed in 3 of 3 rounds (the last, `evaluate`: RuntimeError: no such file)",
             "client 1 failed in 3 of 3 rounds (the last, `fit`: KeyError: 'my own error')"]  # fmt: skip
    (end,) = [str(w.message) for w in caught if w.category is ClientsFailed]
    assert end == "; ".join(lines) + "." and fed.results["client_names"] == ["north", "1", "south", "west"]
    assert [line for line in score_lines(fed.results) if " failed " in line] == lines
    # Where the mean over clients is shown or stored, it says of how many it is.
    table = {line.split()[0]: line for line in score_lines(fed.results)[3:5]}
    assert f"{fed.results['val']['mean']:.4f} (3 of 4 clients)" in table["val"]
    assert all(line.endswith(" (3 of 4 clients)") for line in capsys.readouterr().err.splitlines()) and end
    assert fed.results["val"]["undefined"] == 1 and _headline(fed.run_dir, None).endswith(" (3 of 4 clients)")
    with (fed.run_dir / "metrics.csv").open() as file:
        assert [row["val/clients_undefined"] for row in csv.DictReader(file)] == ["1"] * 3
    with pytest.warns(ClientFailed, match=r"client 2 \(south\) failed in round 3, step `evaluate`"):
        fed.validate(FailsAt(), data())


def test_what_was_told_before_a_run_went_on_is_not_told_again():
    known = [{"round": 0, "client": 1, "kind": "fit", "reason": "x"}]
    failures = Failures([], known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failures.tell(known)
    with pytest.warns(ClientFailed, match="^client 1 failed in round 2"):
        failures.tell([*known, {**known[0], "round": 1}])


def test_lines_of_the_server_of_phases_of_epochs_and_of_many():
    def lines(failures, **more):
        found = [{"round": 0, "kind": "fit", "reason": "x", **failure} for failure in failures]
        return failure_lines({"failures": found, "rounds_run": 4, "strategy": "FedAvg", "client_names": [], **more})

    assert lines([]) == []
    assert lines([{"client": None, "kind": "evaluate", "round": 3, "reason": "y."}] * 2) == [
        "the server failed in 1 of 4 rounds (the last, `evaluate`: y)"]  # fmt: skip
    assert lines([{"client": 0, "kind": "mend"}]) == ["client 0 failed in 1 step (the last, `mend`: x)"]
    assert lines([{"client": 0, "kind": "evaluate"}], strategy="Central")[0].startswith("client 0 failed in 1 of 4 epochs")
    many = lines([{"client": client} for client in range(9)])
    assert len(many) == 6 and many[-1] == "and 4 more failed: see `failures` in results.json"


def test_a_mean_of_all_clients_says_nothing_of_them():
    whole = {"global": None, "mean": 0.5, "per_client": [0.4, 0.6]}
    assert said(whole) == "0.5000" and said({**whole, "per_client": [0.5, None]}) == "0.5000 (1 of 2 clients)"
    assert said({"global": 0.25, "mean": 0.5, "per_client": [0.5, None]}) == "0.2500" and said({**whole, "mean": None}) == "-"


def test_names_of_sites():
    site = type("Site", (), {"site": "clinic"})()
    assert names_of([site, site]) == ["clinic", "clinic"] and names_of([site, object()]) == [] and names_of(object()) == []
