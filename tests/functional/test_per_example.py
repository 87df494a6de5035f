"""Losses and gradients of single examples add up to those of their batch, for any padding."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models, pure
from jaxformer.data.batch import Batch
from jaxformer.models import choices
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.modules.small import drawn, quick
from tests.selection import first

SHAPE = {"d_model": 8, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
CONFIGS = {
    "transformer": (models.EncoderDecoder, models.EncoderDecoderConfig(12, 12, num_heads=2, d_ff=16, **SHAPE)),
    "recurrent": (models.Seq2Seq, models.Seq2SeqConfig(12, 12, cell="gru", **SHAPE)),
}
SPECIAL = SpecialTokens(pad=0, bos=1, eos=2, unk=3)
PAIRS = [([5, 6, 7], [8, 9]), ([4], [10, 4, 5, 6]), ([11, 4], [7])]


def batch_of(pairs, rows=4, length=6):
    """A batch with at least one row of padding."""
    sources, targets = (([np.array(pair[side]) for pair in pairs]) for side in (0, 1))
    return jax.tree.map(jnp.asarray, Batch.from_tokens(sources, targets, (rows, length, length), SPECIAL))


class Network:
    """A model with its loss; programs are compiled once."""

    def __init__(self, name):
        self.net = pure(*CONFIGS[name])
        self.params = drawn(self.net.shapes)
        self.whole = quick(jax.value_and_grad(self.loss, has_aux=True))
        self.losses = quick(functools.partial(functional.per_example_losses, self.loss))
        self.gradients = quick(functools.partial(functional.per_example_gradients, self.loss))

    def loss(self, params, batch):
        model, loss = self.net.bind(params), functional.CrossEntropy(smoothing=0.1)
        return model.loss(batch.source, batch.target, labels=batch.labels, loss=loss)


@pytest.fixture(scope="module", params=first(CONFIGS, "transformer"))
def network(request):
    return Network(request.param)


@pytest.mark.full
def test_losses_sum_to_that_of_the_batch(network):
    batch = batch_of(PAIRS)
    sums, counts = network.losses(network.params, batch)
    (total, count), _ = network.whole(network.params, batch)
    assert counts.tolist() == [3, 5, 2, 0]
    assert sums[3] == 0
    np.testing.assert_allclose(sums.sum(), total, rtol=1e-5)
    assert counts.sum() == count
    for row, pair in enumerate(PAIRS):  # each is its own loss, not a share of the sum
        (alone, _), _ = network.whole(network.params, batch_of([pair]))
        np.testing.assert_allclose(sums[row], alone, rtol=1e-5)


@pytest.mark.full
def test_gradients_average_to_that_of_the_batch(network):
    batch = batch_of(PAIRS)
    gradients, (sums, counts) = network.gradients(network.params, batch)
    (_, count), whole = network.whole(network.params, batch)
    mean = jax.tree.map(lambda leaf: leaf.sum(0) / counts.sum(), gradients)
    expected = jax.tree.map(lambda leaf: leaf / count, whole)
    chex.assert_trees_all_close(mean, expected, rtol=1e-4, atol=1e-5)
    _, alone = network.whole(network.params, batch_of(PAIRS[1:2]))
    second = jax.tree.map(lambda leaf: leaf[1], gradients)
    chex.assert_trees_all_close(second, alone, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(sums, network.losses(network.params, batch)[0], rtol=1e-5)


@pytest.mark.full
def test_padding_changes_nothing(network):
    """Other tokens at padding change no bit; another length and other rows change nothing but rounding."""
    batch = batch_of(PAIRS)
    source, target = batch.source, batch.target
    other = Batch(
        dataclasses.replace(source, ids=jnp.where(source.valid, source.ids, 9)),
        dataclasses.replace(target, ids=jnp.where(target.valid, target.ids, 7)),
        jnp.where(target.valid, batch.labels, 5),
    )
    first = network.gradients(network.params, batch)
    chex.assert_trees_all_equal(first, network.gradients(network.params, other))
    assert not any(leaf[3].any() for leaf in jax.tree.leaves(first))  # a row of padding
    longer = network.gradients(network.params, batch_of(PAIRS[::-1], rows=5, length=9))
    backward = jax.tree.map(lambda leaf: leaf[:3][::-1], longer)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, jax.tree.map(lambda leaf: leaf[:3], first), backward)


@pytest.mark.parametrize("batch_size", first([1, 2], 2))
def test_examples_a_few_at_a_time(batch_size):
    """Also where three do not divide into pairs; one at a time, experts without a capacity work, too."""
    config = models.LanguageModelConfig(12, num_layers=1, d_model=8, num_heads=2, d_ff=8, dropout=0.0)
    if batch_size == 1:
        config = dataclasses.replace(config, feed_forward=choices.Experts())
    net = pure(models.LanguageModel, config)
    params, tokens = drawn(net.shapes), jnp.asarray(np.random.default_rng(0).integers(1, 12, (3, 5)))
    loss = lambda params, tokens: net.bind(params).loss(tokens[:, :-1], labels=tokens[:, 1:])
    gradients, (sums, counts) = quick(
        lambda *given: functional.per_example_gradients(loss, *given, batch_size=batch_size)
    )(params, tokens)
    one = quick(jax.value_and_grad(loss, has_aux=True))
    for row in range(3):
        (total, count), gradient = one(params, tokens[row : row + 1])
        np.testing.assert_allclose(sums[row], total, rtol=1e-5)
        assert counts[row] == count
        got = jax.tree.map(lambda leaf, row=row: leaf[row], gradients)
        chex.assert_trees_all_close(got, gradient, rtol=1e-4, atol=1e-5)
    if batch_size == 1:
        with pytest.raises(NotImplementedError, match="give batch_size=1"):
            functional.per_example_losses(loss, params, tokens)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        functional.per_example_losses(loss, params, tokens, batch_size=0)
