"""Starting, watching and ending the processes that a site or the server consists of. Standard library only."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1

# No telemetry, no look for updates, no installation of packages: nothing but the federation's own server is contacted.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


class Children:
    """The children of this process, by name. They end with it, also if it is killed (on Linux).

    Args:
        logs: Folder for one log file each.
        environment: Variables for all of them, besides one's own.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        # Flower starts its own commands by name: those of this environment.
        path = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))
        self.environment = {**os.environ, **QUIET, "PATH": path, **environment}
        self.running: dict[str, subprocess.Popen] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start one; its output goes to ``<logs>/<name>.log`` (that of the start before to ``.log.old``)."""
        log = self.logs / f"{name}.log"
        if log.is_file():
            os.replace(log, log.with_suffix(".log.old"))
        with log.open("wb") as output:
            self.running[name] = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(environment or {})},
                preexec_fn=end_with_parent,
            )

    def ended(self) -> dict[str, int]:
        """Exit codes of those that have ended; they are forgotten."""
        found = {name: child.poll() for name, child in self.running.items()}
        codes = {name: code for name, code in found.items() if code is not None}
        for name in codes:
            del self.running[name]
        return codes

    def wait_for_port(self, name: str, host: str, port: int) -> bool:
        """Wait until child ``name`` listens; ``False`` if it ended instead."""
        while not listens(host, port):
            if name in self.ended():
                return False
            time.sleep(0.05)
        return True

    def tail(self, name: str, lines: int = 15) -> str:
        """The end of a child's log."""
        log = self.logs / f"{name}.log"
        text = log.read_text(errors="replace") if log.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, name: str, wait: float = 5.0) -> None:
        """End one: TERM, then KILL."""
        child = self.running.pop(name, None)
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(wait)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def stop_all(self) -> None:
        """End all, the last started first."""
        for name in reversed(list(self.running)):
            self.stop(name)


def end_with_parent(with_signal: int = signal.SIGTERM) -> None:
    """This process gets a signal when its parent ends (on Linux); a fork does not inherit that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, with_signal)


def make_command(script: str) -> list[str]:
    """The command that runs a script of this folder."""
    return [sys.executable, str(HERE / script)]


def flower(name: str) -> str:
    """Flower's own command, of this environment."""
    return str(Path(sys.executable).parent / name)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask_flwr(arguments: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What a command of Flower's says in JSON."""
    command = [flower("flwr"), *arguments, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(environment))
    try:
        told: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"success": False, "error-message": f"{done.stdout}{done.stderr}".strip()}
    return told


def listens(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


def end_on_signals() -> None:
    """TERM and INT raise ``SystemExit``, so that what is to be tidied up is."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def say(text: str) -> None:
    """A line for the operator."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()
