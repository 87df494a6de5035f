"""``jaxformer translate``: sentences as arguments, from a file and from standard input."""

import io
import os
import stat
import sys
import threading

import pytest

from jaxformer.cli import translate
from jaxformer.errors import DataError
from jaxformer.tasks.translation import Translator


class Echo(Translator):
    def __init__(self):
        """A translator without a model."""

    def translate(self, sentences, *, first=1, progress=None):
        if "too long" in sentences:
            raise DataError(f"sentence {first + sentences.index('too long')} is too long")
        return [sentence.upper() for sentence in sentences]


@pytest.fixture
def echo(monkeypatch):
    monkeypatch.setattr(translate, "configured", lambda options, settings: None)
    monkeypatch.setattr(translate, "load", lambda options, config, command: Echo())


def test_options_may_stand_before_the_sentences(echo, capsys):
    assert translate.main(["run", "--decode.beam_size", "2", "a dog", "--decode.length_penalty=0.6", "a cat"]) == 0
    assert capsys.readouterr().out == "A DOG\nA CAT\n"


def test_standard_input_is_utf8_whatever_the_locale(echo, capsys, monkeypatch):
    given = io.TextIOWrapper(io.BytesIO("été\r\n\nb\n".encode() + b"\xff\n"), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", given)
    with pytest.raises(DataError, match=r"standard input, line 4: not UTF-8 \(byte 0xff\)"):
        translate.main(["run"])
    assert capsys.readouterr().out == "ÉTÉ\n\nB\n"


def standard_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input_goes_to_a_file_and_to_lines(echo, capsys, monkeypatch, tmp_path):
    standard_input(monkeypatch, b"\xef\xbb\xbfa dog\na cat\n")
    assert translate.main(["run", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out").read_text() == "A DOG\nA CAT\n"
    standard_input(monkeypatch, b"short\ntoo long\n")
    with pytest.raises(DataError, match="sentence 2 is too long"):
        translate.main(["run"])


def test_translations_go_through_what_cannot_be_replaced(echo, tmp_path, capfd):
    """A link stays one, a pipe is read by who waits for it, and a device is still a device."""
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    for place in (tmp_path / "link", tmp_path / "pipe", "/dev/null", "/dev/stdout"):
        assert translate.main(["run", "a dog", "--out", str(place)]) == 0
    reader.join(timeout=10)
    assert received == ["A DOG\n"]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "A DOG\n"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert capfd.readouterr().out == "A DOG\n"


def test_no_sentences_are_no_lines(echo, capsys, tmp_path):
    (tmp_path / "empty").touch()
    assert translate.main(["run", "--file", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == ""
