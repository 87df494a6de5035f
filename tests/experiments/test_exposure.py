"""The probes of the exposure experiment, its measures on a known model, and its smoke version."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exposure import __main__ as command
from experiments.exposure import measures, probes, report
from jaxformer import decoding, demo
from jaxformer.demo import Pair
from jaxformer.tasks.translation import DecodeConfig, Translator
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.special_tokens import SpecialTokens

RESULTS = pathlib.Path(__file__).parents[2] / "experiments" / "exposure"


def pair(construction, french):
    return Pair("English.", french, construction)


def test_l3_adjectives_agree_with_a_distant_noun():
    """The forms of the adjective that are wrong, the distance, and the noun in between."""
    found = probes.agreement(pair("relative subject", "Les filles qui appellent le garçon sont belles."))
    assert found.wrong == tuple(
        f"Les filles qui appellent le garçon sont {form}." for form in ("beau", "beaux", "belle")
    )
    assert (found.distance, found.attracted, found.answer) == (5, True, "belles")
    found = probes.agreement(pair("state", "La vieille souris était grise."))
    assert (found.distance, found.attracted) == (1, False)
    assert probes.agreement(pair("state", "La vieille souris était marron.")) is None  # one form for all
    assert probes.agreement(pair("motion", "La vieille souris était grise.")) is None


@pytest.mark.parametrize(
    ("construction", "french", "right", "wrong", "answer"),
    [
        ("object pronoun", "Il voit cette poire et la mange.", None, ["Il voit cette poire et le mange."], "feminine"),
        ("object pronoun", "Il a vu un gant et l'a lavé.", None, ["Il a vu un gant et l'a lavée."], "masculine"),
        (
            "because",
            "Notre sœur a quitté cette gare parce qu'elle était vieille.",
            "Notre sœur a quitté cette gare parce qu'elle était",
            ["Notre sœur a quitté cette gare parce qu'il était"],
            "feminine",
        ),
        ("bank", "Il a chanté sur la rive du lac.", "Il a chanté sur la rive", ["Il a chanté à la banque"], "rive"),
        ("spring", "Le ressort du lit est cassé.", "Le ressort", ["Le printemps", "La source"], "ressort"),
        ("know", "Nous savions où il était.", "Nous savions", ["Nous connaissions"], "savoir"),
    ],
)  # fmt: skip
def test_l3_words_that_only_the_context_translates(construction, french, right, wrong, answer):
    (found,) = probes.contrasts([pair(construction, french)], *probes.AMBIGUITIES)
    assert (found.right, list(found.wrong), found.answer) == (right or french, wrong, answer)


def test_every_kind_of_contrast_occurs_in_the_grammar():
    pairs = demo.generate(600, seed=1)
    found = probes.contrasts(pairs, probes.agreement, *probes.AMBIGUITIES)
    kinds = {one.probe for one in found}
    assert kinds == {"adjective", "it, object", "it, subject", "bank", "spring", "know"}
    assert all(one.right not in one.wrong and len(set(one.wrong)) == len(one.wrong) for one in found)
    assert {one.attracted for one in found} == {True, False}


@dataclasses.dataclass(frozen=True)
class Letters:
    """A vocabulary of letters, for words without spaces; "?" is the last."""

    special: SpecialTokens = SpecialTokens()
    vocab_size: int = 32
    normalizer: TextNormalizer = TextNormalizer()
    start: tuple[int, ...] = ()

    def encode(self, lines, side="source"):
        return [np.array([ord(c) - 97 + 4 for c in line], np.int32) for line in lines]

    def decode(self, ids):
        return "".join(chr(i - 4 + 97) for i in ids if i > 3)


@dataclasses.dataclass(frozen=True)
class Successor:
    """A network that expects the letter after the last one, and the end after "f"."""

    config: object = dataclasses.field(default_factory=lambda: type("Config", (), {"length_limit": None})())

    def __hash__(self):
        return 0

    def apply(self, params, source, target):
        return self.logits(target)

    def logits(self, tokens):
        ends = tokens == ord("f") - 97 + 4
        following = jnp.where(tokens == 1, 4, tokens + 1)  # the beginning is followed by "a"
        return 5.0 * jnp.eye(33)[jnp.where(ends, 2, following)][..., :32]

    def bind(self, params):
        return self

    def encode(self, source):
        return source.ids

    def step_weights(self):
        return None

    def start(self, memory, *, beam_size, length):
        return None, decoding.TreeState(jnp.zeros((memory.shape[0], beam_size)))

    def step(self, tokens, state, context):
        return self.logits(tokens), state


@pytest.fixture
def translator():
    return Translator(Successor(), {}, Letters(), DecodeConfig(batch_size=4))


def test_t6_free_running_repeats_its_errors(translator):
    """The model has learned "abcdef". With teacher forcing it errs once in "abdef"; in free running it stays wrong."""
    pairs = [Pair("x", french, "") for french in ("abcdef", "abdef", "abcef")]
    found = measures.exposure(translator, pairs)
    assert found["count"] == [3, 3, 3, 3, 3, 3, 1]
    assert found["teacher"] == pytest.approx([1, 1, 2 / 3, 2 / 3, 1, 1, 1])
    assert found["free"] == pytest.approx([1, 1, 2 / 3, 1 / 3, 1 / 3, 1 / 3, 1])
    assert found["whole"] == pytest.approx([1, 1, 2 / 3, 1 / 3, 1 / 3, 1 / 3, 1])
    assert found["after"] == {"teacher": 1.0, "free": 0.0, "tokens": 5}
    assert found["without error"] == pytest.approx({"teacher": 1 / 3, "free": 1 / 3})


def test_t6_without_errors_nothing_follows_an_error(translator):
    found = measures.exposure(translator, [Pair("x", "abcdef", "")])
    assert found["after"] == {"teacher": None, "free": None, "tokens": 0}
    assert (report.percent(None), report.percent(0.5)) == ("", "50.0%")


def test_t6_an_error_affects_one_position_of_a_model_without_memory(translator):
    """A model that reads only the last token is right again after the next correct one."""
    found = measures.reach(translator, [Pair("x", "abcdefghijkl", "")] * 5, seed=1)
    assert found["own"][1:] == found["clean"][1:] == found["random"][1:]
    assert found["own"][0] < found["clean"][0]


def test_contrasts_are_compared_whole(translator):
    one = probes.Contrast("p", "x", "abc", ("abd", "acb"), "a")
    found = measures.margins(translator, [one, dataclasses.replace(one, right="abd", wrong=("abc",))])
    assert found == pytest.approx([5.0, -5.0], abs=1e-4)  # one token of "abd" is wrong, and two of "acb"


def test_shares_have_intervals():
    (_, first), (key, second) = measures.shares(["a", "b", "a", "a"], [1.0, 2.0, -3.0, 5.0])
    assert first == pytest.approx({"count": 3, "right": 2 / 3, "low": 0.2077, "high": 0.9385, "margin": 1}, abs=1e-4)
    assert (key, second["right"], second["high"], second["margin"]) == ("b", 1.0, 1.0, 2.0)
    ones = [probes.Contrast("p", "x", "a", ("b",), answer) for answer in "aab"]
    assert measures.majority(ones) == 2 / 3


def test_the_page_has_the_tables_of_the_results():
    results = json.loads((RESULTS / "results" / "results.json").read_text(encoding="utf-8"))
    assert report.tables(results) in (RESULTS / "README.md").read_text(encoding="utf-8")


def test_l3_the_recorded_model_is_right():
    """At every distance, also with a noun of another gender or number in between, and for every ambiguous word."""
    results = json.loads((RESULTS / "results" / "results.json").read_text(encoding="utf-8"))
    rows = results["agreement"] + results["ambiguities"]
    assert {row["distance"] for row in results["agreement"]} >= set(range(1, 9))
    assert any(row["attracted"] for row in results["agreement"])
    assert min(row["right"] for row in rows) > 0.99
    assert min(row["margin"] for row in rows) > 1  # nats


def test_another_corpus_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"task": "translation", "config": {"data": {"source": "a"}}}))
    assert command.main(["--run", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "not trained on the built-in grammar" in said
    assert len(said.splitlines()) == 1


@pytest.mark.full
def test_smoke(tmp_path):
    """The command in its own process, as a user starts it."""
    command = [sys.executable, "-m", "experiments.exposure", "--smoke", "--out", str(tmp_path)]
    for _ in range(2):  # the second time, the training is there
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        assert "| whole sentences |" in done.stdout
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["facts"]["steps"] == [3]
    assert (tmp_path / "exposure.png").stat().st_size > 10_000
