"""The classifier of texts: the same text is one input, however it is given."""

import jax
import numpy as np
import pytest

from jaxformer import models
from jaxformer.data.examples import read_examples
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
