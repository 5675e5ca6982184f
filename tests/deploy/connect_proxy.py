"""A small proxy for HTTP's CONNECT on loopback, which asks for a user name and a password.

It knows of each tunnel only where it leads and that bytes go to and fro, as a site's proxy does.
"""

import asyncio
import threading
from base64 import b64encode
from contextlib import suppress
from typing import Self

OK, DENIED, BAD_GATEWAY = "200 OK", "407 Proxy Authentication Required", "502 Bad Gateway"


class ConnectProxy:
    """An HTTP proxy that serves CONNECT requests during a ``with`` block.

    Args:
        user, password: what it asks for.
        port: on which it listens; 0 for a free one.

    `asked`: each target and the status that it got. `passed`: how many bytes went through.
    """

    def __init__(self, user: str, password: str, port: int = 0) -> None:
        self.port = port
        self._words = b64encode(f"{user}:{password}".encode()).decode()
        self._loop = asyncio.new_event_loop()
        self.asked: list[tuple[str, str]] = []
        self.passed = 0

    def __enter__(self) -> Self:
        self._server = self._loop.run_until_complete(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """Close all connections and stop listening; a second call does nothing."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _end(self) -> None:
        self._server.close()
        tunnels = asyncio.all_tasks() - {asyncio.current_task()}
        for tunnel in tunnels:
            tunnel.cancel()
        await asyncio.gather(*tunnels, return_exceptions=True)
        await asyncio.sleep(0)  # A connection is closed in the turn after it was told to.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            request, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = request.split(" ")
            status = OK if f"Proxy-Authorization: Basic {self._words}" in headers else DENIED
            if status == OK and method == "CONNECT":
                try:
                    answers, there = await asyncio.open_connection(*target.rsplit(":", 1))
                    ends.append(there)
                except OSError:
                    status = BAD_GATEWAY
            self.asked.append((target, status))
            writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
            if len(ends) > 1:
                await asyncio.gather(self._carry(reader, there), self._carry(answers, writer))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # Whoever asked has gone, or the proxy ends.
        finally:
            for each in ends:
                each.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                self.passed += len(piece)
                writer.write(piece)
                await writer.drain()
        writer.close()
