"""A reused Trainer calls the hooks around every run as in its first, which is Lightning's own."""

from federations import CPU, Linear, Table
from lightning.pytorch.callbacks import Callback

from fl_lightning.engine.local import LocalTrainer

HOOKS = (
    "setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end", "on_fit_end",
    "on_validation_start", "on_validation_epoch_end", "on_validation_end", "on_test_start", "on_test_end", "teardown",
)  # fmt: skip
CALLED: list[str] = []


def recording(base, owner):
    """A class whose hooks around a run and an epoch are written down; hooks around a batch are not its own."""

    def hook(name):
        def call(self, *args, **kwargs):
            stage = kwargs.get("stage") or next((a for a in args if isinstance(a, str)), "")
            CALLED.append(f"{owner}.{name} {stage}".strip())

        return call

    return type(owner, (base,), {name: hook(name) for name in HOOKS if hasattr(base, name)})


def calls(run):
    CALLED.clear()
    run()
    return list(CALLED)


def test_every_run_calls_the_hooks_of_the_first():
    module, data = recording(Linear, "module")(), Table(8, seed=1)
    local = LocalTrainer(module, {**CPU, "callbacks": [recording(Callback, "callback")()]})
    for run in (lambda: local.fit(data), lambda: local.evaluate(data, "val"), lambda: local.evaluate(data, "test")):
        first = calls(run)
        assert len(first) > 5 and any("teardown" in name for name in first)
        assert calls(run) == calls(run) == first
    assert {"module.on_fit_start", "callback.on_fit_start", "module.on_fit_end", "callback.on_fit_end"} <= {
        *calls(lambda: local.fit(data))
    }


def test_the_trainer_is_finished_after_every_run():
    local, data = LocalTrainer(Linear(), CPU), Table(8, seed=1)
    for _ in range(3):
        local.fit(data)
        trainer = local.module.trainer
        assert trainer.state.finished and trainer.state.stage is None
