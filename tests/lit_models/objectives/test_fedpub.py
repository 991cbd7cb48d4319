r"""FED-PUB's local objective by hand (O4, O5), and the bugs it was published with.

Recipe: theta_bar = W = [1, 2, 3, 4], mu = [1, -.5, 0, 2], so ||mu||_1 = 3.5 and theta_bar mu - theta_bar =
[0, -3, -3, 4] with squares 0, 9, 9, 16. With lambda_1 = .1, lambda_2 = .01: .35 + .34 = .69;
d/d mu = .1 sign(mu) + .02 theta_bar^2 (mu - 1) = [.1, -.22, -.18, .42] (sign(0) = 0).
"""

import copy
import math
import pickle

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import nn
from torch.utils.data import DataLoader

from lit_models.base import LitGraphModule, SampleLosses
from lit_models.masks import apply_masks, named_masks, raw_weight
from lit_models.objectives.base import Objective
from lit_models.objectives.erm import ERM
from lit_models.objectives.fedpub import MaskedProximal, code_proximal, mask_l1, note_proximal

WEIGHT = [[1.0, 2.0, 3.0, 4.0]]
MASK = [[1.0, -0.5, 0.0, 2.0]]


class Tiny(LitGraphModule):
    """One linear layer of four weights and a bias; squared loss against zero, one sample per row."""

    def __init__(self, objective, masked=True, learning_rate=0.1):
        super().__init__(objective, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=learning_rate))
        self.masked = masked
        self.build({"num_features": 4})

    def build_layers(self, schema):
        self.layer = nn.Linear(4, 1)
        if self.masked:
            apply_masks(self)
            self.layer.mask.data.copy_(torch.tensor(MASK))
        self.layer._parameters["weight"].data.copy_(torch.tensor(WEIGHT))
        self.layer.bias.data.zero_()

    def forward(self, batch):
        return self.layer(batch)

    def losses(self, outputs, batch, stage="train"):
        loss = outputs.square()
        return SampleLosses(loss, torch.ones_like(loss, dtype=torch.bool), torch.arange(len(loss)))


def _penalty(module, **arguments):
    objective = MaskedProximal(**arguments)
    objective.on_train_start(module)
    return objective, objective.penalties(module)


def test_note_form_by_hand_o4():
    module = Tiny(ERM())
    with pytest.warns(UserWarning, match="l1: 0.1"):
        _, terms = _penalty(module, l1=0.1, l2=0.01)
    torch.testing.assert_close(terms["mask_l1"], torch.tensor(0.35))
    torch.testing.assert_close(terms["proximal"], torch.tensor(0.34))
    (terms["mask_l1"] + terms["proximal"]).backward()
    torch.testing.assert_close(module.layer.mask.grad, torch.tensor([[0.1, -0.22, -0.18, 0.42]]))
    assert raw_weight(module.layer).grad is None and module.layer.bias.grad is None  # theta_bar is constant


def test_code_form_by_hand_o4():
    # W - W_bar = [3, 4, 0, 0]: norm 5, not squared; the bias moves by -2: another 2. Gradient of the norm: [.6, .8].
    module = Tiny(ERM())
    objective, _ = _penalty(module, l1=0.0, l2=0.01, proximal="code")
    raw_weight(module.layer).data += torch.tensor([[3.0, 4.0, 0.0, 0.0]])
    terms = objective.penalties(module)
    assert set(terms) == {"proximal"}
    torch.testing.assert_close(terms["proximal"], torch.tensor(0.05))
    module.layer.bias.data -= 2
    terms = objective.penalties(module)
    torch.testing.assert_close(terms["proximal"], torch.tensor(0.07))
    terms["proximal"].backward()
    torch.testing.assert_close(raw_weight(module.layer).grad, torch.tensor([[0.006, 0.008, 0.0, 0.0]]))
    torch.testing.assert_close(module.layer.bias.grad, torch.tensor([-0.01]))
    assert module.layer.mask.grad is None


