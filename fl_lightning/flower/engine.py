"""Engine: clients at sites of their own, reached through Flower.

``fit`` submits a small Flower app to the SuperLink of this machine; its ServerApp (`processes/relay.py`) connects back to a
socket here and carries our encoded messages to the sites and their replies back. What a client remembers stays at its site:
a checkpoint here only notes after which step each client's memory is the one to go on from.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L

from fl_lightning.engine.buffers import check_alike
from fl_lightning.engine.checkpoint import existing
from fl_lightning.engine.messages import Message, NoReply, Payload
from fl_lightning.engine.remote import CONTACT, SiteData
from fl_lightning.engine.transport import ClientSpec, Engine
from fl_lightning.flower.contact import agreed, begun_alike, tensors_sha256, versions
from fl_lightning.flower.extra import require_flower
from fl_lightning.flower.processes import frames
from fl_lightning.flower.processes.children import QUIET, ask_flwr
from fl_lightning.flower.server_config import ServerConfig
from fl_lightning.schema import agreed_schema

PROCESSES = Path(__file__).parent / "processes"
ATTEMPTS = 3
NOTE = "flower.json"  # in a checkpoint: the session, and the step after which each client's memory is meant
DEFAULT_TTL = 12 * 3600.0  # seconds, Flower's own
APP = """[build-system]
requires = []
build-backend = "none"

[project]
name = "federation"
version = "{version}"
dependencies = []

[tool.flwr.app]
publisher = "fl-lightning"

[tool.flwr.app.components]
serverapp = "relay:app"
clientapp = "relay:no_client"

