"""``jaxformer inspect``: the head that is drawn, the picture and the text."""

import pathlib

import numpy as np
import pytest

from jaxformer.cli import inspect, main
from jaxformer.inspection import pages, plots
from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.inspection.pages import View
from jaxformer.tasks import rundir
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import TranslationConfig, Translator
from tests.inspection.small import held, rows
from tests.permissions import read_only

WEIGHTS = np.array(rows(0, 2, 2, 2, 3))
OF_ENCODER = np.array(rows(1, 3, 2, 3, 3))
WEIGHTS[1, 0] = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05]]  # of all heads, this one aligns


class Fixed(Translator):
    steps = (3,)

    def __init__(self, weights=WEIGHTS):
        """A translator without a model."""
        self.weights = weights

    def view(self, source, target=None, search=True):
        assert source == "A dog runs"
        words, names = ("▁A", "▁dog", "▁runs"), ("▁Un", f"▁{target or 'chien'}")
        both = {"encoder.self": AttentionWeights(words, words, OF_ENCODER)}
        return View(source, both | {"decoder.cross": AttentionWeights(words, names, self.weights)})


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(inspect, "configured", lambda options, settings: TranslationConfig())
    monkeypatch.setattr(inspect, "load", lambda options, config: Fixed())
    return tmp_path