def test_code_form_is_zero_with_a_finite_zero_gradient_at_the_received_weights():
    module = Tiny(ERM())
    _, terms = _penalty(module, l2=1.0, proximal="code")
    terms["proximal"].backward()
    assert terms["proximal"].item() == 0.0
    assert torch.equal(raw_weight(module.layer).grad, torch.zeros(1, 4))


def test_the_mean_is_over_all_entries_of_all_masks():
    masks = [torch.tensor([[1.0, -3.0]]), torch.tensor([[2.0], [0.0], [0.0]])]
    assert mask_l1(masks).item() == 6.0
    torch.testing.assert_close(mask_l1(masks, "mean"), torch.tensor(1.2))  # 6 / 5, not the mean 4/3 of the two means


def test_pure_forms_over_two_tensors():
    received = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[3.0]])}
    masks = {"a": torch.tensor([[2.0, 1.0]]), "b": torch.tensor([[0.0]])}
    assert note_proximal(received, masks).item() == 10.0  # 1 + 0 + 9
    moved = {"a": torch.tensor([[4.0, 6.0]]), "b": torch.tensor([[1.0]])}
    assert code_proximal(received, moved).item() == 7.0  # 5 + 2; one norm over all would be sqrt(29)


def test_masks_of_one_cost_nothing_in_the_note_form():
    module = Tiny(ERM())
    module.layer.mask.data.fill_(1.0)
    _, terms = _penalty(module, l2=1.0)
    terms["proximal"].backward()
    assert terms["proximal"].item() == 0.0 and module.layer.mask.grad.abs().max() == 0


def test_received_weights_are_a_copy():
    module = Tiny(ERM())
    objective, before = _penalty(module, l2=0.01)
    raw_weight(module.layer).data.mul_(100)  # the optimiser steps in place
    torch.testing.assert_close(objective.penalties(module)["proximal"], before["proximal"])


def _gradients(objective):
    module = Tiny(objective)
    objective.on_train_start(module)
    loss = objective(module, torch.tensor([[0.1, 0.2, 0.3, -0.1]]))
    loss.backward()
    return loss.detach(), module.layer.mask.grad, raw_weight(module.layer).grad


@pytest.mark.parametrize(
    "arguments",
    [
        {"l1": 1e-6, "l2": 0.0},
        {"l1": 1e-2, "l2": 0.0, "l1_reduction": "mean"},
        {"l1": 0.0, "l2": 1e-3},
    ],
)
def test_each_term_is_live(arguments):
    """Bug 1 of the authors' code and its ports: penalties on detached tensors leave the mask's gradient alone."""
    plain, masked = _gradients(ERM()), _gradients(MaskedProximal(**arguments))
    assert masked[0] > plain[0]
    assert not torch.equal(masked[1], plain[1])
    assert torch.equal(masked[2], plain[2])


@pytest.mark.parametrize(
    "arguments", [{"l1": 0.0, "l2": 0.0}, {"l1": 0.0, "proximal": "none"}, {"l1": 0.0, "l2": 0.0, "proximal": "code"}]
)
def test_reference_profile_equals_the_plain_loss_bit_for_bit(arguments):
    for got, expected in zip(_gradients(MaskedProximal(**arguments)), _gradients(ERM()), strict=True):
        assert torch.equal(got, expected)


class Doubled(Objective):
    """A base loss with a memory and a histogram, to see that hooks reach it and that nothing of it is lost."""

    def __init__(self):
        self.calls = []

    def on_round_start(self, module, round, num_rounds):
        self.calls.append(("round", round, num_rounds))

    def on_train_start(self, module):
        self.calls.append("start")

    def __call__(self, module, batch):
        return 2 * module.losses(module(batch), batch).loss.mean()

    def on_train_end(self, module):
        self.calls.append("end")

    def pictures(self):
        return {"counts": [2, 0]}

    def state(self):
        return {"memory": torch.tensor(1.0)}

    def load_state(self, state):
        self.calls.append(sorted(state))


