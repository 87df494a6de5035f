"""Downloads from a server on this machine: complete, damaged, truncated, missing."""

import gzip
import hashlib
import http.server
import io
import threading
import zipfile

import pytest

from jaxformer.data.fetch import CATALOG, DownloadError, FetchError, File, PublicCorpus, fetch

TEXT = b"one\ntwo\n"
SUM = hashlib.sha256(TEXT).hexdigest()


def archive(compression=zipfile.ZIP_STORED, content=TEXT):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as zipped:
        zipped.writestr("inside.txt", content)
    return data.getvalue()


ANSWERS = {
    "/good.txt": TEXT,
    "/good.gz": gzip.compress(TEXT),
    "/bad.gz": gzip.compress(TEXT)[:-6],
    "/worse.gz": gzip.compress(TEXT)[:10] + b"\xff" * 20,
    "/wrong.txt": b"one\n",
    "/a.zip": archive(),
    "/large.txt": bytes(2000),
    "/bomb.gz": gzip.compress(bytes(2000)),
    "/bomb.zip": archive(zipfile.ZIP_DEFLATED, bytes(2000)),
    "/nowhere.zip": archive()[:-4] + b"\xff\xff" + archive()[-2:],  # its list of files is before its beginning
    "/bad.zip": archive(zipfile.ZIP_LZMA).replace(b"\x5d", b"\xff"),  # settings that LZMA has not
}


class Server(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self):
        self.asked.append(self.path)
        body = ANSWERS.get(self.path)
        if self.path == "/no.http":
            self.wfile.write(b"220 mail.example ready\r\n")
            return
        if self.path == "/cut.txt":
            self.send_response(200)
            self.send_header("Content-Length", "999")
            self.end_headers()
            self.wfile.write(TEXT)
        elif body is None:
            self.send_error(503 if self.path == "/busy.txt" else 404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        """Prints nothing."""


@pytest.fixture
def url():
    Server.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def get(tmp_path, url, name, **options):
    file = File("c/file.txt", f"{url}/{name}", options.pop("sha256", SUM), **options)
    return fetch("c", tmp_path, catalog={"c": PublicCorpus("about", (file,))}, timeout=5)


@pytest.mark.parametrize(("name", "member"), [("good.txt", ""), ("good.gz", ""), ("a.zip", "inside.txt")])
def test_complete_downloads(tmp_path, url, name, member):
    (path,) = get(tmp_path, url, name, member=member)
    assert path.read_bytes() == TEXT
    get(tmp_path, url, name, member=member)
    assert len(Server.asked) == 1  # what is there and right is left alone
    path.write_bytes(b"damaged")
    get(tmp_path, url, name, member=member)
    assert path.read_bytes() == TEXT
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize(
    ("name", "member", "message"),
    [
        ("wrong.txt", "", f"expected {SUM}"),
        ("bad.gz", "", "cannot be unpacked"),
        ("worse.gz", "", "cannot be unpacked"),
        ("no.http", "", "220 mail"),
        ("a.zip", "other.txt", "cannot be unpacked"),
        ("nowhere.zip", "inside.txt", "cannot be unpacked"),
        ("bad.zip", "inside.txt", "cannot be unpacked"),
        ("cut.txt", "", "broke|IncompleteRead"),
        ("none.txt", "", "answered 404"),
    ],
)
def test_bad_downloads_are_refused(tmp_path, url, name, member, message):
    with pytest.raises(FetchError, match=message):
        get(tmp_path, url, name, member=member)
    assert not list(tmp_path.rglob("*.txt"))


def test_links_to_another_disk_are_followed(tmp_path, url):
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus").symlink_to(tmp_path / "disk")
    file = File("corpus/good.txt", f"{url}/good.txt", SUM)
    assert fetch("c", tmp_path / "data", catalog={"c": PublicCorpus("", (file,))}) == [tmp_path / "data" / file.path]
    assert (tmp_path / "disk" / "good.txt").read_bytes() == TEXT


@pytest.mark.parametrize(("name", "member"), [("large.txt", ""), ("bomb.gz", ""), ("bomb.zip", "inside.txt")])
def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, url, monkeypatch, name, member):
    monkeypatch.setattr("jaxformer.data.fetch.LARGEST", 1000)
    with pytest.raises(FetchError, match="is larger than 1,000 bytes"):
        get(tmp_path, url, name, member=member)


def test_refusals(tmp_path):
    with pytest.raises(FetchError, match="no corpus 'nothing'; there are multi30k"):
        fetch("nothing", tmp_path)
    for path, address, message in (
        ("../out", "https://x.invalid/a", "is outside of"),
        ("in", "ftp://x.invalid/a", "not an https"),
        ("in", "http://127.0.0.1.x.invalid/a", "not an https"),
        ("in", "http://127.0.0.1:80@x.invalid/a", "not an https"),
    ):
        with pytest.raises(FetchError, match=message):
            fetch("c", tmp_path, catalog={"c": PublicCorpus("", (File(path, address, SUM),))})
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9"):
        get(tmp_path, "http://127.0.0.1:9", "x")


@pytest.mark.parametrize(("name", "code"), [("cut.txt", 1), ("busy.txt", 1), ("none.txt", 2), ("wrong.txt", 2)])
def test_only_failures_of_the_server_have_a_code_to_retry(tmp_path, url, name, code):
    with pytest.raises(FetchError) as raised:
        get(tmp_path, url, name)
    assert raised.value.exit_code == code


@pytest.mark.full
def test_the_catalog_matches_the_local_corpora(data_directory):
    for corpus in CATALOG.values():
        for file in corpus.files:
            assert hashlib.sha256((data_directory / file.path).read_bytes()).hexdigest() == file.sha256
