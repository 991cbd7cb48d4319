"""Diagnostics as pictures: heat maps by hand, histograms as samples, and what is written for the report."""

import json

import torch

from fl_lightning.engine.diagnostics import Diagnostics, Histogram
from fl_lightning.reporting.pictures import as_samples, draw, heat_map, show


class Logger(dict):
    def add_image(self, name, picture, step, dataformats):
        self[name] = (picture, step, dataformats)

    def add_histogram(self, name, samples, step, bins=None):
        self[name] = (samples.tolist(), step, bins)


class Folder:
    """A run's folder, with or without a writer for TensorBoard."""

    def __init__(self, path, tensorboard=None):
        self.path, self.tensorboard = path, tensorboard

    def write_json(self, name, content):
        (self.path / name).write_text(json.dumps(content))


def test_heat_maps_by_hand():
    picture = heat_map(torch.tensor([[2.0, 4.0], [3.0, 2.0]]), pixels=2)
    assert picture.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0]]
    assert heat_map(torch.full((2, 2), 3.0)).eq(1.0).all() and heat_map(torch.eye(2)).shape == (32, 32)


def test_each_kind_is_drawn_as_what_it_is():
    logger = Logger()
    found = Diagnostics(
        matrices={"fedpub/alpha": torch.eye(2)},
        clients=[3, 5],
        tables={"table": torch.tensor([[0.0, 3.0], [1.0, 0.0]])},
        histograms={"train/omega": Histogram([1, 2]), "degrees": Histogram([1, 0, 2], unit=False)},
    )
    draw(found, logger, 4, "mending/")
    assert (logger["mending/fedpub/alpha"][0].shape, *logger["mending/fedpub/alpha"][1:]) == ((32, 32), 4, "HW")
    picture = logger["mending/table"][0]
    assert (picture[0, 0].item(), picture[0, -1].item(), picture[-1, 0].item()) == (0.0, 1.0, 0.5)  # of log(1 + count)
    assert logger["mending/train/omega"] == ([0.25, 0.75, 0.75], 4, 2) and logger["mending/degrees"] == ([0, 2, 2], 4, None)


def test_matrices_are_written_for_the_report(tmp_path):
    show(Diagnostics(), Folder(tmp_path), 0)
    assert not list(tmp_path.iterdir())
    logger = Logger()
    found = Diagnostics({"fedpub/alpha": torch.eye(2)}, clients=[3, 5])
    show(found, Folder(tmp_path), 7)
    show(found, Folder(tmp_path, logger), 7)
    assert json.loads((tmp_path / "matrices.json").read_text()) == {
        "round": 7, "clients": [3, 5], "alpha": [[1.0, 0.0], [0.0, 1.0]]
    }  # fmt: skip
    assert logger.keys() == {"fedpub/alpha"}


def test_a_histogram_as_samples_thinned_in_proportion_where_there_are_too_many():
    values = torch.tensor([0.1, 0.2, 0.3])
    assert as_samples(values, [1, 0, 2]).tolist() == values[[0, 2, 2]].tolist()
    assert as_samples(values, [1, 0, 2], most=3).tolist() == values[[0, 2, 2]].tolist()
    thinned = as_samples(values, [3, 10, 7], most=10)  # 30 / 20, 100 / 20, 70 / 20, rounded down
    assert torch.bincount((thinned * 10).round().long()).tolist() == [0, 1, 5, 3]
    assert len(as_samples(values, [10**12, 0, 0])) == 1_000_000


def test_a_huge_histogram_is_drawn_without_as_many_samples():
    logger = Logger()
    draw(Diagnostics(histograms={"h": Histogram([2**50, 3 * 2**50])}), logger, 0)
    samples = logger["h"][0]
    assert len(samples) == 1_000_000 and samples.count(0.75) == 750_000