[tool.flwr.app.config]
socket = ""
"""
log = logging.getLogger(__name__)


class Flower(Engine):
    """Clients at other machines, which `fl-lightning client` serves; `fl-lightning server` must run on this one.

    Same bits as :class:`~fl_lightning.engine.InProcess` on the same kind of machine.

    Args:
        server: The configuration of `fl-lightning server`. Its ``sites`` are the clients; client id = position.
        threads: Threads of a client on the CPU.
        wait_for_sites: Seconds to wait at the start until all sites are connected.
        contact_timeout: Seconds in which each site must have loaded its data and answered the first contact.
    """

    def __init__(
        self, server: str = "server.yaml", threads: int = 1, wait_for_sites: float = 60.0, contact_timeout: float = 600.0
    ) -> None:
        for name, value in (("threads", threads), ("wait_for_sites", wait_for_sites), ("contact_timeout", contact_timeout)):
            if value <= 0 or (name == "threads" and value < 1):
                raise ValueError(f"`federation.engine.init_args.{name}` must be positive, got {value}.")
        self.server, self.threads = server, threads
        self.wait_for_sites, self.contact_timeout = wait_for_sites, contact_timeout
        self._relay: _Relay | None = None
        self._told: list[dict[str, Any]] | None = None
        self._statistics: dict[str, Any] = {}

    # ---- first contact --------------------------------------------------------------------------------------------

    def remote_clients(
        self, shared: Mapping[str, Any], statistics: Mapping[str, Any] | None = None
    ) -> list[L.LightningDataModule]:
        told = self._contact(shared, False, statistics)
        return [SiteData(each, name) for each, name in zip(told, self._sites, strict=True)]

    def start(self, spec: ClientSpec) -> None:
        remote = all(isinstance(d, SiteData) for d in spec.datamodules)
        told = self._contact(spec.settings.shared, not remote, spec.settings.statistics)
        if len(told) != len(spec.datamodules):
            raise ValueError(
                f"`data` makes {len(spec.datamodules)} clients, but `sites` of `{self.server}` names {len(told)}: "
                f"{', '.join(self._sites)}. Each client is a site; or give the data to the sites: "
                "`--data fl_lightning.flower.AtSites`."
            )
        self._check_told(spec, told, remote)
        self._settings = spec.settings
        self._session, self._step = secrets.token_hex(8), 0
        self._after: dict[int, int | None] = dict.fromkeys(range(len(told)))
        self._keep: dict[int, list[int]] = {client: [] for client in self._after}

    def _contact(
        self, shared: Mapping[str, Any], with_data: bool, statistics: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """What each site tells; asks once, and once more where there are statistics to use."""
        statistics = dict(statistics or {})
        if self._told is not None and self._statistics == statistics:
            return self._told
        if self._told is None:
            self._connect(shared, with_data)
        self._statistics = statistics
        self._told = self._ask_all("first contact")
        return self._told

    def _connect(self, shared: Mapping[str, Any], with_data: bool) -> None:
        require_flower()
        if shared.get("config") is None:
            raise ValueError(
                "`fl_lightning.flower.Flower` compares the configuration with each site's: run it from a config file, "
                "`fl-lightning fit --config ... --federation.engine fl_lightning.flower.Flower`."
            )
        server = ServerConfig.read(Path(self.server))
        self._sites = list(server.sites)
        self._with_data, self._config = with_data, agreed(shared, with_data)
        self._relay = _Relay(server)
        self._wait_for_sites(self._relay)

    def _ask_all(self, group: str) -> list[dict[str, Any]]:
        asked = {c: (self._header(c), b"") for c in range(len(self._sites))}
        told: dict[int, dict[str, Any]] = {}
        problems = []
        for client, error, frame in self._open_relay().ask("hello", asked, self.contact_timeout, group):
            header = {}
            try:
                header = {} if frame is None else frames.unpack(frame)[0]
                error = error or header.get("error") or CONTACT.fault(Payload(values=header))
            except ValueError as damaged:
                error = str(damaged)
            if error is not None:
                problems.append((client, error))
            else:
                told[client] = header
        if problems:
            lines = "\n".join(f"  {self._sites[client]}: {error}" for client, error in sorted(problems))
            raise ValueError(f"{len(problems)} of {len(self._sites)} sites cannot take part:\n{lines}")
        return [told[client] for client in sorted(told)]

    def _open_relay(self) -> _Relay:
        if self._relay is None:
            raise OSError("`federation.engine: Flower` is closed: its ServerApp has ended. Start the run anew.")
        return self._relay

    def _header(self, client: int) -> dict[str, Any]:
        """Sent with every request: with it, a worker that was just started can set itself up."""
        return {
            "versions": versions(), "config": self._config, "with_data": self._with_data, "client": client,
            "clients": len(self._sites), "threads": self.threads, "statistics": self._statistics,
        }  # fmt: skip

    def _wait_for_sites(self, relay: _Relay) -> None:
        end = time.monotonic() + self.wait_for_sites
        while missing := [name for name in self._sites if name not in relay.nodes()]:
            if time.monotonic() > end:
                raise ValueError(
                    f"Not connected within {self.wait_for_sites:g} s (`federation.engine.init_args.wait_for_sites`): "
                    f"{', '.join(missing)}. Start `fl-lightning client --config site.yaml` there, or take them out of "
                    f"`sites` in `{self.server}`."
                )
            time.sleep(0.5)

    def _check_told(self, spec: ClientSpec, told: Sequence[Mapping[str, Any]], remote: bool) -> None:
        if not remote:  # the same numbers under other names have the same fingerprint
            agreed_schema(spec.datamodules[0], [SiteData(site, name) for name, site in zip(self._sites, told, strict=True)])
        check_alike({c: site["unlearnt"] for c, site in enumerate(told)}, {c: f"site `{n}`" for c, n in enumerate(self._sites)})
        initial = tensors_sha256(spec.module.state_dict())
        for client, (name, site) in enumerate(zip(self._sites, told, strict=True)):
            own = spec.datamodules[client]
            if not remote and hasattr(own, "fingerprint") and own.fingerprint() != site["fingerprint"]:
                raise ValueError(
                    f"Site `{name}` has other data than client {client} has on the server. Give it the same files, or train "
                    "on the data that the sites have: `--data fl_lightning.flower.AtSites`."
                )
            if initial != site["initial"]:
                log.warning("Site `%s` (client %d) draws other initial weights than the server: what stays private there "
                            "starts from its own, so bits may differ from a run in one process.", name, client)  # fmt: skip

    def begun_alike(self, module: L.LightningModule, names: Sequence[str]) -> list[str]:
        return begun_alike(module, names, self._told or [])

    # ---- requests -------------------------------------------------------------------------------------------------

    def exchange(self, requests: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        relay = self._open_relay()
        self._step += 1
        by_client = {request.client: request for request in requests}
        nodes = relay.nodes()
        asked = {}
        for client, request in by_client.items():
            if self._sites[client] not in nodes:
                yield _failed(request, f"site `{self._sites[client]}` is not connected")
                continue
            header = {
                **self._header(client),
                "session": self._session, "step": self._step, "after": self._after[client], "keep": self._keep[client],
                "run": self._settings.run, "num_rounds": self._settings.num_rounds,
            }  # fmt: skip
            asked[client] = (header, request.encode())
        group = f"{requests[0].kind} {requests[0].round}" if requests else ""
        for client, error, frame in relay.ask("step", asked, timeout, group):
            if frame is None:
                yield _failed(by_client[client], f"site `{self._sites[client]}`: {error}")
                continue
            request = by_client[client]
            try:
                reply, after = _reply_in(frame)
            except ValueError as error:
                yield _failed(request, f"site `{self._sites[client]}`: {error}")
                continue
            if (reply.kind, reply.run, reply.round, reply.client) != (request.kind, request.run, request.round, client):
                yield _failed(request, f"site `{self._sites[client]}` answered another request")
                continue
            self._after[client] = after
            yield reply

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, directory: Path, previous: Path | None) -> None:
        note = {"session": self._session, "step": self._step, "after": {str(c): s for c, s in self._after.items()}}
        (directory / NOTE).write_text(json.dumps(note), encoding="utf-8")

    def load(self, directory: Path) -> None:
        path = directory / NOTE
        if not path.is_file():
            raise ValueError(
                f"`{directory}` is a checkpoint of clients that ran on this machine; sites have no memory of that run. "
                "Go on with the engine it was made with."
            )
        note = json.loads(path.read_text(encoding="utf-8"))
        self._session, self._step = note["session"], max(note["step"], self._step)
        self._after = {int(client): step for client, step in note["after"].items()}
        self._remember_kept(directory.parent)

    def checkpointed(self, directory: Path) -> None:
        self._remember_kept(directory.parent)

    def _remember_kept(self, checkpoints: Path) -> None:
        """The steps that some checkpoint may go on from; sites keep the memory of these."""
        notes = [json.loads((p / NOTE).read_text(encoding="utf-8")) for p in existing(checkpoints) if (p / NOTE).is_file()]
        steps = {c: {n["after"].get(str(c)) for n in notes if n["session"] == self._session} for c in self._after}
        self._keep = {client: sorted(s for s in own if s is not None) for client, own in steps.items()}

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
        self._relay = self._told = None


class _Relay:
    """The ServerApp of one run as `fit` sees it.

    Raises:
        ValueError: If it does not connect.
    """

    def __init__(self, server: ServerConfig) -> None:
        self.names: list[str] = list(server.sites)
        self.folder = Path(tempfile.mkdtemp(prefix="fl-fit-"))  # private to this user; a short path, as sockets need
        try:
            self.connection = self._submit(server)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _submit(self, server: ServerConfig) -> socket.socket:
        path = self.folder / "socket"
        app = self.folder / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(APP.format(version=version("fl-lightning")), encoding="utf-8")
        for name in ("relay.py", "frames.py"):
            shutil.copy(PROCESSES / name, app / name)
        home = server.folder / "flower"
        if not (home / "config.toml").is_file():
            raise ValueError(f"No server runs in `{server.folder}`: start `fl-lightning server --config {server.path}` first.")
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(home)}
        begin = time.monotonic()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(15)
            for _ in range(ATTEMPTS):  # on a machine that is too busy Flower gives a slow start up
                run = ask_flwr(["run", str(app), "federation", "--run-config", f'socket="{path}"'], environment)
                if not run.get("success"):
                    raise ValueError(
                        f"The server at {server.control} takes no run. Is `fl-lightning server --config {server.path}` "
                        f"running? It says: {run.get('error-message')}"
                    )
                status = ""
                while not status.startswith("finished"):
                    try:
                        connection = listener.accept()[0]
                    except TimeoutError:
                        listed = ask_flwr(["list", "federation", "--run-id", str(run["run-id"])], environment)
                        status = next((r["status"] for r in listed.get("runs", [])), "")
                        continue
                    connection.settimeout(None)
                    return connection
        raise ValueError(
            f"The run was submitted {ATTEMPTS} times, but its ServerApp did not start ({time.monotonic() - begin:.0f} s); see "
            f"`{server.folder}/logs`."
        )

    def nodes(self) -> dict[str, str]:
        """Node id of each site that is connected."""
        self._send({"command": "nodes"})
        header, _ = self._receive()
        return {node["name"]: node["id"] for node in header["nodes"] if node["name"] in self.names}

    def ask(
        self, action: str, requests: Mapping[int, tuple[dict[str, Any], bytes]], timeout: float | None, group: str
    ) -> Iterator[tuple[int, str | None, bytes | None]]:
        """Send frames to clients; yields client, error and the frame of its answer, in the order of the answers."""
        if not requests:
            return
        nodes = self.nodes()
        for client, (header, body) in requests.items():
            node = nodes.get(self.names[client])
            if node is None:
                yield client, "it is not connected any more", None
                continue
            envelope = {
                "command": "send", "action": action, "node": node, "tag": str(client), "group": group,
                "ttl": DEFAULT_TTL if timeout is None else timeout,
            }  # fmt: skip
            self._send(envelope, frames.pack(header, body))
        self._send({"command": "collect", "timeout": timeout})
        for _ in range(sum(self.names[client] in nodes for client in requests)):
            header, body = self._receive()
            yield int(header["tag"]), header["error"], None if header["error"] is not None else body

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        try:
            frames.send(self.connection, frames.pack(header, body))
        except OSError as error:
            raise self._gone() from error

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            return frames.unpack(frames.receive(self.connection))
        except (OSError, EOFError) as error:
            raise self._gone() from error

    def _gone(self) -> OSError:
        return OSError(
            "The ServerApp of this run has ended (see `logs` in the server's folder). The last checkpoint stays: go on with "
            "`--ckpt_path last`."
        )

    def close(self) -> None:
        """End the ServerApp."""
        try:
            frames.send(self.connection, frames.pack({"command": "end"}))
        except OSError:
            pass
        self.connection.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _reply_in(frame: bytes) -> tuple[Message, int | None]:
    """The reply in a site's frame, and after which step the site's memory is that of this reply.

    Raises:
        ValueError: With the site's error, or why the frame cannot be read.
    """
    header, body = frames.unpack(frame)
    if header.get("error") is not None:
        raise ValueError(header["error"])
    after = header.get("after")
    if after is not None and type(after) is not int:
        raise ValueError(f"`after` of its reply must be a step or null, but is {after!r}")
    return Message.decode(body), after


def _failed(request: Message, reason: str) -> NoReply:
    return NoReply(request.kind, request.run, request.round, request.client, error=reason)
