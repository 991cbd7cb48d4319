r"""Virtual adversarial training (Miyato et al., TPAMI 2018): FedVAT, and the discrepancy of FLIT+ (Zhu et al. 2022).

Eq. 9   Delta(x, F) = D(F(x), F(x + r_adv)),  r_adv = radius * d,  D = KL or squared error          VAT
        d ~ U(-.5, .5), one unit vector per row (vertex, edge or atom)                              random_directions
        repeat: d <- unit rows of the gradient of sum D(F(x), F(x + probe d)) with respect to d      search
FedVAT  mean L + lam * mean Delta                                                                   FedVAT

The direction is a constant: the gradient of Delta reaches the parameters through F(x + r_adv) alone, F(x) is a constant
target, and the search leaves no gradient in any parameter. All passes see the same dropout masks, do not count for
batch-norm statistics, and leave the global random stream as it was: directions come from a generator of their own,
seeded from ``torch.initial_seed()`` when training starts.

The authors' code divides gradients of a *mean* by ``|g| + 1e-8``, which makes d nearly zero while gradients are small.
Here the norm is exact at any scale; ``official_norm=True`` is theirs.

The paper probes at 1e-4. In single precision F(x + 1e-4 d) and F(x) are often the same number, and then there is no
direction, so that many samples had Delta = 0 for no reason of their own; at 1e-2 what single and double precision find
agrees. For the same reason the search is in single precision whatever ``trainer.precision`` is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_models.objectives.base import Objective, masked_mean
from lit_models.objectives.support.added_term import AddedTerm
from lit_models.objectives.support.extra_passes import Replay, extra_pass, first_outputs

if TYPE_CHECKING:
    from lit_models.base import LitGraphModule

Tensors = dict[str, Tensor]
PROBE = 1e-2
_PURPOSES = {"training": 0x5AD0, "received": 0x5AD1}


def unit_rows(rows: Tensor, official_norm: bool = False) -> Tensor:
    """Each row (all but the first dimension) divided by its norm; zero rows stay zero.

    Exact at any scale: rows are first divided by their largest entry, since the squares of entries below 1e-19 vanish
    in single precision. ``official_norm``: ``row / (|row| + 1e-8)``.
    """
    flat: Tensor = rows.flatten(1)
    if official_norm:
        flat = flat / (torch.linalg.vector_norm(flat, dim=1, keepdim=True) + 1e-8)
        return flat.view_as(rows)
    if not flat.size(1):
        return rows
    tiny = torch.finfo(rows.dtype).tiny
    flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp(min=tiny)
    flat = flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp(min=tiny)
    return flat.view_as(rows)


def random_directions(inputs: Tensors, generator: torch.Generator | None = None) -> Tensors:
    """A random unit vector for each row of each input, drawn on the CPU."""
    return {
        name: unit_rows(torch.rand(x.shape, generator=generator, dtype=x.dtype).sub_(0.5).to(x.device))
        for name, x in inputs.items()
    }


def single(outputs: Tensor) -> Tensor:
    """In single precision at least: a divergence of half-precision numbers is mostly zero."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def disturbed(inputs: Tensors, directions: Tensors, size: float) -> Tensors:
    """``x + size * d``."""
    return {name: x + size * directions[name] for name, x in inputs.items()}


def search(
    discrepancy: Callable[[Tensors], Tensor],
    inputs: Tensors,
    directions: Tensors,
    probe: float,
    power_iterations: int = 1,
    official_norm: bool = False,
) -> Tensors:
    """The directions that increase the discrepancy most, by power iterations from the given ones.

    Args:
        discrepancy: Disturbed inputs -> D, any shape; entries that must not matter are zero.
        inputs: What is disturbed, rows first.
        directions: Unit rows to start from.
        probe: Size of the step at which the gradient is taken.
        power_iterations: How often.
        official_norm: Gradient of the mean, not the sum, and `unit_rows`' guard.

    Returns:
        Unit rows, without a graph; a row with gradient zero is zero.
    """
    for _ in range(power_iterations):
        with torch.enable_grad():
            probes = {name: x.requires_grad_() for name, x in disturbed(inputs, directions, probe).items()}
            values = discrepancy(probes)
            total = values.mean() if official_norm else values.sum()
            found: tuple[Tensor | None, ...] = (None,) * len(probes)
            if total.requires_grad:  # else nothing depends on the inputs
                found = torch.autograd.grad(total, list(probes.values()), allow_unused=True)
        directions = {
            name: torch.zeros_like(x) if gradient is None else unit_rows(gradient, official_norm)
            for (name, x), gradient in zip(probes.items(), found, strict=True)
        }
    return directions


