"""The HTTP server for Prometheus, on rank 0 alone.

It serves a few requests at a time, each in a thread. A connection without a whole request within
five seconds is closed; if there are too many, the oldest of these connections are closed first. So
a client cannot take much from the training, or block other clients.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from horovod.errors import InitError
from horovod.metrics.counters import KINDS, MOVING
from horovod.metrics.progress import Numbers
from horovod.metrics.setup import REPORT_TIME
from horovod.rendezvous.base.admission import (
    UnauthenticatedPeers,
    accept_some,
    most_unauthenticated,
)

_REQUEST_S = 5.0
_MOST_AT_A_TIME = 64
_PAUSE_S = 0.1  # before it accepts again without free descriptors
_log = logging.getLogger("horovod")
_BY_KIND = {
    "operations": "operations that were submitted",
    "tensors": "tensors that were submitted",
    "bytes": "bytes of the tensors that were submitted",
}
_COUNTERS = {
    "buckets": "collectives that were run, each with the tensors of one operation or more",
    "fused_tensors": "tensors that ran together with others",
    "link_bytes": "bytes of tensors that were sent to other hosts over Horovod's own connections",
    "queued_seconds": "time from submission to start, of all operations together",
    "waited_seconds": "time in which running collectives waited for other ranks",
    "blocked_seconds": "time that threads of the program waited for results",
    "errors": "operations that failed",
    "stalls": "operations that waited for longer than the stall check allows",
    "resets": "worlds after the first one",
    "steps": "steps of training, as far as they can be told",
    "step_seconds": "time of these steps",
}
_GAUGES = {
    "in_flight_operations": "operations under way",
    "last_step_seconds": "time of the last step",
    REPORT_TIME: "when the rank has reported these numbers",
}


class Endpoint:
    """Answers ``GET /metrics`` at an address, from construction to ``close``.

    ``token``: empty, or what a request must have as ``Authorization: Bearer <token>``.

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
        """The port it listens at."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._is_over = True
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._server.server_close()

    def abandon(self) -> None:
        """Close the parent's socket in a forked child."""
        self._server.socket.close()

    def _serve(self) -> None:
        # Not serve_forever(), which wakes up twice a second.
        while not self._is_over:
            self._server.handle_request()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        self._lock = threading.Lock()
        self._open = 0
        most = min(_MOST_AT_A_TIME, most_unauthenticated())
        self._pending = UnauthenticatedPeers[socket.socket](most)
        super().__init__((address, port), handler)

    def server_bind(self) -> None:
        # HTTPServer would look up the host's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.socket.setblocking(False)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            for accepted, address in accept_some(self.socket, 1):
                return accepted, address
        except OSError:
            with self._lock:
                has_room = self._make_room()
            if not has_room:
                time.sleep(_PAUSE_S)
            raise
        raise BlockingIOError  # the client has closed the connection

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = self._open < self._pending.most or self._make_room()
            if has_room:
                self._open += 1
                self._pending.add(request, client_address[0])
        if not has_room:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no more threads are possible
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open -= 1
            self._pending.remove(request)

    def note_whole_request(self, request: socket.socket) -> None:
        """Keep the connection open: its request has arrived and gets an answer now."""
        with self._lock:
            self._pending.remove(request)

    def _make_room(self) -> bool:
        """Close a connection without a whole request, if there is one; its thread then ends."""
        waiting = self._pending.first_to_go()
        if waiting is None:
            return False
        self._pending.remove(waiting)
        with contextlib.suppress(OSError):
            waiting.shutdown(socket.SHUT_RDWR)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("metrics: a request was aborted", exc_info=True)


class _TimedReader(io.RawIOBase):
    """Reads from a connection until a deadline; raises TimeoutError after it."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        self._connected = connected
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connected.settimeout(max(self._deadline - time.monotonic(), 0.001))
        return self._connected.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    token: str
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_TimedReader(self.connection, time.monotonic() + _REQUEST_S))

    def do_GET(self) -> None:
        self.server.note_whole_request(self.connection)
        self.connection.settimeout(_REQUEST_S)  # for one call that sends all
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


class JobCollector(Collector):
    """Makes metric families of the ranks' metrics that ``read`` returns, for each request."""

    def __init__(self, read: Callable[[], Mapping[int, Numbers]], size: int) -> None:
        self._read = read
        self._size = size

    def collect(self) -> Iterable[Metric]:
        """See ``Collector``."""
        by_rank = self._read()
        yield GaugeMetricFamily("horovod_size", "ranks of the world", value=self._size)
        for what, text in _BY_KIND.items():
            counter = CounterMetricFamily(f"horovod_{what}", text, labels=["rank", "kind"])
            for rank, numbers in by_rank.items():
                for kind in KINDS if what == "operations" else MOVING:
                    counter.add_metric([str(rank), kind], numbers.get(f"{kind}_{what}", 0))
            yield counter
        for family, texts in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, text in texts.items():
                metric = family(f"horovod_{name}", text, labels=["rank"])
                for rank, numbers in by_rank.items():
                    metric.add_metric([str(rank)], numbers.get(name, 0))
                yield metric
