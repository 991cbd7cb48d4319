"""`server.yaml`: where the server listens, and which sites may join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.flower.yaml_config import address, existing_file, name, read_keys


@dataclass(frozen=True)
class ServerConfig:
    """The server of a federation.

    Args:
        path: The file that this was read from.
        folder: Where the server keeps its database and logs: the file's folder.
        listen: ``host:port`` that sites reach, TLS.
        control: ``127.0.0.1:port`` for commands of this machine.
        certificate, key, ca: Certificate, its private key, and the authority that signed it (PEM).
        sites: Public key of each site, by name; client id = position.
    """

    path: Path
    folder: Path
    listen: str
    control: str
    certificate: Path
    key: Path
    ca: Path
    sites: Mapping[str, Path]

    @staticmethod
    def read(path: Path) -> ServerConfig:
        """Read the file.

        Raises:
            ValueError: Something is missing or wrong.
        """
        content = read_keys(path, ("listen", "control", "certificate", "key", "ca", "sites"), ())
        base = path.resolve().parent
        control = address(path, "control", content["control"])
        if control.rsplit(":", 1)[0] not in ("127.0.0.1", "localhost"):
            raise ValueError(
                f"`{path}`: `control: {control}`: it has no login, so whoever reaches it rules the federation. Use "
                "`127.0.0.1:port`."
            )
        sites = content["sites"]
        if not isinstance(sites, dict) or not sites:
            raise ValueError(f"`{path}`: `sites` must name at least one site and the file with its public key.")
        return ServerConfig(
            path=path,
            folder=base,
            listen=address(path, "listen", content["listen"]),
            control=control,
            sites={
                name(path, "sites", site): existing_file(path, f"sites.{site}", base, str(key)) for site, key in sites.items()
            },
            **{key: existing_file(path, key, base, str(content[key])) for key in ("certificate", "key", "ca")},
        )