class VAT:
    """Delta of a module's outputs under the worst disturbance of its continuous inputs (`perturbable`).

    Args:
        radius: Length of the disturbance of each row. The paper's 2.5 is for (projected) atom features; positions are
            in angstrom, where .05 to .1 is sensible.
        probe: Step at which the gradient for the direction is taken; see the top of this file.
        power_iterations: Gradients taken; 0 is a random direction.
        official_norm: As in the authors' code, see the top of this file.
    """

    def __init__(
        self, radius: float = 2.5, probe: float = PROBE, power_iterations: int = 1, official_norm: bool = False
    ) -> None:
        for name, value, holds in (
            ("radius", radius, radius >= 0),
            ("probe", probe, probe > 0),
            ("power_iterations", power_iterations, power_iterations >= 0),
        ):
            if not holds:
                raise ValueError(
                    f"`model.init_args.objective.init_args.{name}` must be "
                    f"{'above' if name == 'probe' else 'at least'} 0, but is {value!r}."
                )
        self.radius, self.probe, self.power_iterations = radius, probe, power_iterations
        self.official_norm = official_norm
        self._generator: torch.Generator | None = None

    def begin(self, purpose: str = "training") -> None:
        """Start the stream of directions of a local fit."""
        self._generator = torch.Generator().manual_seed(torch.initial_seed() ^ _PURPOSES[purpose])

    def end(self) -> None:
        self._generator = None  # objectives are copied and pickled between rounds

    def __call__(
        self, module: LitGraphModule, batch: Any, outputs: Tensor, mask: Tensor, replay: Replay | None = None
    ) -> Tensor:
        """Delta of each training sample and task, ``(S, T)``, aligned with ``losses``; at least 0.

        Args:
            module: The model.
            batch: Of S training samples, and whatever else it sees.
            outputs: ``module(batch)``, taken as a constant.
            mask: Bool ``(S, T)``: the pairs whose discrepancy is sought. The others do not sway the direction.
            replay: The random state from which ``outputs`` were computed, for the same dropout masks.
        """
        if self._generator is None:
            self.begin()

        def discrepancy(inputs: Tensors, reference: Tensor) -> Tensor:
            with extra_pass(module, replay):
                return module.divergence(single(module(batch, **inputs)), reference, batch)

        reference = single(outputs.detach())
        kind = outputs.device.type
        rounded = torch.is_autocast_enabled(kind)
        with torch.autocast(kind, enabled=False):
            inputs = module.perturbable(batch)
            exact = reference
            if rounded and self.power_iterations:
                with torch.no_grad(), extra_pass(module, replay):
                    exact = single(module(batch))
            directions = search(
                lambda probes: torch.where(mask, discrepancy(probes, exact), 0.0),
                inputs,
                random_directions(inputs, self._generator),
                self.probe,
                self.power_iterations,
                self.official_norm,
            )
        return discrepancy(disturbed(inputs, directions, self.radius), reference).clamp(min=0)


class FedVAT(AddedTerm):
    """A base loss plus ``lam`` times the mean discrepancy over the labelled pairs.

    Args:
        lam: Factor of the term; 0 switches it off (FedAvg). FedChem's grid: .01, .1, 1.
        radius, probe, power_iterations, official_norm: See `VAT`.
        base: The loss that the term is added to; `ERM` by default.
        warmup_rounds: First rounds with the base loss alone.

    Logs ``train/vat``, the mean discrepancy without its factor.
    """

    def __init__(
        self,
        lam: float = 0.1,
        radius: float = 2.5,
        probe: float = PROBE,
        power_iterations: int = 1,
        official_norm: bool = False,
        base: Objective | None = None,
        warmup_rounds: int = 1,
    ) -> None:
        super().__init__(base, warmup_rounds)
        self.check("lam", lam, lam >= 0, "at least 0")
        self.lam = lam
        self.vat = VAT(radius, probe, power_iterations, official_norm)

    def on_train_start(self, module: LitGraphModule) -> None:
        super().on_train_start(module)
        self.vat.begin()

    def on_train_end(self, module: LitGraphModule) -> None:
        super().on_train_end(module)
        self.vat.end()

    def __call__(self, module: LitGraphModule, batch: Any) -> Tensor:
        if not self.lam or self.warming_up:
            return self.base(module, batch)
        replay = Replay(module.device)
        with first_outputs(module) as outputs:
            loss = self.base(module, batch)
        with torch.no_grad():
            mask = module.losses(outputs[0], batch).mask
        delta = self.vat(module, batch, outputs[0], mask, replay)
        module.observe({"vat": delta}, mask)
        return loss + self.lam * masked_mean(delta, mask)
