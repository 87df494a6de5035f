"""A server on this machine that plays huggingface.co: the few requests that a download makes."""

import contextlib
import hashlib
import http.server
import json
import threading
import urllib.parse

PLAIN = {"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b"weights", "README.md": b"words"}
GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}


class Hub:
    """Repositories by name: their commits by revision, and their files by commit."""

    def __init__(self):
        self.revisions: dict[str, dict[str, str]] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.renamed: dict[str, str] = {}
        self.gated: set[str] = set()
        self.requests: list[str] = []
        self.after_info = lambda name: None
        """Called with the name of a repository when its revision has been asked for."""

    def commit(self, name, files, *, revisions=("main",)):
        """Adds a commit; returns its name."""
        commit = hashlib.sha1(json.dumps([name, {k: v.hex() for k, v in files.items()}]).encode()).hexdigest()
        self.files[commit] = dict(files)
        self.revisions.setdefault(name, {}).update(dict.fromkeys((*revisions, commit), commit))
        return commit

    @contextlib.contextmanager
    def serving(self):
        """Yields the address."""
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                hub.answer(self, with_body=False)

            def do_GET(self):
                hub.answer(self, with_body=True)

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()

    def answer(self, handler, *, with_body):
        path = urllib.parse.urlsplit(handler.path).path.strip("/")
        self.requests.append(f"{handler.command} {path}")
        status, headers, body = self._answer(path)
        handler.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            handler.send_header(name, value)
        handler.end_headers()
        if with_body:
            handler.wfile.write(body)

    def _answer(self, path):
        api = path.startswith("api/models/")
        parts = [urllib.parse.unquote(x) for x in path.removeprefix("api/models/").split("/")]
        name, verb, rest = "/".join(parts[:2]), *(parts[2:3] or ["revision"]), parts[3:] or ["main"]
        if name in self.renamed:
            return 307, {"Location": f"/{path.replace(name, self.renamed[name])}"}, b""
        commit = self.revisions.get(name, {}).get(rest[0])
        if name not in self.revisions:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        files, sent = self.files[commit], {"X-Repo-Commit": commit}
        if api and verb == "tree":
            entries = [{"type": "file", "path": k, "size": len(v), "oid": _oid(v)} for k, v in files.items()]
            return 200, sent | {"Content-Type": "application/json"}, json.dumps(entries).encode()
        if api:
            about = {"id": name, "modelId": name, "sha": commit, "siblings": [{"rfilename": x} for x in files]}
            self.after_info(name)
            return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()
        if name in self.gated:
            return 403, GATED, b""
        body = files.get("/".join(rest[1:]))
        if body is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 200, sent | {"ETag": f'"{_oid(body)}"'}, body


def _oid(body):
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
