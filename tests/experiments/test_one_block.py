"""One block class with three masks: its parameters, its visible words, its measures, and the smoke version."""

import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from experiments.one_block import __main__ as command
from experiments.one_block import measures, training
from experiments.one_block.families import BOS, EOS, FAMILIES, MASK, PAD, ModelSizes, Network, hide
from jaxformer import pure
from tests.modules.small import quick

PAGE = pathlib.Path(__file__).parents[2] / "experiments" / "one_block"
BY_NAME = {family.name: family for family in FAMILIES}
SHAPE = ModelSizes(12, d_model=8, num_layers=1)


def shapes(name):
    return jax.tree.map(lambda leaf: leaf.shape, pure(Network, (BY_NAME[name], SHAPE)).shapes)


def test_b8_the_families_have_the_same_parameters():
    """Only the mask differs; cross-attention adds its own, and a second stack of the first kind."""
    encoder, decoder, pair = map(shapes, ("encoder", "decoder", "encoder-decoder"))
    assert encoder == decoder == shapes("decoder without its mask") == shapes("encoder-decoder without cross-attention")
    assert pair["encoder"]["stack"] == encoder["decoder"]["stack"]
    blocks = pair["decoder"]["stack"]["layers"]
    assert blocks.keys() - encoder["decoder"]["stack"]["layers"].keys() == {"cross", "cross_norm"}
    rest = {name: leaf for name, leaf in blocks.items() if not name.startswith("cross")}
    assert rest == encoder["decoder"]["stack"]["layers"]


def test_b8_the_mask_determines_which_words_are_visible():
    params = quick(pure(Network, (BY_NAME["encoder"], SHAPE)).init)(jax.random.key(0))
    seen = {
        name: measures.sees(pure(Network, (BY_NAME[name], SHAPE)), BY_NAME[name], params)
        for name in ("encoder", "decoder", "decoder without its mask")
    }
    assert np.array_equal(seen["decoder"], np.tri(6, dtype=bool))
    assert seen["encoder"].all()
    assert seen["decoder without its mask"].all()


@pytest.mark.full
def test_cross_attention_sees_the_source():
    family = BY_NAME["encoder-decoder"]
    net = pure(Network, (family, SHAPE))
    params = quick(net.init)(jax.random.key(0))
    words = jax.numpy.array([[BOS, 5, 6]])
    first, other, padded = (
        np.asarray(net.apply(params, words, jax.numpy.array([source])))
        for source in ([BOS, 7, EOS, PAD], [BOS, 8, EOS, PAD], [BOS, 7, EOS, PAD, PAD])
    )
    assert np.abs(first - other).min() > 0
    np.testing.assert_allclose(first, padded, atol=1e-5)


def test_hidden_words():
    words = np.array([[BOS, *range(4, 12), EOS, PAD, PAD]] * 50)
    told, hidden = map(np.asarray, hide(jax.numpy.asarray(words), jax.random.key(0)))
    assert (told[hidden] == MASK).all()
    assert np.array_equal(told[~hidden], words[~hidden])
    assert not hidden[words <= MASK].any()
    assert hidden.any(1).all()
    assert 0.1 < hidden[words > MASK].mean() < 0.25


def test_a_corpus_of_words():
    data = training.corpus(60, 10, command.CONSTRUCTIONS)
    assert data.english.shape == data.french.shape == (60, 16)
    assert (data.english[:, 0] == BOS).all()
    assert (data.english[np.arange(60), (data.english > MASK).sum(1) + 1] == EOS).all()
    assert data.text(data.english[0][1:].tolist()).endswith(".")


class Counts:
    """A network that expects the number after the last one."""

    def apply(self, params, words, source=None):
        return 9.0 * jax.numpy.eye(12)[(words + 1) % 12]


class Peeks:
    """A network that predicts in each position the word at the next one."""

    def apply(self, params, words, source=None):
        return 9.0 * jax.numpy.eye(12)[jax.numpy.roll(words, -1, axis=1)]


@pytest.mark.parametrize(("net", "right"), [(Counts(), 1.0), (Peeks(), 0.0)])
def test_the_next_word_is_predicted_from_earlier_words(net, right):
    """Later words are padding: a network that has learned to read them fails."""
    words = np.array([[BOS, 4, 5, EOS, PAD]] * 3, np.int32)
    data = training.Corpus(tuple("<>/?abcdefgh"), words, words, 2)
    assert measures.following(net, BY_NAME["decoder"], {}, data) == right


def test_sentences_are_written_word_by_word():
    net, family = Counts(), BY_NAME["decoder"]
    source = np.zeros((2, 4), np.int32)
    assert measures.write(net, family, {}, source, 4).tolist() == [[BOS, EOS, PAD, PAD]] * 2
    drawn = measures.write(net, family, {}, source, 4, jax.random.key(0))
    assert drawn[:, 0].tolist() == [BOS, BOS]
    data = training.Corpus(tuple("<>/?abcdefgh"), source, source, 2)
    assert data.text([4, 5, EOS, 6]) == "a b"


def test_trigrams_that_occur():
    corpus = np.array([[BOS, 4, 5, 6, EOS]])
    assert measures.known_trigrams(corpus, corpus) == 1.0
    assert measures.known_trigrams(np.array([[BOS, 4, 5, 7, EOS]]), corpus) == 1 / 3
    assert measures.known_trigrams(np.array([[BOS, PAD, PAD]]), corpus) == 0.0


def test_the_page_has_the_results():
    """Its table equals results.json, and the results support its statements."""
    results = json.loads((PAGE / "results" / "results.json").read_text(encoding="utf-8"))
    assert command.tables(results) in (PAGE / "README.md").read_text(encoding="utf-8")
    found = {record["name"]: record for record in results["families"]}
    assert list(found) == list(BY_NAME)
    decoder, blind = found["decoder"], found["decoder without its mask"]
    assert blind["loss"] < decoder["loss"] / 3
    assert blind["known trigrams"] < decoder["known trigrams"] / 2
    assert blind["next"] < decoder["next"] / 2
    encoder = found["encoder"]
    assert encoder["between"] > encoder["next"] + 0.2
    assert decoder["next"] > encoder["next"] + 0.2
    assert encoder["known trigrams"] < decoder["known trigrams"] / 2
    pair, unmasked, sourceless = list(found.values())[3:]
    assert pair["bleu"] > 20 + max(unmasked["bleu"], sourceless["bleu"])
    assert unmasked["loss"] < pair["loss"]
    assert found["decoder"]["sees"] == np.tri(6, dtype=int).tolist()


@pytest.mark.full
def test_smoke(tmp_path):
    """The command in its own process, as a user starts it."""
    words = [sys.executable, "-m", "experiments.one_block", "--smoke", "--out", str(tmp_path)]
    for _ in range(2):  # the second time, nothing is trained
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        assert f"\n{done.stdout}".count("\n| ") == len(command.SMOKE_FAMILIES) + 1
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [record["parameters"] for record in results["families"]][:2] == [results["families"][0]["parameters"]] * 2
