"""``jaxformer translate``: sentences as arguments, from a file and from standard input."""

import io
import json
import os
import stat
import sys
import threading

import pytest

from jaxformer.cli import translate
from jaxformer.cli.main import main
from jaxformer.errors import DataError
from jaxformer.tasks import rundir
from jaxformer.tasks.search import Candidate
from jaxformer.tasks.translation import DecodeConfig, TranslationConfig, Translator
from jaxformer.tokenizers.special_tokens import SpecialTokens


class Echo(Translator):
    def __init__(self):
        """A translator without a model."""

    decode = DecodeConfig(batch_size=2)
    programs = ()

    def candidates(self, sentences, *, n_best, first, prefixes, warn, progress):
        if "too long" in sentences:
            raise DataError(f"sentence {first + sentences.index('too long')} is too long")
        begun = prefixes or [""] * len(sentences)
        return [
            [Candidate(prefix + text.upper() + "!" * k, -0.5 - k, (4, 5), -1.0, (-0.25, -0.75)) for k in range(n_best)]
            for prefix, text in zip(begun, sentences, strict=True)
        ]

    def ensemble_with(self, others):
        return self


@pytest.fixture
def echo(monkeypatch):
    monkeypatch.setattr(translate, "configured", lambda options, settings: None)
    monkeypatch.setattr(translate, "load_ensemble", lambda options, config: Echo())


def test_options_may_stand_before_the_sentences(echo, capsys):
    assert translate.main(["run", "--decode.beam_size", "2", "a dog", "--decode.length_penalty=0.6", "a cat"]) == 0
    assert capsys.readouterr().out == "A DOG\nA CAT\n"


def test_standard_input_is_utf8_in_every_locale(echo, capsys, monkeypatch):
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


def test_output_to_links_pipes_and_devices(echo, tmp_path, capfd):
    """A link stays a link, a pipe passes the lines to its reader, and a device stays a device."""
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


def test_no_sentences_give_no_lines(echo, capsys, tmp_path):
    (tmp_path / "empty").touch()
    assert translate.main(["run", "--file", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == ""


def test_printed_translations(echo, capsys, monkeypatch):
    """A number and a score precede each of several texts, the score only on request; JSON has everything."""
    monkeypatch.setattr(Echo, "tokenizer", Pieces(), raising=False)
    monkeypatch.setattr(Echo, "alignments", lambda self, sources, targets: [[(0, 0), (1, 1)] for _ in sources])
    assert translate.main(["run", "a dog", "--n-best", "2", "--alignments"]) == 0
    assert capsys.readouterr().out == "1\t-0.5000\tA DOG\t0-0 1-1\n1\t-1.5000\tA DOG!\t0-0 1-1\n"
    assert translate.main(["run", "a dog", "--scores", "--prefix", "Le "]) == 0
    assert capsys.readouterr().out == "-0.5000\tLe A DOG\n"
    assert translate.main(["run", "été", "b", "--json"]) == 0
    one, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["number"], one["source"], other["number"]) == (1, "été", 2)
    found = {"text": "ÉTÉ", "score": -0.5, "log_prob": -1.0, "tokens": ["4", "5"], "token_log_probs": [-0.25, -0.75]}
    assert one["translations"] == [found]


class Pieces:
    special = SpecialTokens()

    def pieces(self, ids):
        return [str(token) for token in ids]


def test_short_options_are_settings(monkeypatch):
    """`--top-p .9` is `--decode.top_p .9`; contradictions give a one-line error."""
    given = []
    monkeypatch.setattr(translate, "configured", lambda options, settings: given.append(list(settings)))
    monkeypatch.setattr(translate, "load_ensemble", lambda options, config: Echo())
    assert translate.main(["run", "--sample", "--top-p=.9", "a", "--seed", "1", "--no-repeat-ngram-size", "3"]) == 0
    words = ["--decode.sample", "--decode.top_p=.9", "--decode.seed", "1", "--decode.no_repeat_ngram_size", "3"]
    assert given == [words]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--top-p .9 --beam-size 5",
            "decode.top_p is for search sample, decode.beam_size is for search",
        ),
        ("--seed 1", "decode.seed is for search sample, not beam"),
        ("--sample --top-p 0", "top_p must be in (0, 1], got 0.0"),
        ("--sample --temperature 0", "--sample and --temperature 0 name two searches, sample and greedy"),
        ("--mbr 1", "num_candidates must be from 2 to 65,536, got 1"),
        ("--mbr 2000000000", "num_candidates must be from 2 to 65,536, got 2000000000"),
        ("--mbr 9 --decode.candidates beam", "num_candidates must be at most candidates.beam_size, 4, got 9"),
        (
            "--sample --decode.coverage_penalty .2",
            "decode.coverage_penalty is for search beam, not sample",
        ),
        ("--decode.length_penalty nan", "length_penalty must be at least 0, got nan"),
        ("--decode.length_penalty inf", "length_penalty must be finite in float32, got inf"),
        ("--decode.patience 2 --decode.stopping now", "patience 2.0 is for stopping first, got stopping now"),
        ("--min-length 5 --decode.max_length 5", "min_length must be below max_length"),
        ("--seed", "--seed needs a value"),
        ("--decode.max_ratio 1e30", "max_ratio must be at most 100, got 1e+30"),
        ("--decode.max_extra 1000000", "max_extra must be at most 10,000, got 1,000,000"),
        ("--forbid ,", "forbid names no word or phrase, got ','"),
    ],
)
def test_contradictions_give_a_one_line_error(tmp_path, capsys, arguments, message):
    """Before anything is loaded, with exit code 2."""
    rundir.claim(tmp_path / "run", "translation", TranslationConfig(), ())
    assert main(["translate", str(tmp_path / "run"), "a dog", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert message in error


def test_available_lines_are_translated_together(echo, capsys, monkeypatch):
    """A batch takes as many as it can hold; their numbers continue from batch to batch."""
    sizes = []
    plain = Echo.candidates
    monkeypatch.setattr(
        Echo,
        "candidates",
        lambda self, texts, **options: (sizes.append((len(texts), options["first"])), plain(self, texts, **options))[1],
    )
    standard_input(monkeypatch, b"a\nb\nc\n")
    assert translate.main(["run"]) == 0
    assert capsys.readouterr().out == "A\nB\nC\n"
    assert sizes == [(2, 1), (1, 3)]
