"""Tasks promise that padding ends the rows of their batches; it does, so losses need no padding mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, models, pure
from jaxformer.data.batch import Batch, shifted
from jaxformer.data.windows import OrderedWindows, RandomWindows, TokenStream
from jaxformer.tasks import captioning, language_model, translation
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.selection import first

SIZE = {"d_model": 8, "num_heads": 2, "d_ff": 8}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
GRID = models.GridConfig(image_size=(6, 6), widths=(4,), num_blocks=1)


def at_the_ends(valid):
    return bool((valid[:, :-1] >= valid[:, 1:]).all())


def test_padding_ends_the_rows_of_batches():
    special = SpecialTokens()
    sentences = [np.arange(4, 4 + length, dtype=np.int32) for length in (3, 0, 5)]
    batch = Batch.from_tokens(sentences, sentences, shape=(4, 7, 7), special=special)
    assert at_the_ends(batch.source.valid)
    assert at_the_ends(batch.target.valid)
    assert at_the_ends(shifted(sentences, (4, 7), special)[0].valid)
    stream = TokenStream(np.arange(4, 27, dtype=np.int32), special)
    windows = OrderedWindows(stream, 5, 3)
    batches = [windows.batch(step) for step in range(windows.steps_per_epoch)]
    assert not all(batch.tokens.valid.all() for batch in batches)
    assert all(at_the_ends(batch.tokens.valid) for batch in batches)
    assert at_the_ends(RandomWindows(stream, 5, 3, seed=0).batch(0).tokens.valid)


CONFIGS = {
    "translation": lambda: translation.TranslationConfig(model=models.EncoderDecoderConfig(**SIZE, **LAYERS)),
    "recurrent translation": lambda: translation.TranslationConfig(model=models.Seq2SeqConfig(d_model=8)),
    "language model": lambda: language_model.LanguageModelingConfig(
        model=models.LanguageModelConfig(**SIZE, num_layers=1)
    ),
    "captioning": lambda: captioning.CaptioningConfig(
        model=models.TransformerCaptionerConfig(image=GRID, **SIZE, num_layers=1)
    ),
    "recurrent captioning": lambda: captioning.CaptioningConfig(
        model=models.RecurrentCaptionerConfig(image=GRID, d_model=8, d_hidden=8)
    ),
}
TASKS = {"translation": translation.TASK, "model": language_model.TASK, "captioning": captioning.TASK}


@pytest.mark.parametrize("name", CONFIGS)
def test_losses_need_no_mask_of_padding(name):
    """In training and in validation, causal self-attention gets `masks.causal()` and nothing else."""
    given = []

    def spy(query, key, value, **options):
        given.append((query.shape[1], options.get("mask")))
        return functional.attention(query, key, value, **options)

    network = TASKS[name.split()[-1]].network(CONFIGS[name](), 16, spy)
    batch = network.abstract_batch(2, 4, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    jax.eval_shape(network.sums, network.net.shapes, batch, jax.random.key(0))
    jax.eval_shape(network.validation_sums, network.net.shapes, batch)
    kinds = [mask for length, mask in given if length == 4]
    assert not any(isinstance(mask, masks.And) for mask in kinds)
    assert kinds.count(masks.causal()) == (0 if "recurrent" in name else 2)


@pytest.mark.parametrize("kind", first([models.EncoderDecoder, models.TransformerCaptioner], models.EncoderDecoder))
def test_captured_self_attention_masks_the_padding_of_the_target(kind):
    """Also if padding does not end the rows."""
    translates = kind is models.EncoderDecoder
    captioner = models.TransformerCaptionerConfig(image=GRID, vocab_size=5, num_layers=1, **SIZE)
    net = pure(kind, models.EncoderDecoderConfig(5, 5, **SIZE, **LAYERS) if translates else captioner)
    tokens = jnp.zeros((2, 4), jnp.int32)
    source = tokens if translates else jnp.zeros((2, 6, 6, 3))

    def mask(params, valid):
        return (
            net.bind(params)
            .captured(source, functional.Tokens(tokens, valid), names=["decoder.self"])["decoder.self"]
            .mask
        )

    leaves = jax.tree.leaves(jax.eval_shape(mask, net.shapes, jnp.ones((2, 4), bool)))
    assert [leaf.shape[1:] for leaf in leaves] == [(2, 4)]  # of each layer
