"""The classifier of texts: the same text is one input, however it is given."""

import jax
import numpy as np
import pytest

from jaxformer import models
from jaxformer.data.examples import read_examples
from jaxformer.errors import DataError
from jaxformer.modules.pure import pure
from jaxformer.tasks.classification import predictor
from jaxformer.tasks.classification.predictor import ClassVocabulary, TextClassifier
from jaxformer.tokenizers.characters import CharacterTokenizer


def test_blanks_around_a_text_are_left_out_as_in_training(tmp_path):
    texts = ["She sings. ", "  She sings.", "She sings.\r", "She sings."]
    (tmp_path / "examples").write_text("".join(f"a\t{text}\n" for text in texts), newline="")
    assert {*read_examples(tmp_path / "examples").texts} == {"She sings."}
    tokenizer = CharacterTokenizer.train(texts)
    config = models.ClassifierConfig(
        vocab_size=tokenizer.vocab_size, num_classes=2, d_model=12, num_heads=4, d_ff=20, num_layers=1
    )
    net = pure(models.Classifier, config)
    classifier = TextClassifier(net, net.init(jax.random.key(0)), ClassVocabulary(tokenizer, ("a", "b")), 20)
    *others, bare = classifier.classify(texts)
    assert "".join(word for word, _ in bare.words) == "Shesings."
    for found in others:
        assert [word for word, _ in found.words] == [word for word, _ in bare.words]
        assert found.probabilities == pytest.approx(bare.probabilities)
    expected = np.tile(list(bare.probabilities.values()), (4, 1))
    np.testing.assert_allclose(classifier.probabilities(texts), expected, rtol=1e-6)


def test_a_long_text_leaves_its_neighbors_alone(monkeypatch):
    """They would be padded to its length, and cost as much as it does."""
    texts = ["ab", "b" * 400, "a", "abba"]
    tokenizer, shapes = CharacterTokenizer.train(texts), []

    def classify(net, params, tokens):
        shapes.append(tokens.shape)
        return np.tile([0.5, len(shapes)], (len(tokens.ids), 1)), None

    monkeypatch.setattr(predictor, "_classify", classify)
    classifier = TextClassifier(None, {}, ClassVocabulary(tokenizer, ("a", "b")), 512)
    assert classifier.probabilities(texts)[:, 1].tolist() == [1, 2, 1, 1]
    assert shapes == [(8, 16), (1, 416)]


def test_pairs_of_texts(tmp_path, monkeypatch):
    """One row with an end token and another type for the second text; the longer text is cut; no pair is refused."""
    (tmp_path / "pairs").write_text("yes\tabba\tb\nno\ta\t \n")
    with pytest.raises(DataError, match="pairs, line 2: the second text is empty"):
        read_examples(tmp_path / "pairs", columns=(0, 1, 2))
    (tmp_path / "pairs").write_text("yes\tabba\tb\nno\ta\tb \n")
    assert read_examples(tmp_path / "pairs", columns=(0, 1, 2)).texts == ("abba\tb", "a\tb")
    tokenizer, seen = CharacterTokenizer.train(["ab"]), []

    def classify(net, params, tokens):
        seen.append(tokens)
        return np.full((len(tokens.ids), 2), 0.5), None

    monkeypatch.setattr(predictor, "_classify", classify)
    config = models.ClassifierConfig(tokenizer.vocab_size, num_token_types=2)
    net = pure(models.Classifier, config)
    classifier = TextClassifier(net, {}, ClassVocabulary(tokenizer, ("no", "yes")), 7, has_pairs=True)
    said = []
    classifier.classify(["abba\tb"], warn=said.append)
    (a, b), special = (tokenizer.encode([text])[0].tolist()[0] for text in "ab"), tokenizer.special
    assert seen[0].ids.tolist() == [[special.bos, a, b, b, special.eos, b, special.eos]]
    assert seen[0].types.tolist() == [[0, 0, 0, 0, 0, 1, 1]]
    assert said == ["text 1 has 6 tokens; only 5 are read"]
    with pytest.raises(DataError, match="text 2 must be two texts with a tab between them, got 1"):
        classifier.classify(["a\tb", "a"])
