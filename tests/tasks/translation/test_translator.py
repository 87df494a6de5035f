"""Properties of a translator, which need no training."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer import demo, models, pure, sharding
from jaxformer.data.tokenizer import SubwordTokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.sharding import Placement
from jaxformer.tasks.translation import DecodeConfig, Translator

ALL = Placement(sharding.mesh())
SENTENCES = ["The old man sees the house.", "", "She sings.", "Why did the old actress hide her keys?", "  "]


def translator(beam_size=3, **options):
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(500)], vocab_size=400)
    config = models.EncoderDecoderConfig(
        400, 400, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1, **options
    )
    net = pure(models.EncoderDecoder, config)
    return Translator(
        net,
        net.init(jax.random.key(1)),
        tokenizer,
        DecodeConfig(beam_size=beam_size, batch_size=2, max_ratio=1.0, max_extra=5),
    )


def test_order_and_empty_sentences():
    """Each sentence is translated as it is alone, whatever it is batched with."""
    one = translator()
    together = one.candidates(SENTENCES, n_best=2)
    assert [c.text for c in together[1]] == ["", ""]
    for sentence, found in zip(SENTENCES, together, strict=True):
        alone = one.candidates([sentence], n_best=2)[0]
        assert [c.tokens for c in alone] == [c.tokens for c in found]
        np.testing.assert_allclose([c.score for c in alone], [c.score for c in found], rtol=1e-4, atol=1e-5)


def test_a_translation_is_one_line(monkeypatch):
    """Bytes can spell what ends a line or a column, and a sentence of spaces has no translation."""
    monkeypatch.setattr(SubwordTokenizer, "decode", lambda self, ids: "a\nb\r\tc\0d\u2028e\x85f")
    assert translator().translate(["She sings.", " \u3000"]) == ["a b  c d e f", ""]


def test_one_text_is_not_a_list_of_sentences():
    """Each of its characters would be a sentence."""
    with pytest.raises(TypeError, match=r"write \[text\]"):
        translator().translate("the")


def test_limits_on_length():
    one = translator()
    for sentence, (best,) in zip(SENTENCES, one.candidates(SENTENCES), strict=True):
        assert len(best.tokens) <= len(one.tokenizer.encode([sentence])[0]) + 1 + 5


def test_progress_counts_every_sentence():
    seen = []
    translator().translate(SENTENCES[:1] * 5, progress=seen.append)
    assert seen == [2, 2, 1]


def test_every_device_has_a_sentence():
    """A batch of two on eight devices would have six of them search for translations of nothing."""
    seen = []
    dataclasses.replace(translator(), placement=ALL).translate(SENTENCES[:1] * 10, progress=seen.append)
    assert seen == [8, 2]


def test_attention_rows_sum_to_one():
    found = translator().attention(SENTENCES[0], "Le vieil homme.")
    assert found.weights.shape == (1, 2, len(found.target), len(found.source))
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)
    assert found.source[-1] == found.target[-1] == "</s>"


def test_attention_of_a_pair_is_the_same_in_a_batch():
    one, targets = translator(), ["Le vieil homme.", "Elle chante.", "Pourquoi ?"]
    sources = [SENTENCES[0], SENTENCES[2], SENTENCES[3]]
    for found, source, target in zip(one.attentions(sources, targets), sources, targets, strict=True):
        alone = one.attention(source, target)
        assert (found.source, found.target) == (alone.source, alone.target)
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)


def test_refusals():
    with pytest.raises(ConfigError, match=r"n_best must be in \[1, beam_size = 3\], got 4"):
        translator().candidates(SENTENCES, n_best=4)
    short = translator(positions="learned", max_positions=12)
    assert len(short.translate(["She sings."])) == 1
    with pytest.raises(DataError, match=r"sentence 2 has .* tokens, but the model takes at most 12; split it"):
        short.translate(["She sings.", "The old man sees the house and the garden and the sea and the hills."])
    with pytest.raises(DataError, match=r"sentence 1 has .* tokens, but the model takes at most 32,768; split it"):
        translator().translate(["word " * 40_000])  # its program would be compiled for hours, or have no memory
