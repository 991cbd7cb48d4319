"""Configs of the wheel are found by their names; the user's own files come first."""

from pathlib import Path

from fl_lightning.packaged_configs import find_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_packaged_configs_are_those_of_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("configs/demo.yaml", "demo.yaml", "configs/compare/demo.yaml"):
        found = Path(find_config(name))
        assert found.is_file() and found.read_text() == (CONFIGS / name.removeprefix("configs/")).read_text()


def test_own_files_come_first_and_unknown_names_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/demo.yaml").write_text("mine")
    assert find_config("configs/demo.yaml") == "configs/demo.yaml"
    for name in ("nothing.yaml", "/demo.yaml", "../configs/demo.yaml", "compare"):
        assert find_config(name) == name
