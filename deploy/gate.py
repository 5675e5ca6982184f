"""``python -m deploy.gate``: let nodes reach the fleet API of a SuperLink, and nothing else of it.

A SuperLink serves everything on one port, and takes runs from whoever reaches it: whoever submits a run has
their code executed on every node. The gate is the port that other hosts get. It forwards the paths of the
fleet API of the installed Flower, and those only, to a SuperLink that no other host reaches.
"""

import argparse
import ssl
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import uvicorn
from flwr.superlink.routers.fleet.router import router as fleet_api
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deploy.options import address, port

# A SuperNode gives up a question after 30 seconds, and asks again where it is told that nobody answers.
TIMEOUT_SECONDS = 60.0
UNAVAILABLE = 503
# Of one connection and not of the message; uvicorn and httpx set their own.
OF_CONNECTIONS = frozenset(
    {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-connection"}
)
# Known only to nodes and SuperLinks of one version of Flower.
PATHS = tuple(sorted({route.path for route in fleet_api.routes if isinstance(route, Route)}))


def gate(superlink: str, trusted: ssl.SSLContext) -> Starlette:
    """Return the app that forwards the fleet API to a SuperLink, and answers its own ``/health``.

    Args:
        superlink: host and port.
        trusted: by which its certificate is checked.
    """

    @asynccontextmanager
    async def connected(_: Starlette) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
        url = f"https://{superlink}"
        async with httpx.AsyncClient(
            base_url=url, verify=trusted, timeout=TIMEOUT_SECONDS, trust_env=False
        ) as client:
            yield {"client": client}

    # Each route forwards to its own path: what a caller writes into a URL never becomes one.
    forwarded = [Route(path, partial(_forward, path), methods=["POST"]) for path in PATHS]
    return Starlette(routes=[Route("/health", _healthy), *forwarded], lifespan=connected)


async def _healthy(_: Request) -> Response:
    return Response()


async def _forward(path: str, request: Request) -> Response:
    """Hand a message on in pieces, so that the gate holds no whole one; 503 where no SuperLink answers."""
    client: httpx.AsyncClient = request.state.client
    headers = _of_message(request.headers.items())
    try:
        asked = client.build_request("POST", path, headers=headers, content=request.stream())
        answer = await client.send(asked, stream=True)
    except (httpx.TransportError, ClientDisconnect):
        return Response(status_code=UNAVAILABLE)
    response = StreamingResponse(
        answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
    )
    response.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in _of_message(answer.headers.multi_items())
    ]
    return response


def _of_message(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in OF_CONNECTIONS]


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal ends it."""
    options = parser().parse_args(arguments)
    app = gate(options.superlink, ssl.create_default_context(cafile=str(options.ca)))
    uvicorn.run(
        app,
        host=options.host,
        port=options.port,
        ssl_certfile=str(options.certificate),
        ssl_keyfile=str(options.key),
        server_header=False,
        date_header=False,
    )


def parser() -> argparse.ArgumentParser:
    """The options of this command."""
    made = argparse.ArgumentParser(prog="python -m deploy.gate", description=__doc__)
    made.add_argument("--superlink", type=address, required=True, metavar="HOST:PORT", help="where it is")
    made.add_argument("--host", required=True, help="address to listen on")
    made.add_argument("--port", type=port, required=True, help="port to listen on")
    for name, what in (
        ("ca", "certificate authority of the SuperLink"),
        ("certificate", "own certificate"),
        ("key", "its key"),
    ):
        made.add_argument(f"--{name}", type=Path, required=True, help=f"file with the {what}")
    return made


if __name__ == "__main__":
    main()
