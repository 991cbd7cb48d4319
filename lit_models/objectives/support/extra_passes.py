"""Further passes through a module that is being trained, which leave no trace in it.

They draw the same dropout masks as the pass they are compared with (so that a disturbance of size zero changes
nothing), leave the random stream where it was, and do not count for batch-norm statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Replay:
    """The random state of now; ``with replay():`` runs a block from it and then returns to where the stream was.

    Args:
        device: The device whose stream dropout draws from, beside the CPU's.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.states = self._get()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        after = self._get()
        self._set(self.states)
        try:
            yield
        finally:
            self._set(after)

    def _get(self) -> tuple[Tensor, Tensor | None]:
        on_gpu = self.device.type == "cuda"
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if on_gpu else None

    def _set(self, states: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1], self.device)


@contextmanager
def without_statistics(module: nn.Module) -> Iterator[None]:
    """Normalisation layers in training mode use the batch's statistics as ever, but do not add them to their own."""
    layers = [layer for layer in module.modules() if isinstance(layer, _NormBase) and layer.track_running_stats]
    layers = [layer for layer in layers if layer.training]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


@contextmanager
def extra_pass(module: nn.Module, replay: Replay | None) -> Iterator[None]:
    """`Replay` (if any) and `without_statistics` together."""
    with ExitStack() as stack:
        stack.enter_context(without_statistics(module))
        if replay is not None:
            stack.enter_context(replay())
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a block, with random streams of its own; every part's mode and all streams come back."""
    modes = [(part, part.training) for part in module.modules()]
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    with isolate_rng(include_cuda=on_gpu):
        module.eval()
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training


@contextmanager
def first_outputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list that receives the outputs of the first forward pass of a block: those of a base loss, at no cost."""
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda *call: outputs.append(call[-1]) if not outputs else None)
    try:
        yield outputs
    finally:
        handle.remove()
