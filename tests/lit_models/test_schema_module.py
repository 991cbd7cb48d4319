"""Building from the schema, checkpoints, YAML, and where logged values go: what all our modules share."""

import pickle

import pytest
import torch
from lightning.pytorch.cli import LightningCLI

from lit_models import GraphSAGE, LitGraphModule, LitNodeClassifier
from lit_models.schema_module import SchemaModule


def classifier():
    return LitNodeClassifier(GraphSAGE(hidden_channels=8))


def built():
    return LitNodeClassifier(GraphSAGE(hidden_channels=8), num_classes=3, in_channels=12)


def test_build_takes_the_schema_once(graph, data, trainer):
    module = classifier()
    trainer(fast_dev_run=True).fit(module, data(graph()))
    weight = module.encoder.convs[0].lin_l.weight
    assert weight.shape == (8, 12) and module.schema == {"num_features": 12, "num_classes": 3}
    module.build({"num_features": 12, "num_classes": 3})
    assert module.encoder.convs[0].lin_l.weight is weight
    with pytest.raises(ValueError, match="was built for data with .*'num_classes': 3.* cannot be used with data with"):
        module.build({"num_features": 12, "num_classes": 4})


def test_a_module_that_has_learnt_refuses_data_whose_columns_mean_something_else(graph, data, trainer):
    sizes = {"num_features": 12, "num_classes": 3}
    names = [f"f{i}" for i in range(12)]
    module, own = classifier(), data(graph())
    own.schema = {**sizes, "feature_names": names}
    trainer(fast_dev_run=True).fit(module, own)
    module.build(sizes)  # data without names, or a checkpoint of a time when there were none
    own.schema = {**sizes, "feature_names": ["f1", "f0", *names[2:]]}
    with pytest.raises(ValueError, match="learnt with other feature_names .*: number 1 is 'f0' there and 'f1' here"):
        trainer(fast_dev_run=True).test(module, own)
    own.schema = {**sizes, "feature_names": names[:11]}
    with pytest.raises(ValueError, match=r"number 12 is 'f11' there and None here \(of 12 and 11\)"):
        trainer(fast_dev_run=True).test(module, own)


def test_a_data_module_without_schema_is_an_error(graph, data, trainer):
    class NoSchema(data):
        schema = None

    with pytest.raises(ValueError, match="`data: NoSchema` has no attribute `schema`"):
        trainer().fit(classifier(), NoSchema(graph()))


def test_the_sink_of_logged_values_can_be_replaced(graph, data, trainer):
    module, seen = built(), {}
    module.log_values = seen.update
    run = trainer()
    run.fit(module, data(graph()))
    del module.log_values
    assert set(seen) == {"train/loss", "val/accuracy", "val/f1", "val/loss"} and not run.callback_metrics


def test_load_from_checkpoint_rebuilds_from_the_schema(graph, data, trainer, tmp_path):
    module, path = classifier(), tmp_path / "model.ckpt"
    run = trainer()
    run.fit(module, data(graph()))
    run.save_checkpoint(path)
    loaded = LitNodeClassifier.load_from_checkpoint(path, encoder=GraphSAGE(hidden_channels=8), weights_only=True)
    torch.testing.assert_close(loaded.eval()(graph()), module.eval()(graph()))
    assert trainer().test(loaded, data(graph()), verbose=False) == trainer().test(module, data(graph()), verbose=False)


def test_yaml_names_classes_and_the_checkpoint_needs_none(tmp_path, graph, data):
    class CliData(data):
        def __init__(self):
            super().__init__(graph())

    model = {
        "class_path": "lit_models.LitNodeClassifier",
        "init_args": {
            "encoder": {"class_path": "lit_models.GraphSAGE", "init_args": {"hidden_channels": 8}},
            "objective": {"class_path": "lit_models.objectives.ERM"},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.02, "weight_decay": 5.0e-4}},
        },
    }
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    cli = LightningCLI(
        LitGraphModule,
        CliData,
        subclass_mode_model=True,
        save_config_callback=None,
        args={
            "fit": {"model": model, "trainer": {**quiet, "max_epochs": 1, "default_root_dir": str(tmp_path)}},
            "subcommand": "fit",
        },
    )
    pickle.dumps(cli.model)
    assert cli.model.configure_optimizers().param_groups[0]["lr"] == 0.02
    (path,) = tmp_path.rglob("*.ckpt")
    loaded = LitNodeClassifier.load_from_checkpoint(path, weights_only=True)
    torch.testing.assert_close(loaded.eval()(graph()), cli.model.eval()(graph()))


def test_what_a_subclass_must_implement_is_named():
    with pytest.raises(NotImplementedError, match=r"SchemaModule must implement `build_layers\(schema\)`"):
        SchemaModule(torch.optim.SGD).build({})
