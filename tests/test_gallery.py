"""Modules as their authors write them, federated unchanged (`examples/gallery`).

Of each: one site over the rounds is one stock `Trainer.fit`, bit for bit; three sites run, a run that was cut goes on to the
same bits, two workers give the same bits, and the model loads in a plain script. Against the stock training, data are not
shuffled, and what is drawn in a step (dropout, a GAN's noise) is off or fixed: each round has random streams of its own.
"""

import importlib
import importlib.util
import json
import math
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from federations import assert_same_bits, checkpoint_tensors, last_checkpoint, without_times
from lightning.pytorch.callbacks import Callback
from schedules import stock
from sklearn.preprocessing import StandardScaler

from fl_lightning import FederatedTrainer, load_model
from fl_lightning.engine import WorkerProcesses
from fl_lightning.engine.entries import Entries
from fl_lightning.engine.seeds import stream
from fl_lightning.engine.statistics import exchange, use

GALLERY = Path(__file__).resolve().parent.parent / "examples" / "gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "sites")
PLAIN = ("accumulation", "autoencoder", "cnn", "configured", "gan", "gin", "mixed_precision", "transformer")
LOADS_ITSELF = ("accumulation", "cnn", "configured", "gan", "mixed_precision", "transformer")  # all hyperparameters are plain


def example(name: str):
    if name.startswith("chemprop") and importlib.util.find_spec("chemprop") is None:
        pytest.skip('chemprop is not installed: pip install -e ".[chemprop]" (see CONTRIBUTING)')
    return importlib.import_module(name)


def federate(gallery, root, sites, seed=0, ckpt_path=None, model=None, trainer=None, **more):
    """As an example's `main`, with other settings."""
    settings = {**gallery.SETTINGS, "name": gallery.__name__, **more}
    settings["trainer"] = {**gallery.SETTINGS["trainer"], "default_root_dir": str(root), **(trainer or {})}
    L.seed_everything(seed, verbose=False)
    fed = FederatedTrainer(**settings)
    fed.fit((model or gallery.model)(), sites, ckpt_path=ckpt_path)
    return fed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of three sites, once for each example."""
    runs = {}

    def of(name):
        if name not in runs:
            gallery = example(name)
            runs[name] = federate(gallery, tmp_path_factory.mktemp(name), [gallery.site(number) for number in range(3)])
        return runs[name]

    return of


def test_each_example_is_here():
    assert sorted([*PLAIN, "chemprop_multitask", "chemprop_own_tables", "chemprop_regression"]) == NAMES


# ---- one site is one stock training -----------------------------------------------------------------------------------


def without_chance(gallery):
    """The example's model without anything that is drawn in a step."""
    if gallery.__name__ in ("transformer", "accumulation"):
        return gallery.model(dropout=0.0)
    if gallery.__name__ == "gan":
        module = gallery.model()
        noise = torch.randn(64, module.hparams.latent_dim, generator=torch.Generator().manual_seed(1))
        module.sample_z = lambda n: noise[:n]
        return module
    return gallery.model()


@pytest.mark.parametrize("name", NAMES)
def test_one_site_is_one_stock_training(tmp_path, name):
    gallery = example(name)
    rounds, args = gallery.SETTINGS["num_rounds"], dict(gallery.SETTINGS["trainer"])
    fed = federate(
        gallery, tmp_path, [gallery.site(0, shuffle=False)], model=lambda: without_chance(gallery), carry_optimizer_state=True
    )
    weights = torch.load(last_checkpoint(fed.run_dir) / "server.pt", weights_only=True)["tensors"]
    weights = {key.removeprefix("global/"): value for key, value in weights.items()}
    L.seed_everything(0, verbose=False)
    module = without_chance(gallery)
    if name == "configured":
        with stream(0, "initial weights"):  # as the federation makes the layers
            module.configure_model()
    data = gallery.site(0, shuffle=False)
    if hasattr(data, "statistics"):
        data.setup()
        use(exchange([data]).agreed, data, module)  # a stock Trainer asks nobody
    before = {key: value.clone() for key, value in module.state_dict().items()}
    args = {**args, "max_epochs": rounds * args["max_epochs"]}
    for quiet in ("accelerator", "enable_progress_bar"):
        args.pop(quiet)
    after = stock(module, data, **args).state_dict()
    counts = {key for key, value in after.items() if not value.is_floating_point()}  # integers are never averaged
    assert all(key.endswith("num_batches_tracked") for key in counts)
    shared = set(Entries(module).shared) - counts  # tied weights travel once
    assert_same_bits({k: after[k] for k in shared}, {k: v for k, v in weights.items() if k not in counts})
    assert any(not torch.equal(before[key], after[key]) for key in before)


# ---- three sites ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_three_sites_learn_and_their_model_loads_in_a_plain_script(whole, name):
    gallery, fed = example(name), whole(name)
    assert fed.results["failures"] == [] and fed.results["rounds_run"] == gallery.SETTINGS["num_rounds"]
    assert math.isfinite(fed.results["test"]["mean"]) and None not in fed.results["test"]["per_client"]
    loaded = load_model(fed.run_dir, module=gallery.model())
    if name in LOADS_ITSELF:
        path = fed.run_dir / "checkpoints" / "best.ckpt"
        again = type(loaded).load_from_checkpoint(path, weights_only=True)
        assert_same_bits(dict(loaded.state_dict()), dict(again.state_dict()))
    torch.manual_seed(0)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    found = L.Trainer(accelerator="cpu", **quiet).test(loaded, gallery.site(0), verbose=False)[0]
    if name not in ("gan", "mixed_precision"):  # new noise; float32
        metric = fed.results["metric"]
        value = next(value for key, value in found.items() if key.replace("/", "_") == f"test_{metric}")
        assert value == fed.results["test"]["per_client"][0]