def test_the_head_that_aligns_most_words_is_drawn(run, capsys):
    assert inspect.inspect([str(run), "--source", "A dog runs"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("decoder layer 1, head 0, which aligns most words")
    assert "chien" in out
    assert out.splitlines()[-1] == str(run / "attention.png")
    assert (run / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_the_only_map_needs_no_choice(run, monkeypatch, capsys):
    monkeypatch.setattr(inspect, "load", lambda options, config: Fixed(WEIGHTS[:1, :1]))
    assert inspect.inspect([str(run), "--source", "A dog runs"]) == 0
    out = capsys.readouterr().out
    assert "chien" in out
    assert "head" not in out


def test_a_chosen_head_a_mean_and_a_given_translation(run, capsys):
    words = [str(run), "--source", "A dog runs", "--target", "cheval", "--out", str(run / "map.svg")]
    texts = []
    for choice in (["--layer", "1", "--head", "0"], ["--layer", "1"], ["--mean"]):
        assert inspect.inspect([*words, *choice]) == 0
        texts.append(capsys.readouterr().out)
        assert "aligns most words" not in texts[-1]
        assert "cheval" in texts[-1]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("choice", "title"),
    [
        ([], "head 0 of decoder layer 1"),
        (["--layer", "-1", "--head=-2"], "head 0 of decoder layer 1"),
        (["--layer", "0"], "the mean of the heads of decoder layer 0"),
        (["--head", "1"], "the mean of head 1 of all layers"),
        (["--mean"], "the mean of all heads"),
        (["--kind", "encoder.self"], "the mean of the heads of encoder layer 2"),
        (["--kind", "encoder.self", "--layer", "0", "--head", "1"], "head 1 of encoder layer 0"),
    ],
)
def test_the_picture_says_what_it_shows(run, monkeypatch, choice, title):
    """The last layer is -1, as in `CapturedAttention.layer`."""
    titles, draw = [], plots.attention_map
    monkeypatch.setattr(plots, "attention_map", lambda words, title: titles.append(title) or draw(words, title=title))
    assert inspect.inspect([str(run), "--source", "A dog runs", *choice]) == 0
    assert titles == [title]


def test_a_grid_is_a_picture_of_all_heads(run, capsys):
    assert inspect.inspect([str(run), "--source", "A dog runs", "--grid", "--out", str(run / "heads.svg")]) == 0
    assert capsys.readouterr().out == f"{run / 'heads.svg'}\n"
    assert "layer 1, head 1" in (run / "heads.svg").read_text()


def test_a_table_of_numbers(run, capsys):
    assert inspect.inspect([str(run), "--source", "A dog runs", "--layer", "1", "--head", "0", "--table"]) == 0
    header, first, second, picture = capsys.readouterr().out.splitlines()
    assert header.split() == ["A", "dog", "runs", "|", "sum", "entropy"]
    assert first.split() == ["Un", "0.900", "0.050", "0.050", "|", "1.000", "0.394"]
    assert second.split()[:4] == ["chien", "0.050", "0.900", "0.050"]
    assert picture == str(run / "attention.png")


def test_a_read_only_run_is_shown_as_text(run, capsys):
    """A picture in the default place is reported as missing; one at a given path is an error, before any work."""
    with read_only(run):
        assert main.main(["inspect", str(run), "--source", "A dog runs"]) == 0
        out, err = capsys.readouterr()
        assert main.main(["inspect", "nowhere", "--source", "a", "--out", str(run / "a.png")]) == 2
    assert "chien" in out
    assert "attention.png" not in out
    assert err == f"warning: {run / 'attention.png'} is not saved: Permission denied\n"
    assert f"cannot write '{run / 'a.png'}': Permission denied" in capsys.readouterr().err


def test_a_page_has_every_attention_of_every_input(run, capsys):
    page = run / "page.html"
    assert inspect.inspect([str(run), "A dog runs", "A dog runs", "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text()
    assert text.startswith(pages.MARK)
    assert text.count("Cross-attention") == text.count("Self-attention of the encoder") == 2
    assert f"{run}, step 3" in text
    assert inspect.inspect([str(run), "A dog runs", "--html", str(page), "--layer", "-1"]) == 0  # a page is replaced
    assert len(page.read_text()) < len(text)


def test_a_file_that_is_no_page_is_kept(run, monkeypatch, capsys):
    """It is refused before the model is loaded."""
    monkeypatch.setattr(inspect, "load", lambda options, config: pytest.fail("the work has begun"))
    (run / "notes.html").write_text("<h1>mine</h1>")
    assert main.main(["inspect", str(run), "A dog runs", "--html", str(run / "notes.html")]) == 2
    assert "notes.html exists and is no page of jaxformer; name another file" in capsys.readouterr().err
    assert (run / "notes.html").read_text() == "<h1>mine</h1>"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--html", "PAGE", "--layer", "7"], "layer must be from 0 to 1"),
        (["--head", "-3"], "head must be from 0 to 1"),
        (["--kind", "grid"], "this model has no grid; it has encoder.self and decoder.cross"),
    ],
)
def test_what_is_not_there_is_one_line(run, capsys, words, problem):
    words = [str(run / "page.html") if word == "PAGE" else word for word in words]
    assert main.main(["inspect", str(run), "A dog runs", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert not list(run.iterdir())


def two_runs(tmp_path, monkeypatch):
    """Two runs of translators that differ, and one of a language model; returns what is loaded."""
    loaded = []
    for name in ("one", "two"):
        rundir.claim(tmp_path / name, "translation", TranslationConfig(), ())
    rundir.claim(tmp_path / "text", "language_model", LanguageModelingConfig(), ())

    def load(options, config):
        loaded.append((options.run.name, config.decode.search.beam_size))
        return Fixed(WEIGHTS if options.run.name == "one" else WEIGHTS[::-1])

    monkeypatch.setattr(inspect, "load", load)
    monkeypatch.chdir(tmp_path)
    return loaded


def test_another_run_or_another_search_is_shown_beside(monkeypatch, tmp_path):
    loaded = two_runs(tmp_path, monkeypatch)
    words = ["one", "A dog runs", "A dog runs", "--html", "page.html"]
    assert inspect.inspect([*words, "--against", "two", "--decode.beam_size", "3"]) == 0
    views = held(pathlib.Path("page.html").read_text())["views"]
    assert [(view["run"], view["other"]) for view in views] == [("one", 1), ("two", 0), ("one", 3), ("two", 2)]
    crosses = [view["attentions"][0]["weights"] for view in views]
    assert crosses[0] == crosses[2] != crosses[1] == crosses[3]
    assert inspect.inspect([*words, "--against-decode", "beam_size=1", "length_penalty=0"]) == 0
    views = held(pathlib.Path("page.html").read_text())["views"]
    assert [view["run"] for view in views[:2]] == ["as trained", "beam_size=1 length_penalty=0"]
    default = TranslationConfig().decode.search.beam_size
    assert loaded == [("one", 3), ("two", 3), ("one", default), ("one", 1)]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--against", "two"], "--against is for a page; add --html FILE"),
        (["--against-decode", "beam_size=2"], "--against-decode is for a page; add --html FILE"),
        (["--html", "a.html", "--against", "text"], "text is a run of language_model, but one is one of translation"),
        (["--html", "a.html", "--against", "nowhere"], "nowhere is not a run"),
        (["--html", "a.html", "--against", "one"], "what is shown beside is the same; name another run"),
        (["--html", "a.html", "--against-decode", "beam_sise=2"], "beam_sise"),
        (["--html", "a.html", "--target", "x", "--against-decode", "beam_size=2"], "leave out --against-decode"),
    ],
)
def test_what_cannot_be_shown_beside_is_refused_before_a_model_is_loaded(monkeypatch, tmp_path, capsys, words, problem):
    loaded = two_runs(tmp_path, monkeypatch)
    assert main.main(["inspect", "one", "A dog runs", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert not loaded
