"""Places for output that cannot be written are told by the key that named them, before any work."""

import os

import pytest
from federations import Linear, clients, federate

from fl_lightning.comparison.commands import main as comparing
from fl_lightning.reporting import output_paths
from fl_lightning.reporting.inspection import inspect_data
from fl_lightning.reporting.output_paths import check_file, make_folder


class Untouched(Linear):
    def on_fit_start(self):
        raise AssertionError("nothing is to be trained")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def test_a_runs_folder_that_cannot_be_made_names_its_key(file):
    with pytest.raises(ValueError, match=r"`trainer.default_root_dir`: the folder `.*/file/FedAvg` cannot be made \(Not a dir"):
        federate(file, Untouched, clients((6, 8)))
    from lightning.pytorch.loggers import CSVLogger

    with pytest.raises(ValueError, match="`trainer.logger`: the folder `.*/file/a/version_0` cannot be made"):
        federate(file.parent, Untouched, clients((6, 8)), {"logger": CSVLogger(str(file), "a", 0)})


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(output_paths.os, "access", lambda path, mode: False)  # the tests' user may be root
    with pytest.raises(ValueError, match=f"`--out`: nothing can be written in `{tmp_path}`"):
        make_folder(tmp_path, "--out")
    with pytest.raises(ValueError, match=f"`--html {tmp_path}/a.html` cannot be written"):
        check_file(tmp_path / "a.html", "--html")


def test_files_that_cannot_be_written(file, tmp_path):
    check_file(file, "--output")
    check_file(tmp_path / "new.csv", "--output")
    with pytest.raises(ValueError, match=f"`--output {file}/a.csv`: there is no folder `{file}`. Make it, or name another"):
        check_file(file / "a.csv", "--output")
    with pytest.raises(ValueError, match=f"`--output {tmp_path}` is a folder. Name a file in it"):
        check_file(tmp_path, "--output")
    with pytest.raises(ValueError, match=f"`--html {tmp_path}` is a folder"):
        inspect_data(type("Data", (), {"report": None}), False, str(tmp_path), print)


def test_a_folder_of_a_report_is_asked_first(file):
    with pytest.raises(ValueError, match="`--out`: the folder `.*file` cannot be made"):
        comparing(["report", str(file.parent), "--out", str(file)])
    assert os.listdir(file.parent) == ["file"]
