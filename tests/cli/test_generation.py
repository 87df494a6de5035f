"""``translate``, ``generate`` and ``caption``: their inputs and the printed texts, without a model."""

import functools
import io
import json
import math
import pathlib
import sys

import numpy as np
import pytest

from jaxformer.cli import generation
from jaxformer.cli.generation import caption, generate, translate
from jaxformer.errors import DataError
from jaxformer.inspection.attention_maps import AttentionMap
from jaxformer.models import GridConfig, RecurrentCaptioner, RecurrentCaptionerConfig
from jaxformer.modules.pure import Pure
from jaxformer.tasks import captioning, language_model
from jaxformer.tasks.search import Candidate
from jaxformer.tasks.translation import DecodeConfig, Translator
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.training import progress

calls: list[tuple[object, ...]] = []
"""The texts of each call of a model, and the number of the first."""


class Loud(Translator):
    decode = DecodeConfig(batch_size=2)
    programs = ()
    tokenizer = CharacterTokenizer("ab")

    def __init__(self):
        """A translator without a model."""

    def candidates(self, sentences, *, n_best, first, prefixes, warn, progress):
        calls.append((*sentences, first))
        if "too long" in sentences:
            raise DataError(f"sentence {first + sentences.index('too long')} is too long")
        begun = prefixes or [""] * len(sentences)
        return [
            [Candidate(prefix + text.upper() + "!" * k, -0.5 - k, (4, 5), -1.0, (-0.25, -0.75)) for k in range(n_best)]
            for prefix, text in zip(begun, sentences, strict=True)
        ]

    def alignments(self, sources, targets):
        return [[(0, 0), (1, len(target))] for target in targets]


class Echo(language_model.TextGenerator):
    batch_size = 2
    decode = language_model.DecodeConfig(max_tokens=40)
    tokenizer = CharacterTokenizer("ab")

    def __init__(self):
        """A generator without a model."""
        object.__setattr__(self, "programs", set())

    def continuations(self, prompts, *, n_best, first, warn, progress):
        calls.append((*prompts, first))
        progress(30)
        text = lambda prompt, k: Candidate(f"{prompt} and so on{k or ''}", -1.5 - k, (4,), -1.5 - k, (-math.inf,))
        return [[text(prompt, k) for k in range(n_best)] for prompt in prompts]


class Seen(captioning.ImageCaptioner):
    def __init__(self):
        """A captioner without a model, of images of 4 x 4."""
        config = RecurrentCaptionerConfig(image=GridConfig(image_size=(4, 4), widths=(4, 4)))
        object.__setattr__(self, "net", Pure(RecurrentCaptioner, config))
        object.__setattr__(self, "decode", captioning.DecodeConfig())
        object.__setattr__(self, "programs", set())
        object.__setattr__(self, "tokenizer", CharacterTokenizer("act"))

    def read(self, path):
        return np.zeros((4, 4, 3), np.uint8)

    def candidates(self, images, *, n_best=1, first=1, progress=None):
        return [[Candidate(f"cat {i}", -0.5 - i, ()) for i in range(n_best)] for _ in images]

    def attention_maps(self, images, captions):
        return [AttentionMap(tuple("abcd"), tuple(text.split()), np.ones((2, 4)) / 4) for text in captions]


@pytest.fixture(autouse=True)
def _models(monkeypatch):
    """Each command has its model; `generation.configured` is called with the settings."""
    models = {"translate": Loud, "generate": Echo, "caption": Seen}
    monkeypatch.setattr(generation, "configured", lambda options, settings: None)
    monkeypatch.setattr(generation, "load_ensemble", lambda options, config: models[options.command()]())
    calls.clear()


