"""Entry rules of a module's state (DESIGN 2.4): what is shared, what is private, tied weights once, no silent mismatch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


class Entries:
    """The ``state_dict`` of a live module, split into entries that are shared with the server and private ones.

    A module may declare ``varying_entries``, ``fnmatch`` patterns of buffers whose length follows from what was learnt (the
    nodes of a tree): they are taken in any length, and cannot be averaged.

    Args:
        module: The module; it is referenced, not copied.
        private: ``fnmatch`` patterns of entries that never leave the client.

    Raises:
        ValueError: If an entry is not a tensor, or a pattern matches none.
    """

    def __init__(self, module: nn.Module, private: Sequence[str] = ()) -> None:
        state = module.state_dict(keep_vars=True)
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"`{name}` of {type(module).__name__} is {type(value).__name__}, not a tensor: only "
                    "tensors can be exchanged. Remove it from the state (`get_extra_state`)."
                )
            if is_lazy(value):
                raise ValueError(
                    f"`{name}` of {type(module).__name__} is a lazy layer's parameter, whose size is not known yet. "
                    "Give the layer its input size, or call the module once on a batch before federating it."
                )
        self._module = module
        self._names = {name: id(value) for name, value in state.items()}
        first: dict[int, str] = {}
        hidden: set[int] = set()
        for name, value in state.items():  # tied weights have several names but are one entry: the first
            first.setdefault(id(value), name)
            if any(fnmatchcase(name, pattern) for pattern in private):  # private under one name is private
                hidden.add(id(value))
        for pattern in private:
            if not any(fnmatchcase(name, pattern) for name in state):
                raise ValueError(
                    f"No entry of {type(module).__name__} matches `{pattern}`, declared private. "
                    f"Its entries are: {', '.join(state)}."
                )
        self.private = tuple(name for key, name in first.items() if key in hidden)
        self.shared = tuple(name for key, name in first.items() if key not in hidden)
        self._first = first
        patterns = getattr(module, "varying_entries", ())
        self.varying = frozenset(name for name in first.values() if any(fnmatchcase(name, pattern) for pattern in patterns))

    def canonical(self, name: str) -> str:
        """The one name under which an entry travels: the first one of tied weights.

        Raises:
            ValueError: If there is no such entry.
        """
        if name not in self._names:
            raise ValueError(f"There is no entry `{name}` in the model; it has: {', '.join(self._names)}.")
        return self._first[self._names[name]]

    @torch.no_grad()
    def get(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Detached CPU clones of the named entries."""
        if not names:  # a module's `state_dict` costs more than most copies
            return {}
        live = self._module.state_dict()  # asked anew: a move to another device replaces buffers
        return {name: live[name].to("cpu", copy=True) for name in names}

    @torch.no_grad()
    def set(self, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors into the live module in place (so ties hold); names, shapes and dtypes must agree.

        Raises:
            ValueError: On an unknown name, another shape or another dtype.
        """
        live = self._module.state_dict(keep_vars=bool(self.varying))  # the buffers themselves, if some may change their length
        unknown = [name for name in tensors if name not in live]
        if unknown:
            raise ValueError(
                f"Received entries that the module does not have: {', '.join(unknown)}. It has: {', '.join(live)}."
            )
        for name, tensor in tensors.items():
            mine = live[name]
            if name in self.varying and check_layout({name: tensor}, {name: mine}, self.varying) is None:
                mine.set_(mine.new_empty(tensor.shape))  # `resize_` fails where it was read from a file
            if mine.shape != tensor.shape or mine.dtype != tensor.dtype:
                raise ValueError(f"Entry `{name}` was received as {_describe(tensor)}, the module has {_describe(mine)}.")
            mine.copy_(tensor)


def check_layout(tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor], varying: Collection[str] = ()) -> str | None:
    """Why ``tensors`` are none of the kind of ``reference`` (names, shapes, dtypes), or ``None`` if they are; those of
    ``varying`` may have any length."""
    missing = [n for n in reference if n not in tensors]
    extra = [n for n in tensors if n not in reference]
    if missing or extra:
        return f"entries missing: {missing or 'none'}, unexpected: {extra or 'none'}"
    for name, tensor in tensors.items():
        shapes = [tuple(t.shape[1:] if name in varying and t.dim() else t.shape) for t in (tensor, reference[name])]
        if shapes[0] != shapes[1] or tensor.dim() != reference[name].dim() or tensor.dtype != reference[name].dtype:
            return f"entry `{name}` is {_describe(tensor)}, expected {_describe(reference[name])}"
    return None


def first_difference(held: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    """The first of the ``wanted`` tensors that a checkpoint does not hold in that shape and dtype, in words; ``None`` if it
    holds all. What it holds besides does not matter."""
    for name, tensor in wanted.items():
        if name not in held:
            return f"it holds no entry `{name}`"
        if held[name].shape != tensor.shape or held[name].dtype != tensor.dtype:
            return f"entry `{name}` is {_describe(held[name])} there and {_describe(tensor)} now"
    return None


def rows_by_learners(size: int, untrained: Sequence[Sequence[int]]) -> Iterator[tuple[Tensor, list[int]]]:
    """The rows of an entry in groups that the same models have trained, for a client weighs only in what it has learnt.

    Args:
        size: Number of rows of the entry.
        untrained: Of each model the rows that it has not trained.

    Returns:
        Pairs: positions of rows, int64, and which models have trained them (none, perhaps). Each row is in one pair.
    """
    trained = torch.ones(len(untrained), size, dtype=torch.bool)
    for model, rows in enumerate(untrained):
        trained[model, list(rows)] = False
    patterns, pattern_of_row = torch.unique(trained, dim=1, return_inverse=True)
    for index, pattern in enumerate(patterns.T):
        yield (pattern_of_row == index).nonzero().flatten(), pattern.nonzero().flatten().tolist()


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
