"""The configs of this project, for those who installed the wheel: ``configs/demo.yaml`` is found without a checkout.

`fl_lightning/configs` is a link to the folder `configs/` at the top; a wheel holds the files themselves.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def find_config(path: str) -> str:
    """``path`` if there is such a file; else the packaged file of that name (``configs/demo.yaml`` or ``demo.yaml``),
    if there is one; else ``path``, so that whoever opens it names what is missing."""
    name = path.removeprefix("configs/")
    if Path(path).exists() or Path(name).is_absolute() or ".." in Path(name).parts:
        return path
    packaged = Path(str(files("fl_lightning"))) / "configs" / name
    return str(packaged) if packaged.is_file() else path
