"""`site.yaml`: what a site is, which experiments may run there, and its own data, device and folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.flower.yaml_config import address, existing_file, name, read_keys

OPTIONAL = ("data", "whole_data", "accelerator", "devices", "folder")


@dataclass(frozen=True)
class SiteConfig:
    """A site of a federation.

    Args:
        path: The file that this was read from; paths in it are relative to its folder.
        name: Name under which the server knows this site.
        server: ``host:port``.
        ca: Authority that signed the server's certificate (PEM).
        key: This site's private key; it never leaves the site.
        experiments: Config files that may run here. What the server asks for must equal one of them.
        data: This site's own values for the experiment's ``data.init_args``.
        whole_data: The data are a copy of the whole (a public data set): this site takes the part with its number.
        accelerator, devices: As in ``trainer:``.
        folder: Where private state, ledger and logs go.
    """

    path: Path
    name: str
    server: str
    ca: Path
    key: Path
    experiments: Sequence[Path]
    data: Mapping[str, Any]
    whole_data: bool
    accelerator: str
    devices: Any
    folder: Path

    @staticmethod
    def read(path: Path) -> SiteConfig:
        """Read the file.

        Raises:
            ValueError: Something is missing or wrong.
        """
        content = read_keys(path, ("name", "server", "ca", "key", "experiments"), OPTIONAL)
        base = path.resolve().parent
        experiments = content["experiments"]
        experiments = [experiments] if isinstance(experiments, str) else experiments
        if not isinstance(experiments, list) or not experiments:
            raise ValueError(f"`{path}`: `experiments` must name at least one config file.")
        data = content.get("data") or {}
        if not isinstance(data, dict):
            raise ValueError(f"`{path}`: `data` must hold values for the experiment's `data.init_args`, got {data!r}.")
        whole = content.get("whole_data", False)
        if not isinstance(whole, bool):
            raise ValueError(f"`{path}`: `whole_data` must be true or false, got {whole!r}.")
        return SiteConfig(
            path=path,
            name=name(path, "name", content["name"]),
            server=address(path, "server", content["server"]),
            ca=existing_file(path, "ca", base, str(content["ca"])),
            key=existing_file(path, "key", base, str(content["key"])),
            experiments=[existing_file(path, "experiments", base, str(file)) for file in experiments],
            data=data,
            whole_data=whole,
            accelerator=str(content.get("accelerator", "auto")),
            devices=content.get("devices", 1),
            folder=(base / str(content.get("folder", "state"))).resolve(),
        )

    def arguments(self, experiment: Path) -> list[str]:
        """Arguments of `fl-lightning fit` for an experiment with this site's own values."""
        own = {f"data.init_args.{key}": value for key, value in self.data.items()}
        own |= {"trainer.accelerator": self.accelerator, "trainer.devices": self.devices}
        return ["fit", "--config", str(experiment), *(f"--{k}={_written(v)}" for k, v in own.items())]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
