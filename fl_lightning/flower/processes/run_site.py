"""A site of a federation: the worker, which has the data and trains, and Flower's SuperNode, which talks to the server.

Run by `fl-lightning client`. A child that ends is started again; the worker's private state is in the site's folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from children import Children, end_on_signals, flower, free_port, make_command, say

# Hands the arguments of Flower's `flwr-clientapp` to the process that forks ClientApps (zygote.py).
SHIM = """import json, socket, sys
line = json.dumps(sys.argv[1:]).encode()
with socket.socket(socket.AF_UNIX) as zygote:
    zygote.connect({socket!r})
    zygote.sendall(len(line).to_bytes(8, "little") + line)
"""
PATIENCE = 120.0  # seconds in which the server may still count a node as connected whose process was killed
REFUSALS = {
    "CERTIFICATE_VERIFY_FAILED": "`ca` of this site is not the authority that signed the server's certificate, or `server` "
    "is not a name in it",
    "2001": "the server wants a key and this site sent none (`key`)",
    "2004": "the server does not know the key of this site: send the public key to the server's operator (`sites` in "
    "server.yaml); or another process uses it",
}


def main(spec: dict) -> int:  # noqa: C901  the life of a site in its order
    """Serve until ended.

    Args:
        spec: ``name``, ``server``, ``ca``, ``key``, ``folder``, ``worker`` (command, to which its socket is added).

    Returns:
        Exit code: 1 if the worker cannot start (data, config), 3 if the server or its certificate is refused.
    """
    end_on_signals()
    folder, run = Path(spec["folder"]), Path(tempfile.mkdtemp(prefix="fl-site-"))  # a short path: sockets need one
    worker, zygote = str(run / "worker"), str(run / "zygote")
    secret = run / "secret"
    secret.touch(0o600)
    secret.write_bytes(secrets.token_bytes(32))
    shim = run / "bin" / "flwr-clientapp"
    shim.parent.mkdir()
    (run / "shim.py").write_text(SHIM.format(socket=zygote), encoding="utf-8")
    shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {run / "shim.py"} "$@"\n', encoding="utf-8")
    shim.chmod(0o700)
    children = Children(
        folder / "logs",
        {
            "FL_LIGHTNING_WORKER": worker,
            "FLWR_HOME": str(run / "flower"),
        },
    )
    children.environment["PATH"] = f"{shim.parent}{os.pathsep}{children.environment['PATH']}"
    runtime = f"127.0.0.1:{free_port()}"
    commands = {
        "worker": [*spec["worker"], worker],
        "zygote": [*make_command("zygote.py"), zygote],
        "supernode": [
            *make_command("supernode.py"), "--superlink", spec["server"], "--root-certificates", spec["ca"],
            "--auth-supernode-private-key", spec["key"], "--host", "127.0.0.1", "--port", runtime.rsplit(":", 1)[1],
            "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        ],
        "superexec": [
            flower("flower-superexec"), "--insecure", "--runtime-api-address", runtime,
            "--superexec-auth-secret-file", str(secret),
        ],
    }  # fmt: skip

    def start(name: str) -> None:
        Path({"worker": worker, "zygote": zygote}.get(name, run / "none")).unlink(missing_ok=True)
        children.start(name, commands[name])

    try:
        start("worker")
        start("zygote")
        while not _listens(worker):
            codes = children.ended()
            if codes:
                name = next(iter(codes))
                say(f"the {name} could not start; the end of its log:\n{children.tail(name)}")
                return 1
            time.sleep(0.1)
        say(f"{spec['name']}: the worker is ready")
        for name in ("supernode", "superexec"):
            start(name)
        connected, refused_since = False, None
        deaths: list[float] = []
        while True:
            if not connected and "SuperNode ID" in children.tail("supernode", 500):
                connected, refused_since = True, None
                say(f"{spec['name']}: connected to {spec['server']}")
            for name, code in children.ended().items():
                if name == "supernode":
                    connected = False
                    reason = refusal(children.tail(name, 500))
                    now = time.monotonic()
                    refused_since = refused_since or now
                    if reason is not None and ("2004" not in reason[0] or now - refused_since > PATIENCE):
                        say(f"refused: {reason[1]}. Log: {children.logs}/supernode.log")
                        return 3
                    if reason is not None and now - refused_since < 1:
                        say("the server does not take this site yet (is it still connected from before?); trying again")
                    time.sleep(3 if reason else 1)
                else:
                    say(f"{name} ended (exit code {code}) and is started again; its log: {children.logs}/{name}.log.old")
                    deaths = [t for t in deaths if time.monotonic() - t < 60] + [time.monotonic()]
                    if len(deaths) > 5:
                        say(f"{name} ends again and again; the end of its log:\n{children.tail(name)}")
                        return 1
                start(name)
            time.sleep(0.2)
    finally:
        children.stop_all()
        shutil.rmtree(run, ignore_errors=True)


def refusal(log: str) -> tuple[str, str] | None:
    """Flower's code in a SuperNode's log with which it was refused, and what that means; ``None`` if it was not."""
    for code, meaning in REFUSALS.items():
        if code in log and (not code.isdigit() or f"code: {code}" in log or f"code {code}" in log or f"={code}" in log):
            return code, meaning
    return None


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