def give(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize(
    ("command", "words", "printed"),
    [
        (translate, ["--decode.beam_size", "2", "a dog", "--decode.length_penalty=0.6", "a cat"], "A DOG\nA CAT\n"),
        (translate, ["a dog", "--scores", "--prefix", "Le "], "-0.5000\tLe A DOG\n"),
        (
            translate,
            ["a dog", "--n-best", "2", "--alignments"],
            "1\t-0.5000\tA DOG\t0-0 1-5\n1\t-1.5000\tA DOG!\t0-0 1-6\n",
        ),
        (generate, ["To be", "--decode.temperature", "0", "Or not"], "To be and so on\nOr not and so on\n"),
        (generate, ["a\nb", "--n-best", "2"], "1\t-1.5000\ta\nb and so on\n1\t-2.5000\ta\nb and so on1\n"),
        (caption, ["a.png", "--n-best", "2"], "1\t-0.5000\tcat 0\n1\t-1.5000\tcat 1\n"),
        (caption, ["a.png", "--scores"], "-0.5000\tcat 0\n"),
    ],
)
def test_columns(command, words, printed, capsys):
    """A number and a score precede each of several texts, the score only on request."""
    assert command(["run", *words]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        (
            translate,
            ["é", "b", "--alignments"],
            {
                "number": 2,
                "source": "b",
                "translations": [
                    {"text": "B", "score": -0.5, "log_prob": -1.0, "tokens": ["a", "b"], "alignment": "0-0 1-1"}
                    | {"token_log_probs": [-0.25, -0.75]}
                ],
            },
        ),
        (
            generate,
            ["a\nb"],
            {
                "number": 1,
                "prompt": "a\nb",
                "continuations": [
                    {"text": "a\nb and so on", "score": -1.5, "log_prob": -1.5}
                    | {"tokens": ["a"], "token_log_probs": [None]}
                ],
            },
        ),
        (
            caption,
            ["a.png"],
            {
                "number": 1,
                "image": "a.png",
                "captions": [{"text": "cat 0", "score": -0.5, "log_prob": 0.0, "tokens": [], "token_log_probs": []}],
            },
        ),
    ],
)
def test_json_has_everything_in_one_line(command, words, expected, capsys):
    assert command(["run", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == expected


def test_standard_input_is_utf8_in_every_locale(capsys, monkeypatch):
    give(monkeypatch, "\ufeffété\r\n\nb\n".encode() + b"\xff\n")
    with pytest.raises(DataError, match=r"standard input, line 4: not UTF-8 \(byte 0xff\)"):
        translate(["run"])
    assert capsys.readouterr().out == "ÉTÉ\n\nB\n"
    give(monkeypatch, "été\nb\n".encode())
    assert generate(["run"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "été and so on\nb and so on\n"
    assert printed.err.endswith("used 0 compiled search programs\n")


@pytest.mark.parametrize(
    ("command", "words", "first"), [(translate, [], 1), (generate, [], 0), (generate, ["a", "b", "c"], 0)]
)
def test_available_lines_and_prompts_share_programs(monkeypatch, capsys, command, words, first):
    """As many as a batch holds, with their numbers, on which draws depend."""
    give(monkeypatch, b"a\nb\nc\n")
    assert command(["run", *words]) == 0
    assert calls == [("a", "b", first), ("c", first + 2)]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_standard_input_goes_to_a_file_and_errors_name_its_lines(capsys, monkeypatch, tmp_path):
    give(monkeypatch, b"a dog\na cat\n")
    assert translate(["run", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "out").read_text() == "A DOG\nA CAT\n"
    give(monkeypatch, b"short\ntoo long\n")
    with pytest.raises(DataError, match="sentence 2 is too long"):
        translate(["run"])


def test_files_of_sentences_and_of_images(capsys, tmp_path):
    (tmp_path / "empty").touch()
    assert translate(["run", "--file", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == ""
    names = [str(tmp_path / name) for name in ("c.png", "d.png")]
    for name in names:
        pathlib.Path(name).touch()
    (tmp_path / "names").write_text("\n".join(names) + "\n")
    assert caption(["run", "--file", str(tmp_path / "names"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out").read_text() == "cat 0\ncat 0\n"
    assert capsys.readouterr().err.endswith("used 0 compiled search programs\n")


def test_a_picture_of_captions(capsys, tmp_path):
    assert caption(["run", "a.png", "b.png", "--picture", str(tmp_path / "sheet.png")]) == 0
    assert capsys.readouterr().out == "cat 0\ncat 0\n"
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="0"):
        caption(["--help"])
    assert f"first {generation.MOST} images" in " ".join(capsys.readouterr().out.split())


def test_long_texts_show_their_progress(capsys, monkeypatch):
    monkeypatch.setattr(progress, "Count", functools.partial(progress.Count, seconds=0.0))
    assert generate(["run", "To be"]) == 0
    assert capsys.readouterr().err.startswith("30/40 tokens, ")


def test_short_options_are_settings(monkeypatch):
    """`--top-p .9` is `--decode.top_p .9`."""
    given = []
    monkeypatch.setattr(generation, "configured", lambda options, settings: given.append(list(settings)))
    assert translate(["run", "--sample", "--top-p=.9", "a", "--seed", "1", "--no-repeat-ngram-size", "3"]) == 0
    words = ["--decode.sample", "--decode.top_p=.9", "--decode.seed", "1", "--decode.no_repeat_ngram_size", "3"]
    assert given == [words]
