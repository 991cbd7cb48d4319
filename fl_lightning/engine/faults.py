"""What a client says of an error that ended its step."""

from __future__ import annotations

import traceback

import lightning as L


def fault(error: BaseException) -> str:
    """Class and text of the error, with the module's method if it is in ``configure_optimizers``.

    An optimiser refuses a learning rate that is text by a comparison deep in torch, which names no key of the user's.
    """
    kind = type(error).__name__
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if frame.f_code.co_name == "configure_optimizers" and isinstance(module, L.LightningModule):
            return f"{kind} in `{type(module).__name__}.configure_optimizers` (check `model.init_args`): {error}"
    return f"{kind}: {error}"
