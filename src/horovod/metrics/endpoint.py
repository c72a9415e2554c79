"""The HTTP server that Prometheus asks; on rank 0 alone.

It answers a few questions at a time, each by a thread that lives for that long, and gives up on who
is slow, so that nobody who reaches the port can take much from the training.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from horovod.errors import InitError

__all__ = ["Endpoint"]

_PATIENCE_S = 5.0
_MOST_AT_A_TIME = 8
_log = logging.getLogger("horovod")


class Endpoint:
    """Answers ``GET /metrics`` at an address, from construction to ``close``.

    ``token``: empty, or what a question must have as ``Authorization: Bearer <token>``.

    Raises:
        InitError: the address cannot be used, or the port is taken.
    """

    def __init__(self, address: str, port: int, token: str, collector: Collector) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        handler = type("Handler", (_Handler,), {"registry": registry, "token": token})
        try:
            self._server = _Server(address, port, handler)
        except (OSError, OverflowError) as error:
            raise InitError(
                f"init: metrics: cannot listen at {address}, port {port} (HOROVOD_METRICS_ADDRESS, "
                f"HOROVOD_METRICS_PORT): {error}"
            ) from None
        self._is_over = False
        self._thread = threading.Thread(target=self._serve, name="horovod-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._is_over = True
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.server_close()

    def abandon(self) -> None:
        """In a forked child: the port is the parent's."""
        self._server.socket.close()

    def _serve(self) -> None:
        # Not serve_forever(), which looks around twice a second.
        while not self._is_over:
            self._server.handle_request()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        self._free = threading.BoundedSemaphore(_MOST_AT_A_TIME)
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        # Without the look-up of the host's name that HTTPServer makes.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("metrics: a question was broken off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    token: str
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        if not self._is_authorised():
            self._answer(401, b"a bearer token is needed\n", ("WWW-Authenticate", "Bearer"))
        elif self.path.partition("?")[0] not in ("/", "/metrics"):
            self._answer(404, b"the metrics are at /metrics\n")
        else:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(self.registry), ("Content-Type", kind))

    def _is_authorised(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        return not self.token or hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def _answer(self, status: int, body: bytes, header: tuple[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in filter(None, (header, ("Content-Length", str(len(body))))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "horovod"

    def log_message(self, text: str, *values: Any) -> None:
        _log.debug("metrics: %s", text % values)
