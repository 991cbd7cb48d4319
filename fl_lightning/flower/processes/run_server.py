"""The server of a federation: Flower's SuperLink and SuperExec on 127.0.0.1, and the edge that sites reach.

Run by `fl-lightning server`. A child that ends is started again; the SuperLink's database keeps runs and registrations.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from children import Children, end_on_signals, flower, listens, make_command, say


def main(spec: dict) -> int:
    """Serve until ended.

    Args:
        spec: ``folder``, ``listen``, ``control``, ``certificate``, ``key``, ``ca``, ``sites`` (name to public key file).

    Returns:
        Exit code: 1 if something cannot be started.
    """
    end_on_signals()
    folder = Path(spec["folder"])
    home, secret = folder / "flower", folder / "flower" / "superexec.secret"
    home.mkdir(parents=True, exist_ok=True)
    os.chmod(home, 0o700)
    if not secret.is_file():
        secret.touch(0o600)
        secret.write_bytes(secrets.token_bytes(32))
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "federation"\n\n[superlink.federation]\n'
        f"address = {json.dumps(spec['control'])}\nroot-certificates = {json.dumps(spec['ca'])}\n",
        encoding="utf-8",
    )
    if not (home / "superlink.db").is_file():
        (home / "registered.json").unlink(missing_ok=True)
    children = Children(folder / "logs", {"FLWR_HOME": str(home)})
    host, port = spec["control"].rsplit(":", 1)
    commands = {
        "superlink": [
            flower("flower-superlink"), "--host", host, "--port", port, "--ssl-certfile", spec["certificate"],
            "--ssl-keyfile", spec["key"], "--ssl-ca-certfile", spec["ca"], "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--database", str(home / "superlink.db"),
            "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        ],
        "superexec": [
            flower("flower-superexec"), "--runtime-api-address", spec["control"], "--root-certificates", spec["ca"],
            "--superexec-auth-secret-file", str(secret),
        ],
        "edge": [
            *make_command("edge.py"),
            json.dumps({"upstream": spec["control"], **{k: spec[k] for k in ("listen", "certificate", "key", "ca")}}),
        ],
    }  # fmt: skip
    try:
        if listens(host, int(port)):
            say(f"`control: {spec['control']}` is in use: does a server run already?")
            return 1
        children.start("superlink", commands["superlink"])
        if not children.wait_for_port("superlink", host, int(port)):
            say(f"the SuperLink does not start; the end of its log:\n{children.tail('superlink')}")
            return 1
        if not _register(spec["sites"], children.environment, home):
            return 1
        for name in ("superexec", "edge"):
            children.start(name, commands[name])
        edge_host, edge_port = spec["listen"].rsplit(":", 1)
        local = "127.0.0.1" if edge_host in ("0.0.0.0", "[::]", "::") else edge_host.strip("[]")
        if not children.wait_for_port("edge", local, int(edge_port)):
            say(f"nothing can listen at `listen: {spec['listen']}`; the end of its log:\n{children.tail('edge')}")
            return 1
        say(f"ready: sites reach {spec['listen']}, {len(spec['sites'])} may join: {', '.join(spec['sites'])}")
        while True:
            for name, code in children.ended().items():
                say(f"{name} ended (exit code {code}) and is started again; its log: {children.logs / name}.log.old")
                time.sleep(1)
                children.start(name, commands[name])
            time.sleep(0.2)
    finally:
        children.stop_all()


def _register(sites: dict[str, str], environment: dict[str, str], home: Path) -> bool:
    """Let these sites in, each under its name, and nobody else who was let in before."""
    record = home / "registered.json"  # public key: name and node id; Flower does not list them
    known = json.loads(record.read_text()) if record.is_file() else {}
    wanted = {Path(key).read_text().strip(): name for name, key in sites.items()}
    for key, (name, node) in list(known.items()):
        if wanted.get(key) != name:
            done = _flwr(["supernode", "unregister", node], environment)
            if done.returncode != 0:
                say(f"`{name}` cannot be taken off the list:\n{done.stdout}{done.stderr}")
                return False
            say(f"`{name}` may not join any more")
            del known[key]
            _write(record, known)
    for key, name in wanted.items():
        if key in known:
            continue
        done = _flwr(["supernode", "register", sites[name], "--name", name, "--format", "json"], environment)
        answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if not answer.get("success"):
            say(f"`sites: {name}`: its key `{sites[name]}` cannot be registered:\n{done.stdout}{done.stderr}")
            return False
        known[key] = [name, str(answer["node-id"])]
        _write(record, known)
        say(f"registered `{name}`")
    return True


def _write(path: Path, content: dict) -> None:
    draft = path.with_suffix(".writing")
    draft.write_text(json.dumps(content), encoding="utf-8")
    os.replace(draft, path)


def _flwr(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([flower("flwr"), *arguments], capture_output=True, text=True, env=environment)


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
