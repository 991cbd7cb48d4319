"""The one address that sites reach: hands `POST /v1/fleet/...` on to the SuperLink of this machine, and nothing else.

Flower serves its control interface, which has no login, on the same port; that port stays on 127.0.0.1.
"""

from __future__ import annotations

import json
import ssl
import sys

import httpx
import uvicorn

FLEET = "/v1/fleet/"
LARGEST = 64 << 20  # bytes of a request; Flower sends large messages in pieces of 5 MiB
HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "proxy-connection", "host"}


class Edge:
    """An ASGI application.

    Args:
        upstream: ``host:port`` of the SuperLink.
        ca: Path of the certificate authority that signed its certificate.
    """

    def __init__(self, upstream: str, ca: str) -> None:
        self.client = httpx.AsyncClient(
            base_url=f"https://{upstream}",
            verify=ssl.create_default_context(cafile=ca),
            timeout=httpx.Timeout(60.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        path = scope["raw_path"].decode("latin-1")
        if scope["method"] != "POST" or not path.startswith(FLEET) or ".." in path or "%" in path:
            await _answer(send, 404, [], b"")
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, 413, [], b"")
            return
        headers = [(k, v) for k, v in scope["headers"] if k.decode("latin-1").lower() not in HOP]
        try:
            reply = await self.client.request("POST", path, headers=headers, content=body)
        except httpx.HTTPError:
            await _answer(send, 502, [], b"")
            return
        kept = [(k, v) for k, v in reply.headers.raw if k.decode("latin-1").lower() not in HOP | {"content-encoding"}]
        kept = [(k, v) for k, v in kept if k.lower() != b"content-length"]
        await _answer(send, reply.status_code, kept, reply.content)


async def _body(receive) -> bytes | None:
    """A request's body; ``None`` if it is too large."""
    parts, size, more = [], 0, True
    while more:
        event = await receive()
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST:
            return None
        more = event.get("more_body", False)
    return b"".join(parts)


async def _answer(send, status: int, headers: list, body: bytes) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


def main(options: dict) -> None:
    """Serve until ended."""
    host, port = options["listen"].rsplit(":", 1)
    uvicorn.run(
        Edge(options["upstream"], options["ca"]),
        host=host.strip("[]"),
        port=int(port),
        ssl_certfile=options["certificate"],
        ssl_keyfile=options["key"],
        access_log=False,
        log_level="warning",
        lifespan="off",
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
