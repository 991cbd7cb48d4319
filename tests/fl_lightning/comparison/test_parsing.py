"""A config of a comparison that `fit` would refuse is told before the first cell is trained."""

import pytest

from fl_lightning.comparison import parsing
from fl_lightning.comparison.commands import main
from fl_lightning.comparison.parsing import check_keys
from fl_lightning.comparison.plan import read_plan

BASE = """
federation: {num_rounds: 2}
trainer: {max_epochs: 1, accelerator: cpu}
model:
  class_path: lit_models.LitNodeClassifier
  init_args: {encoder: {class_path: lit_models.GraphSAGE, init_args: {hidden_channels: 8}}}
data: {class_path: datamodules.SyntheticCitationDataModule, init_args: {num_nodes: 60, num_clients: 2}}
"""


def study(folder, methods, **more):
    (folder / "base.yaml").write_text(BASE)
    lines = ["base: base.yaml", f"methods: {methods}", *(f"{key}: {value}" for key, value in more.items())]
    (folder / "study.yaml").write_text("\n".join(lines))
    return folder / "study.yaml"


@pytest.mark.parametrize(
    ("methods", "more", "text"),
    [
        ("{FedAvg: {}, Long: {federation.num_round: 9}}", {"seeds": "[0, 1]"},
         "Long | seed 0: `federation.num_round`: no such key. Did you mean `num_rounds`?"),
        ("{FedAvg: {}}", {"axes": "{size: {small: {data.init_args.num_node: 50}}}"}, "`data.init_args.num_node`: no such key"),
        ("{A: {search: {space: {model.init_args.encoder.init_args.chanels: [1, 2]}}}}", {}, "chanels`: no such key"),
        ("{A: {}}", {"baselines": "{Central: {trainer.max_epoch: 3}}"}, "`trainer.max_epoch`: no such key"),
    ],
)  # fmt: skip
def test_a_misspelt_key_is_told_before_anything_is_trained(tmp_path, methods, more, text):
    with pytest.raises(ValueError) as caught:
        main(["compare", "--config", str(study(tmp_path, methods, **more)), "--out", str(tmp_path / "out")])
    assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_what_differs_in_seeds_and_numbers_is_read_once(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(parsing, "_Parsed", lambda arguments: read.append(arguments))
    path = study(tmp_path, "{A: {}, B: {federation.num_rounds: 5}}", seeds="[0, 1, 2]", axes="{clients: [2, 3]}")
    check_keys(read_plan(path))
    assert len(read) == 3  # the methods, LocalOnly, and centrally
    assert sum(arguments[-2:] == ["--federation", "null"] for arguments in read) == 1
