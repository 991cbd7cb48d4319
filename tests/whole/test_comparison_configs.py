"""The ready comparisons: every cell is listed without running it, and configs of all methods and settings are valid."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from fl_lightning.cli import FederatedCLI
from fl_lightning.comparison.plan import read_plan, trial_cell

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs" / "compare").glob("*.yaml"))
MOLECULES = {"FreeSolv", "ESOL", "Lipo", "Tox21", "SIDER", "ClinTox", "BBBP", "BACE"}
GRAPHS = {"Cora", "CiteSeer", "PubMed", "Computers", "Photo"}
# Per file: what the full profile varies, and its number of methods, baselines included.
FULL = {
    "demo": ({"clients": {"3", "5", "10"}}, 4),
    "fedsage_cora": ({"clients": {"3", "5", "10"}}, 4),
    "fedsage": ({"data": {"Cora", "CiteSeer", "CS"}, "clients": {"3", "5", "10"}}, 4),
    "fedsage_pubmed": ({"clients": {"3", "5", "10"}}, 4),
    "fedsage_proto": ({"data": {*GRAPHS, "CS"}, "clients": {"3", "10", "20"}}, 2),
    "fedsage_proto_controls": ({"clients": {"10", "20"}}, 9),
    "fedpub_disjoint": ({"data": GRAPHS, "clients": {"5", "10", "20"}}, 6),
    "fedpub_overlapping": ({"data": GRAPHS, "clients": {"10", "30", "50"}}, 6),
    "leaderboard_louvain": ({"data": {*GRAPHS, "CS"}, "clients": {"3", "10", "20"}}, 9),
    "leaderboard_louvain_search": ({"data": {"Cora"}, "clients": {"20"}}, 4),
    "leaderboard_metis": ({"data": {"Cora"}, "clients": {"5", "10", "20"}}, 8),
    "leaderboard_metis_amazon": ({"data": {"Photo", "Computers"}, "clients": {"10"}}, 2),
    "leaderboard_metis_search": ({"data": {"Cora"}, "clients": {"10"}}, 8),
    "fedchem": ({"data": MOLECULES, "alpha": {"0.1", "0.5", "1.0"}}, 9),
    "fedchem_search": ({"data": MOLECULES, "alpha": {"0.1", "0.5", "1.0"}}, 9),
    "fedchem_qm9": ({"alpha": {"0.1", "0.5", "1.0"}}, 9),
    "fedchem_rounds": ({"data": {"ESOL", "ClinTox", "BACE"}, "rounds": {"15", "30", "50"}}, 6),
    "forest": ({"data": MOLECULES, "alpha": {"0.1", "0.5", "1.0"}}, 3),
    "fedchem_clients": ({"data": {"ESOL", "ClinTox", "BACE"}, "clients": {"4", "5", "6"}}, 6),
}


def all_cells(plan):
    return [*plan.cells, *(search.cell for search in plan.searches)]


def test_every_file_is_described_here():
    assert {p.stem for p in FILES} == set(FULL)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_full_has_all_cells_of_the_paper_and_quick_is_a_part_of_its_settings(path):
    axes, methods = FULL[path.stem]
    full, quick = (all_cells(read_plan(path, profile)) for profile in ("full", "quick"))
    assert read_plan(path).profile == "quick"
    number = methods * len({c.seed for c in full})
    for name, labels in axes.items():
        assert {c.setting[name] for c in full} == labels
        number *= len(labels)
    assert len(full) == len({c.key for c in full}) == number
    assert {c.method for c in quick} == {c.method for c in full} and len(quick) <= 40
    assert max(c.config["federation"]["num_rounds"] for c in quick) <= max(c.config["federation"]["num_rounds"] for c in full)


def test_the_searches_have_the_grids_of_the_paper():
    """docs/papers/fedchem.md#rivals."""
    plan = read_plan(ROOT / "configs" / "compare" / "fedchem_search.yaml", "quick")
    grids = {s.cell.method: [{k.split(".")[-1]: v for k, v in s.space.items()}, s.sampler, s.trials] for s in plan.searches}
    assert grids == {
        "FedProx": [{"mu": [0.001, 0.01, 0.1, 1.0, 10.0]}, "grid", 5],
        "MOON": [{"mu": [0.1, 1.0, 5.0, 10.0]}, "grid", 4],
        "FedFocal": [{"gamma": [0.5, 1.0, 2.0]}, "grid", 3],
        "FedVAT": [{"lam": [0.01, 0.1, 1.0]}, "grid", 3],
        "FLIT": [{"gamma": [0.5, 1.0, 2.0]}, "grid", 3],
        "FLIT+": [{"gamma": [0.5, 1.0, 2.0], "lam": [0.01, 0.1, 1.0]}, "grid", 9],
    }


def test_steps_are_fixed_over_rounds_and_participants_follow_the_clients():
    def federation(name):
        return {json.dumps(c.setting): c.config for c in read_plan(ROOT / "configs" / "compare" / f"{name}.yaml", "full").cells}

    for config in federation("fedchem_rounds").values():
        assert 9950 <= config["federation"]["num_rounds"] * config["trainer"]["max_steps"] <= 10000
    plan = read_plan(ROOT / "configs" / "compare" / "fedchem_clients.yaml", "full")
    share = {
        (c.config["data"]["init_args"]["num_clients"], c.config["federation"]["clients_per_round"])
        for c in plan.cells
        if c.method != "LocalOnly"
    }
    assert share == {(4, 3), (5, 3), (6, 4)}  # L : K of the paper's protocol


def test_overlapping_takes_the_higher_tau_of_the_authors_script():
    for name, tau in (("disjoint", 3.0), ("overlapping", 5.0)):
        plan = read_plan(ROOT / "configs" / "compare" / f"fedpub_{name}.yaml")
        found = [c.config["federation"]["strategy"]["init_args"] for c in plan.cells if c.method == "FED-PUB reference"]
        assert {f["tau"] for f in found} == {tau}


def test_cells_are_valid_configs(tmp_path, monkeypatch, capsys):
    """Classes and arguments of each method, data set and searched key, as ``fit --print_config`` checks them."""
    texts, seen = {}, set()
    for path in FILES:
        plan = read_plan(path, "full")
        for cell in [*plan.cells, *(trial_cell(s.cell, {k: v[0] for k, v in s.space.items()}) for s in plan.searches)]:
            model, data = cell.config["model"]["init_args"], cell.config["data"]
            strategy = cell.config["federation"]["strategy"]
            strategy = strategy if isinstance(strategy, str) else strategy["class_path"]
            for key in (
                (strategy, json.dumps([model.get("encoder"), model.get("objective")])),
                (data["class_path"], tuple(data["init_args"])),
            ):
                if key not in seen:
                    seen.add(key)
                    texts[cell.key + path.stem] = cell.config
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    for number, config in enumerate(texts.values()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(config))
        with pytest.raises(SystemExit) as stop:
            FederatedCLI(["fit", "--config", str(path), "--print_config"])
        said = capsys.readouterr()
        assert stop.value.code in (0, None) and "model:" in said.out, said.err
