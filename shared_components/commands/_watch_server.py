"""Serve the page of `surgfl watch --serve`: one process, read-only, no access to files by a path."""

import errno
import ipaddress
import logging
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from urllib.parse import urlsplit

from shared_components.common.sanitise import one_line
from shared_components.federation.messages import FederationError
from shared_components.reporting.records import RecordError
from shared_components.reporting.watch_page import content_policy, unreadable_page, watch_page
from shared_components.reporting.watch_view import Look

logger = logging.getLogger(__name__)
_LEAST, _SHARE = 2.0, 10  # seconds that a page is kept at least; and how many times as long as it took to draw


class PageServer(ThreadingHTTPServer):
    """An HTTP server for a single page; on a loopback address it answers only requests to such an address.

    A page of the internet could otherwise read it through a name that resolves to this machine (DNS rebinding).
    """

    daemon_threads = True

    def __init__(self, host: str, port: int, page: Callable[[], str]) -> None:
        self.address_family = AF_INET6 if ":" in host else self.address_family
        self.page, self.is_local = page, is_loopback(host)
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{f'[{host!s}]' if self.address_family == AF_INET6 else host!s}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10  # seconds
    server_version, sys_version = "surgfl", ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug(format, *args)

    def _answer(self, *, body: bool) -> None:
        code, text, kind = HTTPStatus.OK, "", "text/html"
        if self.server.is_local and not is_loopback(_host_of(self.headers.get("Host", ""))):
            code, text, kind = HTTPStatus.MISDIRECTED_REQUEST, "this page answers only on this machine\n", "text/plain"
        elif self.path.partition("?")[0] != "/":
            code, text, kind = HTTPStatus.NOT_FOUND, "there is only one page: /\n", "text/plain"
        content = (text or self.server.page()).encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", content_policy())
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if body:
            self.wfile.write(content)


class RunPage:
    """The page of a run, drawn at most every two seconds and in at most a tenth of the time."""

    def __init__(self, name: str, look: Callable[[], Look]) -> None:
        self._name, self._look = name, look
        self._lock, self._text, self._until, self._problem = threading.Lock(), "", 0.0, ""

    def __call__(self) -> str:
        with self._lock:
            if (start := time.monotonic()) >= self._until:
                self._text = self._draw()
                end = time.monotonic()
                self._until = end + max(_LEAST, _SHARE * (end - start))
            return self._text

    def _draw(self) -> str:
        try:
            page, problem = watch_page(self._look()), ""
        except (FederationError, RecordError, OSError, LookupError, TypeError) as error:
            page, problem = unreadable_page(self._name), one_line(error)
        if problem and problem != self._problem:
            print(f"surgfl watch: {problem}", file=sys.stderr)
        self._problem = problem
        return page


def serve(name: str, address: str, look: Callable[[], Look]) -> None:
    """Serve the page of a run until Ctrl-C; ``look`` reads its state. ValueError: the address is invalid or in use."""
    host, port = parse_address(address)
    try:
        server = PageServer(host, port, RunPage(name, look))
    except OSError as error:
        used = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise ValueError(f"--serve: {address} {used}; give another address, such as 127.0.0.1:0") from error
    if not server.is_local:
        print(
            f"surgfl watch: everybody who reaches {address} can read the sites' names and scores, without a password "
            "or encryption; 127.0.0.1 shows them only on this machine",
            file=sys.stderr,
        )
    with server:
        print(f"{server.url} shows {name}; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, or of a port on 127.0.0.1; ValueError for anything else."""
    try:
        parts = urlsplit(f"//127.0.0.1:{text}" if text.isdecimal() else f"//{text}")
        if parts.hostname and parts.port is not None and not (parts.path or parts.query or parts.username):
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ValueError(f"--serve is {text!r}; give HOST:PORT, such as 127.0.0.1:8080")


def is_loopback(host: str) -> bool:
    """Return whether a host's name is ``localhost`` or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
