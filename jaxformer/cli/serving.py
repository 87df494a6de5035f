"""A page that shows what is typed, at an address of this machine only: for trying a model out, no production server."""

from __future__ import annotations

import html
import http.server
import threading
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxformer.errors import ConfigError, JaxformerError

if TYPE_CHECKING:
    from jaxformer.inspection.pages import View

LOCAL = "127.0.0.1"
MOST = 2000
"""The largest number of characters of a text."""
TIMEOUT = 30.0
"""The seconds after which a silent connection is closed."""


class Server(http.server.ThreadingHTTPServer):
    """The server of the page; see `make_server`."""

    problem: ConfigError | None = None
    """The reason for which it has ended itself."""

    def end(self, problem: ConfigError) -> None:
        """Ends the server: no further request is answered."""
        self.problem = problem
        threading.Thread(target=self.shutdown).start()  # which waits for the loop, not for this request


def serve(look: Callable[[str], View], *, title: str, port: int, check: Callable[[], None] = lambda: None) -> None:
    """Answers requests until it is interrupted.

    Args:
      check: called before each look; raises a ConfigError if there must be none, which the client reads, too.

    Raises:
      ConfigError: the port is taken, or no port; or see `check`.
    """
    with make_server(look, title=title, port=port, check=check) as server:
        print(f"http://{LOCAL}:{server.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
        if server.problem:
            raise server.problem


def make_server(
    look: Callable[[str], View], *, title: str, port: int, check: Callable[[], None] = lambda: None
) -> Server:
    """Returns a server, one request to the model at a time; see `serve`."""
    functions = {"look": staticmethod(look), "check": staticmethod(check)}
    handler = type("Handler", (_Handler,), functions | {"title": title, "lock": threading.Lock()})
    try:
        return Server((LOCAL, port), handler)
    except OverflowError as error:
        raise ConfigError(f"--port must be from 0 to 65535, got {port}") from error
    except OSError as error:
        raise ConfigError(f"cannot serve at port {port}: {error.strerror}; choose another --port") from error


class _Handler(http.server.BaseHTTPRequestHandler):
    """A form and, after it is sent, the page of its text."""

    look: Callable[[str], View]
    check: Callable[..., None]
    title: str
    lock: threading.Lock
    timeout = TIMEOUT

    def do_GET(self) -> None:
        """Answers with the empty form."""
        if self._is_local():
            self._answer(200 if self.path == "/" else 404, "")

    def do_POST(self) -> None:
        """Answers with the page of the text of the form."""
        if not self._is_local():
            return
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 <= size <= 12 * MOST + 100:  # each character may be four bytes, and each byte "%FF"
                raise ValueError
            fields = urllib.parse.parse_qs(self.rfile.read(size).decode("ascii"), errors="strict")
            text = fields["text"][0].replace("\r\n", "\n").strip()
        except (ValueError, KeyError):
            self._answer(400, "", f"the request must have a text of at most {MOST:,} characters, in UTF-8")
            return
        if len(text) > MOST:
            self._answer(400, text[:MOST], f"the text has {len(text):,} characters, but may have {MOST:,}")
            return
        from jaxformer.inspection.pages import page

        try:
            type(self).check()
        except ConfigError as error:
            self._answer(409, text, str(error))
            assert isinstance(self.server, Server)
            self.server.end(error)
            return
        try:
            with self.lock:
                view = type(self).look(text)
            self._send(200, page([view], title=self.title, form=self._form(text)))
        except JaxformerError as error:
            self._answer(400, text, str(error))

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing: texts are not logged."""

    def _is_local(self) -> bool:
        """Returns True if a page of this server asks; refuses one of another site, also by a name for this address."""
        assert isinstance(self.server, http.server.HTTPServer)
        hosts = {f"{host}:{self.server.server_port}" for host in (LOCAL, "localhost")}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") in hosts and (origin is None or origin.removeprefix("http://") in hosts):
            return True
        self._send(403, "only pages of this server may ask\n", kind="text/plain")
        return False

    def _form(self, text: str, problem: str = "") -> str:
        error = f'<p class="error" role="alert">{html.escape(problem)}</p>\n' if problem else ""
        return (
            f'<form method="post" action="/">\n<label for="text">Text</label>\n'
            f'<textarea id="text" name="text" maxlength="{MOST}" required>{html.escape(text)}</textarea>\n{error}'
            "<span><button>Look</button></span>\n<small>For trying out on this machine. This is no production server: "
            "CTranslate2 and others serve exported translators.</small>\n</form>\n"
        )

    def _answer(self, status: int, text: str, problem: str = "") -> None:
        from jaxformer.inspection.pages import page

        self._send(status, page([], title=self.title, form=self._form(text, problem)))

    def _send(self, status: int, body: str, kind: str = "text/html") -> None:
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)
