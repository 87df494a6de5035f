"""The live page: who may ask, and what is refused."""

import contextlib
import http.client
import queue
import re
import threading

import numpy as np
import pytest

from jaxformer.cli import serving
from jaxformer.cli.main import main
from jaxformer.errors import ConfigError, DataError
from tests.inspection.small import rows, view

HOST = "127.0.0.1"


def look(text):
    if text == "too long":
        raise DataError("the text has <9> tokens")
    return view(np.array(rows(0, 1, 1, 2, 2)), text)


@pytest.fixture(scope="module")
def port():
    with serving.make_server(look, title="run", port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def ask(port, method="POST", body="text=a+dog", path="/", **headers):
    with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=10)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_text_is_answered_with_its_page(port):
    status, page = ask(port)
    assert status == 200
    assert '"title":"a dog"' in page
    assert ">a dog</textarea>" in page
    assert "no production server" in ask(port, "GET", None)[1]


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": f"{HOST}:1"}, {"Origin": "http://evil.example"}, {"Origin": "null"}],
)
def test_other_sites_may_not_ask(port, headers):
    """Also one whose name is for this address, so that the browser takes it for its own."""
    for method in ("GET", "POST"):
        status, text = ask(port, method, **headers)
        assert (status, text) == (403, "only pages of this server may ask\n")
    assert ask(port, Origin=f"http://localhost:{port}", Host=f"localhost:{port}")[0] == 200


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "must have a text"),
        ("other=1", "must have a text"),
        ("text=%FF", "in UTF-8"),
        ("text=" + "a" * 2001, "2,001 characters, but may have 2,000"),
        ("text=" + "a" * 50_000, "at most 2,000 characters"),
        ("text=too+long", "the text has &lt;9&gt; tokens"),
    ],
)
def test_what_is_refused_is_said_beside_the_form(port, body, problem):
    status, page = ask(port, body=body)
    assert status == 400
    assert problem in page


def test_only_the_form_is_there(port):
    assert ask(port, "GET", None, "/config.json")[0] == 404


def test_a_port_that_is_taken(port):
    with pytest.raises(ConfigError, match=f"cannot serve at port {port}: Address already in use; choose another"):
        serving.make_server(look, title="run", port=port)
    with pytest.raises(ConfigError, match="--port must be from 0 to 65535, got 70000"):
        serving.make_server(look, title="run", port=70_000)


def test_texts_come_from_the_browser(capsys):
    assert main(["inspect", "run", "a dog", "--serve"]) == 2
    assert "--serve takes its texts from the browser" in capsys.readouterr().err


def test_a_run_that_changed_underneath_ends_the_server(capsys):
    """The client reads why, on one line beside the form, and so does the terminal; the model is not asked."""
    changed, asked = [], []

    def check():
        if changed:
            raise ConfigError("run/<60> is gone since run was loaded; start the command again")

    found = queue.Queue()

    def run():
        try:
            serving.serve(lambda text: asked.append(text) or look(text), title="run", port=0, check=check)
        except ConfigError as error:
            found.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    port = None
    while port is None:
        if match := re.search(r":(\d+)/", capsys.readouterr().out):
            port = int(match[1])
    assert ask(port)[0] == 200
    changed.append(True)
    status, page = ask(port)
    assert status == 409
    assert "run/&lt;60&gt; is gone since run was loaded; start the command again</p>" in page
    error = found.get(timeout=10)
    assert (str(error), error.exit_code) == ("run/<60> is gone since run was loaded; start the command again", 2)
    assert asked == ["a dog"]
    with pytest.raises(ConnectionRefusedError):
        ask(port)
