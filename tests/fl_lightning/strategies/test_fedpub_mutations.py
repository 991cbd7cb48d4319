"""Mutation tests of FED-PUB: with a published bug put back into an equation, the oracle named beside it must fail.

The oracles are the test functions of the neighbouring files, run against a mutated function. Each must pass without it.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from fl_lightning.strategies.mixtures import cosine_similarity
from lit_models import masks
from lit_models.objectives import fedpub as objective

TESTS = Path(__file__).parents[2]
NOTHING = (None, None, None)


def _load(path):
    name = "oracles_of_" + path.replace("/", "_").removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MASKS = _load("lit_models/test_masks.py")
OBJECTIVE = _load("lit_models/objectives/test_fedpub.py")
EQUATIONS = _load("fl_lightning/strategies/test_fedpub_equations.py")


def _detached(terms):
    return lambda *args: {name: term.detach() for name, term in terms(*args).items()}


def _live(self, module):
    self._received = {name: masks.raw_weight(layer) for name, layer in masks.masked_layers(module)}


def _self_left_out(embeddings, tau):
    scaled = tau * cosine_similarity(embeddings)
    return torch.softmax(scaled.fill_diagonal_(-torch.inf), dim=-1)


def _biases_too(module, prune_below=1e-3):
    masks.apply_masks(module, prune_below)
    for _, layer in list(masks.masked_layers(module)):
        if layer.bias is not None:
            layer.register_parameter("bias_mask", nn.Parameter(torch.ones_like(layer.bias)))
    return module


def _pruned_always(self):
    return masks.raw_weight(self) * masks.pruned(self.mask, self.prune_below)


def _never_pruned(self):
    return masks.raw_weight(self) * self.mask


def _saves_product(self, destination, prefix, keep_vars):
    nn.Module._save_to_state_dict(self, destination, prefix, keep_vars)
    destination[prefix + "weight"] = self.weight.detach()


NO_GRADIENT = _detached(objective.MaskedProximal.penalties)
live_l1 = (OBJECTIVE.test_each_term_is_live, {"arguments": {"l1": 1e-2, "l2": 0.0, "l1_reduction": "mean"}})
live_l2 = (OBJECTIVE.test_each_term_is_live, {"arguments": {"l1": 0.0, "l2": 1e-3}})
by_hand = (OBJECTIVE.test_note_form_by_hand_o4, {})
alpha_by_hand = (EQUATIONS.test_alpha_by_hand_o1, {})
weights_by_hand = (EQUATIONS.test_personal_weights_by_hand_o2, {})
mask_names = (MASKS.test_one_mask_per_matrix_none_on_biases_or_norms_and_no_name_changes, {})
pruning = (MASKS.test_pruning_in_evaluation_only_and_strict_o3, {})

MUTANTS = {
    "nothing": (*NOTHING, by_hand),
    "L1 detached": (objective.MaskedProximal, "penalties", NO_GRADIENT, live_l1),
    "proximal term detached": (objective.MaskedProximal, "penalties", NO_GRADIENT, live_l2),
    "square dropped": (
        objective, "note_proximal",
        lambda received, mu: sum(torch.linalg.vector_norm(w * mu[name] - w) for name, w in received.items()), by_hand,
    ),
    "square put into the code's form": (
        OBJECTIVE, "code_proximal",
        lambda received, now: sum((now[name] - w).square().sum() for name, w in received.items()),
        (OBJECTIVE.test_pure_forms_over_two_tensors, {}),
    ),
    "L1 of the signed mask": (objective, "mask_l1", lambda mu, reduction: sum(m.sum() for m in mu), by_hand),
    "received weights are live references": (
        objective.MaskedProximal, "on_train_start", _live, (OBJECTIVE.test_received_weights_are_a_copy, {}),
    ),
    "tau dropped": (
        EQUATIONS, "similarity_weights", lambda h, tau: torch.softmax(cosine_similarity(h), dim=-1), alpha_by_hand,
    ),
    "self left out of the softmax": (EQUATIONS, "similarity_weights", _self_left_out, alpha_by_hand),
    "similarities not exponentiated": (
        EQUATIONS, "similarity_weights",
        lambda h, tau: cosine_similarity(h) / cosine_similarity(h).sum(1, keepdim=True),
        (EQUATIONS.test_alpha_of_orthogonal_clients, {}),
    ),
    "dot product for cosine": (
        EQUATIONS, "similarity_weights", lambda h, tau: torch.softmax(tau * h @ h.T, dim=-1),
        (EQUATIONS.test_alpha_of_orthogonal_clients, {}),
    ),
    "alpha transposed": (
        EQUATIONS, "personal_average", lambda alpha, theta: alpha.T @ theta, weights_by_hand,
    ),
    "plain mean": (
        EQUATIONS, "personal_average", lambda alpha, theta: theta.mean(0).expand_as(theta), weights_by_hand,
    ),
    "mask on biases": (MASKS, "apply_masks", _biases_too, mask_names),
    "pruning in training": (masks.MaskedWeight, "weight", property(_pruned_always), pruning),
    "no pruning in evaluation": (masks.MaskedWeight, "weight", property(_never_pruned), pruning),
    "masked weights in the state dict": (
        masks.MaskedWeight, "_save_to_state_dict", _saves_product,
        (MASKS.test_state_dict_holds_raw_weights_never_the_product, {}),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`l1")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_oracle_fails_with_the_bug_in(mutant, monkeypatch):
    owner, name, mutated, (oracle, arguments) = MUTANTS[mutant]
    oracle(**arguments)
    if owner is None:
        return
    monkeypatch.setattr(owner, name, mutated)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        oracle(**arguments)
