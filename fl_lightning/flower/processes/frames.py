"""Frames on a stream socket: eight bytes of length, then that many bytes; a frame is a JSON header and a body.

Nothing is ever unpickled. Imported by scripts that import nothing else of this package.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct("<Q")


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Header and body as one byte string."""
    head = json.dumps(header, separators=(",", ":")).encode()
    return b"".join((LENGTH.pack(len(head)), head, body))


def unpack(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Inverse of :func:`pack`.

    Raises:
        ValueError: If it is none.
    """
    if len(frame) < LENGTH.size:
        raise ValueError("A frame ends before its header.")
    (length,) = LENGTH.unpack_from(frame)
    if LENGTH.size + length > len(frame):
        raise ValueError("A frame ends before its header.")
    header = json.loads(frame[LENGTH.size : LENGTH.size + length])
    if not isinstance(header, dict):
        raise ValueError("The header of a frame must be a JSON object.")
    return header, frame[LENGTH.size + length :]


def send(connection: socket.socket, frame: bytes) -> None:
    """Write a frame."""
    connection.sendall(LENGTH.pack(len(frame)))
    connection.sendall(frame)


def receive(connection: socket.socket) -> bytes:
    """Read a frame.

    Raises:
        EOFError: If the other end closed the connection.
    """
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        read = connection.recv_into(view[done:], min(size - done, 1 << 20))
        if read == 0:
            raise EOFError("the other end closed the connection")
        done += read
    return bytes(data)