def test_composes_with_another_base_loss():
    # x = [1, 1, 0, 0]: output 1 * 1 + 2 * -.5 = 0 => loss 0; x = [1, 0, 0, 0]: 1 => 2 * mean(0, 1) = 1. Proximal .34.
    base = Doubled()
    objective = MaskedProximal(l1=0.0, l2=0.01, base=base)
    module = Tiny(objective)
    module.on_round_start(0, 10)  # FED-PUB has no warm-up
    objective.on_train_start(module)
    loss = objective(module, torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    torch.testing.assert_close(loss.detach(), torch.tensor(1.34))
    objective.on_train_end(module)
    assert set(module.private_state()) == {"base/memory"} and module.pictures() == {"counts": [2, 0]}
    module.load_private_state({"base/memory": torch.tensor(1.0)})
    assert base.calls == [("round", 0, 10), "start", "end", ["memory"]]


class Rows(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(torch.eye(4), batch_size=4)


def _trainer(**arguments):
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **arguments,
    )


def test_terms_are_logged_and_add_up_under_a_stock_trainer(tmp_path):
    module = Tiny(MaskedProximal(l1=1e-6, l2=0.01))
    trainer = _trainer(max_epochs=1, default_root_dir=tmp_path)
    trainer.fit(module, Rows())
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert logged["train/mask_l1"] == pytest.approx(3.5e-6)
    assert logged["train/proximal"] == pytest.approx(0.34)
    # rows of the identity: outputs W mu = [1, -1, 0, 8], squares 1, 1, 0, 64, mean 16.5
    assert logged["train/loss"] == pytest.approx(16.5 + 0.34 + 3.5e-6)
    assert module.objective._received is None  # nothing is kept between rounds


def test_the_logged_terms_are_means_over_the_epoch(tmp_path):
    """x = 0: the mask moves by the term alone, by -.1 * .02 theta^2 (mu - 1) = [0, .012, .018, -.032]. Then theta mu - theta is
    [0, -2.976, -2.946, 3.872] with squares 32.527876, and the mean of .34 and .32527876 is .33263938."""
    module = Tiny(MaskedProximal(l2=0.01))

    class TwoBatches(LightningDataModule):
        def train_dataloader(self):
            return DataLoader(torch.zeros(2, 4), batch_size=1)

    logged = {}
    module.log_values = logged.update  # as in a federation: of a name that is logged twice the last value stays
    _trainer(max_epochs=1, default_root_dir=tmp_path).fit(module, TwoBatches())
    assert logged["train/proximal"].item() == pytest.approx(0.33263938, rel=1e-6)
    assert logged["train/loss"].item() == pytest.approx(0.33263938, rel=1e-6)


def test_the_proximal_term_trains_the_mask(tmp_path):
    """With lambda_2 alone (inputs zero) the mask goes to one where theta_bar is not zero, in a stock fit."""
    module = Tiny(MaskedProximal(l2=0.5), learning_rate=0.05)

    class Zeros(LightningDataModule):
        def train_dataloader(self):
            return DataLoader(torch.zeros(1, 4))

    _trainer(max_epochs=200, default_root_dir=tmp_path).fit(module, Zeros())
    torch.testing.assert_close(module.layer.mask.detach(), torch.ones(1, 4), atol=1e-3, rtol=0)
    torch.testing.assert_close(raw_weight(module.layer).detach(), torch.tensor(WEIGHT))


def test_copies_and_pickles():
    objective = MaskedProximal(l1=1e-6, l2=0.5, l1_reduction="mean", proximal="code")
    for clone in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert (clone.l1, clone.l2, clone.l1_reduction, clone.proximal) == (1e-6, 0.5, "mean", "code")


def test_cross_entropy_of_zero_logits_o5():
    """With masks of zero the classifier says nothing: ln 7 for seven classes."""
    layer = apply_masks(nn.Linear(5, 7, bias=False))
    layer.mask.data.zero_()
    loss = nn.functional.cross_entropy(layer(torch.randn(3, 5)), torch.tensor([0, 3, 6]))
    assert loss.item() == pytest.approx(math.log(7), abs=1e-6)


def test_adam_shrinks_masks_of_unseen_words_o11():
    """Gradient 0, weight decay 1e-6: Adam rescales the decay to a full step (what acts in the authors' code)."""
    layer = apply_masks(nn.Linear(1, 1, bias=False))
    layer._parameters["weight"].data.zero_()  # so the mask's gradient is exactly zero
    optimizer = torch.optim.Adam([named_masks(layer)[""]], lr=0.01, weight_decay=1e-6)
    values = {}
    for step in range(1, 101):
        optimizer.zero_grad()
        layer(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        values[step] = layer.mask.item()
    assert values[1] == pytest.approx(0.990099, abs=1e-5)
    assert values[50] == pytest.approx(0.5415, abs=1e-3)
    assert values[100] == pytest.approx(0.2309, abs=1e-3)


def test_errors_name_the_remedy():
    with pytest.raises(ValueError, match=r"`Tiny` has no parameter named `\*.mask`. Use `model.init_args.encoder: lit"):
        MaskedProximal().on_train_start(Tiny(ERM(), masked=False))
    with pytest.raises(ValueError, match="has no parameter named"):
        MaskedProximal(l1=1e-6, l2=0).on_train_start(Tiny(ERM(), masked=False))
    MaskedProximal(l1=0, l2=0).on_train_start(Tiny(ERM(), masked=False))  # the reference profile needs no masks
    MaskedProximal(l2=1.0, proximal="code").on_train_start(Tiny(ERM(), masked=False))  # nor does a pull of the weights
    with pytest.raises(ValueError, match="call `on_train_start` before the first batch"):
        MaskedProximal().penalties(Tiny(ERM()))
    with pytest.raises(ValueError, match="must be >= 0"):
        MaskedProximal(l2=-1.0)
    with pytest.raises(ValueError, match="`l1` and `l2` of `MaskedProximal` must be >= 0, but are -1e-06 and 0.001"):
        MaskedProximal(l1=-1e-6)
    with pytest.raises(ValueError, match=r"`proximal` must be one of \('note', 'code', 'none'\), but is 'paper'"):
        MaskedProximal(proximal="paper")
    with pytest.raises(ValueError, match="`l1_reduction` must be one of"):
        MaskedProximal(l1_reduction="max")
    with pytest.warns(UserWarning, match="l1_reduction: mean"):
        MaskedProximal(l1=1e-3)


@pytest.mark.parametrize("l1", [0.0, 0.1])
def test_proximal_none_leaves_nothing_but_the_l1_term(l1):
    module = Tiny(ERM())
    objective, terms = _penalty(module, l1=l1, l2=5.0, proximal="none", l1_reduction="mean")
    assert terms.keys() == ({"mask_l1"} if l1 else set()) and objective._received is None
    if l1:
        torch.testing.assert_close(terms["mask_l1"].detach(), torch.tensor(0.0875))  # .1 * 3.5 / 4


def test_the_warning_begins_above_what_is_advised(recwarn):
    for quiet in ({"l1": 1e-5}, {"l1": 1.0, "l1_reduction": "mean"}, {}):
        MaskedProximal(**quiet)
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]
    with pytest.warns(UserWarning, match="l1: 1.1e-05") as warned:
        MaskedProximal(l1=1.1e-5)
    assert warned[0].filename == __file__  # where the value was given
    defaults = MaskedProximal()
    assert (defaults.l1, defaults.l2, defaults.l1_reduction, defaults.proximal) == (0.0, 1e-3, "sum", "note")
