"""``fl-lightning site init``, ``fl-lightning server`` and ``fl-lightning client``: what operators type."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.flower.certificates import write_authority_and_certificate, write_site_key
from fl_lightning.flower.extra import require_flower
from fl_lightning.flower.processes.children import make_command
from fl_lightning.flower.server_config import ServerConfig
from fl_lightning.flower.site_config import SiteConfig
from fl_lightning.flower.yaml_config import address, name

SERVER_YAML = """# The server of a federation. fl-lightning server --config server.yaml; docs/deployment.md
listen: {listen}            # host:port that sites reach (TLS); the only port to open in the firewall
control: 127.0.0.1:{control}      # for commands of this machine; never reachable from elsewhere
certificate: server.pem
key: server.key               # stays here
ca: ca.crt                    # goes to every site
sites:                        # client 0, 1, 2, ...: a name, and the public key that the site sent
{sites}"""

SITE_YAML = """# A site of a federation. fl-lightning client --config site.yaml; docs/deployment.md
name: {name}                  # as in the server's server.yaml
server: {server}              # host:port of the server
ca: {ca}                    # from the server's operator: who may call itself the server
key: {name}.key               # this site's private key; stays here. {name}.pub goes to the server's operator
experiments: {experiments}  # configs that may run here; the server can ask for nothing else
data: {{}}                      # this site's own values for the experiment's data.init_args, such as  files: molecules.csv
accelerator: auto             # cpu, gpu, auto
devices: 1
folder: state                 # private state, ledger.jsonl (all that came and went) and logs
"""


def main(given: Sequence[str]) -> int:
    """Run ``site``, ``server`` or ``client``.

    Raises:
        ValueError: A mistake in a file or an argument.
    """
    arguments = _parser().parse_args(list(given))
    require_flower()
    return arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fl-lightning")
    commands = parser.add_subparsers(required=True)

    site = commands.add_parser("site", help="prepare a site or a server").add_subparsers(required=True)
    init = site.add_parser("init", help="keys and a commented config for a site, for a server, or for a test federation")
    init.add_argument("folder", type=Path, help="folder to make")
    init.add_argument("--name", help="a site: its name")
    init.add_argument("--server", default="SERVER:8443", help="a site: host:port of the server")
    init.add_argument("--host", help="a server: the host name or address that sites reach")
    init.add_argument("--port", type=int, default=8443, help="a server: the port that sites reach")
    init.add_argument("--control", type=int, default=8000, help="a server: port of 127.0.0.1 for commands")
    init.add_argument("--test", type=int, metavar="N", help="a server and N sites on this machine, keys exchanged")
    init.set_defaults(run=_init)

    server = commands.add_parser("server", help="serve a federation")
    server.add_argument("--config", type=Path, default=Path("server.yaml"))
    server.set_defaults(run=_server)

    client = commands.add_parser("client", help="serve a site")
    client.add_argument("--config", type=Path, default=Path("site.yaml"))
    client.set_defaults(run=_client)
    return parser


def _init(arguments: argparse.Namespace) -> int:
    wanted = [arguments.name is not None, arguments.host is not None, arguments.test is not None]
    if sum(wanted) != 1:
        raise ValueError(
            "`fl-lightning site init` needs one of --name (a site), --host (a server), --test N (all on this machine)."
        )
    folder = arguments.folder
    if arguments.test is not None:
        if arguments.test < 1:
            raise ValueError(f"`--test` must be at least 1, got {arguments.test}.")
        names = [f"site-{number}" for number in range(arguments.test)]
        server = _init_server(folder / "server", "127.0.0.1", arguments, names)
        for own in names:
            _init_site(folder / own, own, f"127.0.0.1:{arguments.port}", "../server/ca.crt")
            (server / "keys" / f"{own}.pub").write_bytes((folder / own / f"{own}.pub").read_bytes())
    elif arguments.host is not None:
        _init_server(folder, arguments.host, arguments, [])
        _say(f"Made {folder}. Send ca.crt to the sites, put their public keys into keys/ and name them under `sites` in "
             "server.yaml; then: fl-lightning server --config server.yaml")  # fmt: skip
    else:
        path = _init_site(folder, arguments.name, arguments.server, "ca.crt")
        _say(f"Made {folder}. Send {arguments.name}.pub to the server's operator, put its ca.crt beside site.yaml, and fill in "
             f"`experiments` and `data` of {path}; then: fl-lightning client --config site.yaml")  # fmt: skip
    return 0


def _init_server(folder: Path, host: str, arguments: argparse.Namespace, names: Sequence[str]) -> Path:
    _new(folder)
    (folder / "keys").mkdir()
    write_authority_and_certificate(folder, [host])
    listen = f"127.0.0.1:{arguments.port}" if host == "127.0.0.1" else f"0.0.0.0:{arguments.port}"
    sites = "".join(f"  {own}: keys/{own}.pub\n" for own in names) or "#  basel: keys/basel.pub\n"
    (folder / "server.yaml").write_text(
        SERVER_YAML.format(listen=listen, control=arguments.control, sites=sites), encoding="utf-8"
    )
    return folder


def _init_site(folder: Path, own: str, server: str, ca: str) -> Path:
    path = folder / "site.yaml"
    name(path, "--name", own)
    address(path, "--server", server)
    _new(folder)
    write_site_key(folder / f"{own}.key", folder / f"{own}.pub")
    path.write_text(SITE_YAML.format(name=own, server=server, ca=ca, experiments="[experiment.yaml]"), encoding="utf-8")
    return path


def _new(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"`{folder}` is not empty; keys are never overwritten. Name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)


def _server(arguments: argparse.Namespace) -> int:
    config = ServerConfig.read(arguments.config)
    spec = {key: str(getattr(config, key)) for key in ("folder", "listen", "control", "certificate", "key", "ca")}
    return _become("run_server.py", {**spec, "sites": {site: str(key) for site, key in config.sites.items()}})


def _client(arguments: argparse.Namespace) -> int:
    config = SiteConfig.read(arguments.config)
    spec = {key: str(getattr(config, key)) for key in ("name", "server", "ca", "key", "folder")}
    worker = [sys.executable, "-m", "fl_lightning.flower.worker", str(config.path.resolve())]
    return _become("run_site.py", {**spec, "worker": worker})


def _become(script: str, spec: dict) -> int:
    """Replace this process, which has torch in memory, by a small one."""
    command = [*make_command(script), json.dumps(spec)]
    sys.stdout.flush()
    os.execv(command[0], command)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