class Cut(Callback):
    """Interrupts in the second round."""

    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 3:
            raise KeyboardInterrupt


FEW = ("cnn", "gan", "chemprop_regression")
OFTEN = [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", OFTEN)
def test_a_run_that_was_cut_goes_on_to_the_same_bits(tmp_path, whole, name):
    gallery, uncut = example(name), whole(name)
    sites = [gallery.site(number) for number in range(3)]
    config = {"example": name}  # what a checkpoint compares: `Cut` is no difference
    with pytest.raises(SystemExit):  # so says Lightning
        federate(gallery, tmp_path, sites, trainer={"callbacks": [Cut()]}, run_config=config)
    fed = federate(gallery, tmp_path, sites, ckpt_path="last", run_config=config)
    assert_same_bits(checkpoint_tensors(last_checkpoint(uncut.run_dir)), checkpoint_tensors(last_checkpoint(fed.run_dir)))
    assert without_times(uncut.results) == without_times(fed.results)


@pytest.mark.slow  # two processes that import everything: seconds for each example
@pytest.mark.parametrize("name", NAMES)
def test_two_workers_have_the_same_bits(tmp_path, whole, name):
    gallery, here = example(name), whole(name)
    sites = [gallery.site(number) for number in range(3)]
    fed = federate(gallery, tmp_path, sites, engine=WorkerProcesses(num_workers=2))
    assert_same_bits(checkpoint_tensors(last_checkpoint(here.run_dir)), checkpoint_tensors(last_checkpoint(fed.run_dir)))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_main_prints_the_scores(tmp_path, monkeypatch, capsys, name):
    gallery = example(name)
    monkeypatch.chdir(tmp_path)
    gallery.main()
    assert "on average over the sites" in capsys.readouterr().out


# ---- chemprop on own tables -------------------------------------------------------------------------------------------


def write_table(path, number):
    """A site's 20 alcohols with two labels whose level is the site's own, the second unmeasured in every other row."""
    rows = [f"{'C' * (row + 1)}O,{10 * number + row / 4},{'' if row % 2 else 100 - 20 * number + row}" for row in range(20)]
    path.write_text("\n".join(["smiles,solubility,melting point", *rows]) + "\n", encoding="utf-8")
    return path


def test_three_own_tables_share_one_scale_which_fills_chemprops_output_transform(tmp_path):
    """The scale is that of chemprop's own scaler on the training rows of all; scores and predictions are in units."""
    gallery = example("chemprop_own_tables")
    paths = [write_table(tmp_path / f"{number}.csv", number) for number in range(3)]
    sites = [gallery.TableSite(path, ("solubility", "melting point")) for path in paths]
    fed = federate(gallery, tmp_path, sites)
    loaded = load_model(fed.run_dir, module=gallery.model())
    assert type(loaded).__module__.startswith("chemprop.")
    transform = loaded.predictor.output_transform
    wanted = StandardScaler().fit(np.concatenate([site.labels.numpy() for site in sites]))
    assert np.isnan(sites[0].labels).any()
    torch.testing.assert_close(transform.mean, torch.tensor(wanted.mean_[None], dtype=torch.float32))
    torch.testing.assert_close(transform.scale, torch.tensor(wanted.scale_[None], dtype=torch.float32))
    for site in sites:
        np.testing.assert_allclose(site.train.Y, wanted.transform(site.labels.numpy()), atol=1e-5)  # NaN where unmeasured
        assert np.nanmean(site.test.Y) > 1.5  # in units
    lines = [json.loads(line) for line in (fed.run_dir / "ledger.jsonl").read_text().splitlines()]
    assert sum(line["kind"] == "statistics" for line in lines) == 6
    assert fed.results["test"]["mean"] < 0.9 * float(np.sqrt(np.nanmean(wanted.var_)))  # of both tasks' variance together


def test_the_documented_scale_fills_chemprops_output_transform():
    """Labels 1, 2, 3, 6: mean 3, and their mean square 12.5 less 9 is 3.5."""
    example("chemprop_regression")
    page = (GALLERY.parents[1] / "docs" / "bring_your_module.md").read_text(encoding="utf-8")
    names: dict = {"__name__": "page"}
    exec(compile(page.split("```python\n")[1].split("```")[0], "bring_your_module.md", "exec"), names)
    use({"sums": {"labels": {"count": [4.0], "sum": [12.0], "square": [50.0]}}, "names": {}}, names["model"])
    transform = names["model"].predictor.output_transform.eval()
    torch.testing.assert_close(transform(torch.tensor([[0.0], [1.0]])), torch.tensor([[3.0], [3.0 + math.sqrt(3.5)]]))


def test_a_federated_mpnn_is_saved_for_chemprop_in_its_own_format(tmp_path, whole):
    """As docs/bring_your_module.md says: what chemprop's loader makes of the file predicts the same."""
    gallery, fed = example("chemprop_own_tables"), whole("chemprop_own_tables")
    from chemprop import nn
    from chemprop.models import load_model as chemprops
    from chemprop.models import save_model

    model = load_model(fed.run_dir, module=gallery.model())
    model.hparams["predictor"]["output_transform"] = nn.UnscaleTransform([0.0, 0.0], [1.0, 1.0])
    save_model(tmp_path / "model.pt", model)
    assert b"AgreedScale" not in (tmp_path / "model.pt").read_bytes()  # chemprop has no such class
    site = gallery.site(0)
    site.setup()
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    found = [
        torch.cat(L.Trainer(**quiet).predict(module, site.test_dataloader()))
        for module in (model, chemprops(tmp_path / "model.pt"))
    ]
    assert torch.equal(*found) and torch.isfinite(found[0]).all()
