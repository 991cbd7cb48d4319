"""Flower's ServerApp: carries frames between `fl-lightning fit`, which waits at a socket of this machine, and the sites.

`fit` sends one frame for a command. ``nodes``: answered by the sites that are connected. ``send``: a message to one node.
``collect``: answered by one frame for each message sent since the last one, in the order in which the replies come.
This file and `frames.py` are all the code of the app that is submitted; it knows nothing of what it carries.
"""

from __future__ import annotations

import select
import socket
import time

import frames
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
no_client = ClientApp()  # an app must name one; sites use their own


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve `fit` until it says ``end`` or is gone."""
    pending: dict[str, str] = {}
    with socket.socket(socket.AF_UNIX) as fit:
        fit.connect(str(context.run_config["socket"]))
        while True:
            try:
                header, body = frames.unpack(frames.receive(fit))
            except EOFError:
                raise SystemExit("`fl-lightning fit` has ended.") from None
            command = header["command"]
            if command == "end":
                return
            if command == "nodes":
                nodes = [{"id": str(node.node_id), "name": node.name} for node in grid.get_nodes()]
                frames.send(fit, frames.pack({"nodes": nodes}))
            elif command == "send":
                message = _message(header, body)
                del body
                (number,) = list(grid.push_messages([message])) or [None]
                if number:
                    pending[number] = header["tag"]
                else:
                    frames.send(fit, frames.pack({"tag": header["tag"], "error": "the SuperLink took no message for it"}))
            else:
                _collect(grid, fit, pending, header["timeout"])


def _message(header: dict, body: bytes) -> Message:
    frame = Array(dtype="uint8", shape=(len(body),), stype="fl_lightning", data=body)
    return Message(
        RecordDict({"message": ArrayRecord({"frame": frame})}),
        dst_node_id=int(header["node"]),
        message_type=f"query.{header['action']}",
        group_id=header["group"],
        ttl=header["ttl"],
    )


def _collect(grid: Grid, fit: socket.socket, pending: dict[str, str], timeout: float | None) -> None:
    """Pull until all replies are there or the time is over, more seldom the longer it takes."""
    end = None if timeout is None else time.monotonic() + timeout
    wait = 0.05
    while pending:
        for reply in grid.pull_messages(set(pending)):
            tag = pending.pop(reply.metadata.reply_to_message_id, None)
            if tag is None:  # a reply is known by what it answers: errors come from the SuperLink, whoever was asked
                continue
            if reply.has_error():
                frames.send(fit, frames.pack({"tag": tag, "error": _reason(reply.error, timeout)}))
            else:
                frames.send(fit, frames.pack({"tag": tag, "error": None}, reply.content["message"]["frame"].data))
            wait = 0.05
        if pending and end is not None and time.monotonic() > end:
            for tag in pending.values():
                frames.send(fit, frames.pack({"tag": tag, "error": f"no answer within {timeout:g} s"}))
            pending.clear()
        if pending:
            if select.select([fit], [], [], wait)[0]:  # `fit` says nothing while it waits: readable means that it is gone
                raise SystemExit("`fl-lightning fit` has ended while sites were at work.")
            wait = min(0.5, wait * 1.5)


def _reason(error: Error, timeout: float | None) -> str:
    late = "no answer in time" if timeout is None else f"no answer within {timeout:g} s"
    known = {3: late, 5: "it is not connected any more", 8: "its ClientApp process died"}
    return f"{known.get(error.code, error.reason or 'error')} (Flower's error {error.code})"
