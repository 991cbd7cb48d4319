"""The site's ClientApp, and a process that forks one for each message, with Flower already imported.

Flower starts a new ``flwr-clientapp`` for every message; importing it all takes seconds. Here that command is a script which
hands its arguments to this process. The ClientApp only carries bytes to the site's worker and back.

It never unpacks or imports the app that the server sends with a run: a site runs the code that it installed, nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

import frames
from children import end_with_parent
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supernode.cli import flwr_clientapp
from flwr.supernode.runtime import run_clientapp as runtime

WORKER = os.environ["FL_LIGHTNING_WORKER"]  # path of the worker's socket

PATIENCE = 120.0  # seconds

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """First contact: what this site is."""
    return _forward(message)


@app.query("step")
def step(message: Message, context: Context) -> Message:
    """A protocol step of the federated algorithm."""
    return _forward(message)


def _forward(message: Message) -> Message:
    try:
        with _connected() as worker:
            frames.send(worker, message.content["message"]["frame"].data)
            data = frames.receive(worker)
    except (OSError, EOFError) as error:
        raise RuntimeError("its worker process ended; see worker.log of the site") from error
    frame = Array(dtype="uint8", shape=(len(data),), stype="fl_lightning", data=data)
    return Message(RecordDict({"message": ArrayRecord({"frame": frame})}), reply_to=message)


def _connected() -> socket.socket:
    """The worker; one that has just ended is being started again, which is waited for."""
    end = time.monotonic() + PATIENCE
    while True:
        worker = socket.socket(socket.AF_UNIX)
        try:
            worker.connect(WORKER)
            return worker
        except (FileNotFoundError, ConnectionRefusedError):
            worker.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _ours_alone() -> None:
    """Take our ClientApp wherever Flower would install and load the one that came with the run."""

    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("A site installs nothing that a server asks for.")

    for name in ("install_from_fab", "get_project_dir", "get_load_client_app_fn", "install_app_dependencies"):
        if not hasattr(runtime, name):
            raise SystemExit(f"flwr has no `{name}` where it was in 1.42; install `flwr==1.42.*`.")
    runtime.install_from_fab = lambda *args, **options: None
    runtime.get_project_dir = lambda *args, **options: None
    runtime.get_load_client_app_fn = lambda *args, **options: lambda *run: app
    runtime.install_app_dependencies = refuse


def _serve(path: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forked ones
    while True:
        connection, _ = server.accept()
        try:
            argv = json.loads(frames.receive(connection))
        except (OSError, EOFError, ValueError):
            connection.close()
            continue
        if os.fork() == 0:
            end_with_parent(signal.SIGKILL)  # what it could still say, nobody would hear
            server.close()
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 1
            try:
                sys.argv = ["flwr-clientapp", *argv]
                flwr_clientapp()
                code = 0
            except SystemExit as leaving:
                code = leaving.code if isinstance(leaving.code, int) else 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        connection.close()


if __name__ == "__main__":
    _ours_alone()
    _serve(sys.argv[1])
