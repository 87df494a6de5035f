"""What predictors show of an input: the weights of their networks, under the names of their tokens and places."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer import models, pure
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import choices
from jaxformer.tasks.captioning import TASK as CAPTIONING
from jaxformer.tasks.captioning import CaptioningConfig, DecodeConfig, ImageCaptioner
from jaxformer.tasks.classes import Classes
from jaxformer.tasks.classification.predictor import ClassVocabulary, TextClassifier
from jaxformer.tasks.language_model import TASK as LANGUAGE_MODEL
from jaxformer.tasks.language_model import TextGenerator
from jaxformer.tasks.masked_language_model.task import MaskedPredictor
from jaxformer.tasks.tagging import Tagger
from jaxformer.tasks.vision import TASK as VISION
from jaxformer.tasks.vision import ImageClassifier, VisionConfig
from jaxformer.tokenizers.characters import CharacterTokenizer
from tests.modules.small import drawn, quick
from tests.tasks.captioning.small import RECURRENT, TRANSFORMER
from tests.tasks.language_model import small
from tests.tasks.translation.translators import translator
from tests.tasks.vision.small import CONVOLUTION, picture
from tests.tasks.vision.small import TRANSFORMER as PATCHES

TOKENIZER = CharacterTokenizer.train(["the old man", "to be or not to be"])
ENCODER = {"d_model": 12, "num_heads": 4, "d_ff": 20, "num_layers": 2}


def checked(view, *names):
    """Every row is a distribution over the pieces, and guesses belong to rows."""
    assert set(view.attentions) == set(names)
    for attention in view.attentions.values():
        assert attention.weights.shape[2:] == (len(attention.target), len(attention.source))
        np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)
        assert len(attention.predictions) in (0, len(attention.target))
    return view


def params_of(net):
    return quick(net.init)(jax.random.key(0))


def test_a_translator():
    one = translator()
    view = checked(one.view("She sings.", "Elle chante."), "encoder.self", "decoder.self", "decoder.cross")
    cross, expected = view.attentions["decoder.cross"], one.attention("She sings.", "Elle chante.")
    assert (cross.source, cross.target) == (expected.source, expected.target)
    np.testing.assert_allclose(cross.weights, expected.weights, atol=1e-6)
    assert view.attentions["decoder.self"].source == ("<s>", *cross.target[:-1])
    (scored,) = one.score(["She sings."], ["Elle chante."])
    for piece, log_prob, guesses in zip(scored.tokens, scored.token_log_probs, cross.predictions, strict=True):
        assert dict(guesses).get(piece, np.exp(log_prob)) == pytest.approx(np.exp(log_prob), abs=1e-5)
    assert view.results == {"translation": "Elle chante."}
    own, (best, *_) = one.view("She sings."), one.candidates(["She sings."])[0]
    assert own.results["translation"] == best.text
    finished = [node for step in own.search for node in step if node.fate == "finished"]
    assert max(node.score for node in finished) == pytest.approx(best.score, abs=1e-5)


@pytest.mark.parametrize("attention", [choices.Additive(), None])
def test_a_recurrent_translator(attention):
    one = translator()
    config = models.Seq2SeqConfig(400, 400, d_model=12, d_hidden=8, num_encoder_layers=1, attention=attention)
    net = pure(models.Seq2Seq, config)
    recurrent = dataclasses.replace(one, net=net, params=params_of(net))
    if attention is None:
        with pytest.raises(ConfigError, match="this model has no attention to show"):
            recurrent.view("She sings.", "Elle chante.")
        return
    cross = checked(recurrent.view("She sings.", "Elle chante."), "decoder.cross").attentions["decoder.cross"]
    np.testing.assert_allclose(cross.weights, recurrent.attention("She sings.", "Elle chante.").weights, atol=1e-6)


def test_a_language_model(tmp_path):
    config = small.tiny(tmp_path)
    net = LANGUAGE_MODEL.network(config, TOKENIZER.vocab_size).net
    one = TextGenerator(net, params_of(net), TOKENIZER, config.decode, window=16)
    own = checked(one.view("the old man"), "decoder.self").attentions["decoder.self"]
    assert "".join(own.source) == "the old man".replace(" ", "▁")
    assert not np.triu(own.weights, 1).any()
    (scored,) = one.score(["the old man"])
    guessed = [dict(guesses).get(piece) for piece, guesses in zip(scored.tokens, own.predictions[:-1], strict=True)]
    for share, log_prob in zip(guessed, scored.token_log_probs, strict=True):
        assert share is None or share == pytest.approx(np.exp(log_prob), abs=1e-5)
    with pytest.raises(DataError, match="the text has 33 tokens, but the window of the model 16"):
        one.view("the old man" * 3)


def test_a_masked_language_model():
    net = pure(models.MaskedLanguageModel, models.EncoderConfig(vocab_size=40, **ENCODER))
    one = MaskedPredictor(net, params_of(net), TOKENIZER)
    view = checked(one.view("the [MASK]an"), "encoder.self")
    own = view.attentions["encoder.self"]
    place = own.source.index("[MASK]")
    ((best, share), *_) = one.fill("the [MASK]an")[0]
    assert own.predictions[place][0] == (best, pytest.approx(share, abs=1e-5))
    assert view.results == {"at each [MASK]": f"{best} {share:.1%}"}


def test_a_classifier():
    net = pure(models.Classifier, models.ClassifierConfig(vocab_size=40, num_classes=2, **ENCODER))
    one = TextClassifier(net, params_of(net), ClassVocabulary(TOKENIZER, ("a", "b")), 20)
    view = checked(one.view(" the old man "), "encoder.self")
    own = view.attentions["encoder.self"]
    row = own.weights[-1].mean(0)[0]
    (classified,) = one.classify(["the old man"])
    assert sum(weight for _, weight in classified.words) == pytest.approx(row[1:-1].sum(), abs=1e-5)
    assert view.results["class"].startswith(f"{classified.label} {max(classified.probabilities.values()):.1%}")
    assert len(one.view("the old man" * 9).attentions["encoder.self"].source) == 20


def test_a_classifier_of_pairs():
    """It reads a pair as `classify` does, with token types."""
    net = pure(models.Classifier, models.ClassifierConfig(vocab_size=40, num_classes=2, num_token_types=2, **ENCODER))
    one = TextClassifier(net, drawn(net.shapes), ClassVocabulary(TOKENIZER, ("a", "b")), 20, has_pairs=True)
    view = checked(one.view("the old \t man"), "encoder.self")
    row = view.attentions["encoder.self"].weights[-1].mean(0)[0]
    (classified,) = one.classify(["the old\tman"])
    assert sum(weight for _, weight in classified.words) == pytest.approx(row[1:8].sum() + row[9:12].sum(), abs=1e-5)
    with pytest.raises(DataError, match="must be two texts with a tab between them"):
        one.view("the old man")


def test_a_tagger():
    net = pure(models.TokenClassifier, models.TokenClassifierConfig(vocab_size=40, num_classes=2, **ENCODER))
    one = Tagger(net, drawn(net.shapes), ClassVocabulary(TOKENIZER, ("a", "b")), 12)
    view = checked(one.view("to be or not to be"), "encoder.self")  # longer than a row
    assert view.attentions["encoder.self"].source[1:-1] == tuple(TOKENIZER.pieces(TOKENIZER.encode(["to be or"])[0]))
    (tagged,) = one.tag(["to be or not to be"])
    assert view.results["labels"].split(" ")[:2] == [f"to/{tagged.labels[0]}", f"be/{tagged.labels[1]}"]
    with pytest.raises(DataError, match="no words"):
        one.view(" ")


@pytest.mark.parametrize(("model", "kind"), [(PATCHES, "encoder.self"), (CONVOLUTION, "grid")], ids=["ViT", "CNN"])
def test_an_image(model, kind, tmp_path):
    picture(1).save(tmp_path / "a.png")
    net = VISION.network(VisionConfig(model=model), 2).net
    one = ImageClassifier(net, drawn(net.shapes), Classes(("dark", "light")))
    own = checked(one.view(tmp_path / "a.png"), kind).attentions[kind]
    (expected,) = one.classify([tmp_path / "a.png"])
    shown = expected.attention_maps["grid" if kind == "grid" else "last layer"]
    rows = own.weights[-1].mean(0)
    extra = len(own.source) - own.patches.grid[0] * own.patches.grid[1]
    row = rows[0, extra:] if extra else rows.mean(0)
    np.testing.assert_allclose(row.reshape(own.patches.grid), shown, atol=1e-5)
    np.testing.assert_array_equal(own.patches.image, expected.image)


@pytest.mark.parametrize(
    "model",
    [pytest.param(RECURRENT, id="recurrent", marks=pytest.mark.full), pytest.param(TRANSFORMER, id="transformer")],
)
def test_a_caption(model, tmp_path):
    picture(1).save(tmp_path / "a.png")
    tokenizer = CharacterTokenizer.train(["a dark and light picture"])
    net = CAPTIONING.network(CaptioningConfig(model=model), tokenizer.vocab_size).net
    one = ImageCaptioner(net, drawn(net.shapes, 0.5), tokenizer, DecodeConfig(max_length=6))
    kinds = ("decoder.cross",) if model is RECURRENT else ("decoder.self", "decoder.cross")
    view = checked(one.view(tmp_path / "a.png", "a dark"), *kinds)
    (expected,) = one.attention(one.read_all([tmp_path / "a.png"]), ["a dark"])
    cross = view.attentions["decoder.cross"]
    assert (cross.source, cross.target) == (expected.source, expected.target)
    np.testing.assert_allclose(cross.weights, expected.weights, atol=1e-6)
    if model is RECURRENT:  # the search of both is that of `test_a_translator`
        own, (best, *_) = one.view(tmp_path / "a.png"), one.candidates(one.read_all([tmp_path / "a.png"]))[0]
        scores = [node.score for step in own.search for node in step if node.fate == "finished"]
        assert max(scores) == pytest.approx(best.score, abs=1e-4)
