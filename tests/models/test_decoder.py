"""The decoding state: hypotheses at different positions, reordering, and sentences that leave the batch."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models
from jaxformer.functional.cache import MOST_LANES
from tests.models.small import (
    CONFIGS,
    SOURCE,
    SOURCE_VALID,
    SOURCES,
    TARGET,
    TARGETS,
    B,
    Small,
    T,
    V,
    language_model,
    model,
)
from tests.modules.small import int32, quick

K = 3


class Stepper:
    """A small model of either kind, which starts, steps and scores whole sequences ``[B, K, T]``."""

    def __init__(self, kind, name):
        self.kind, self.small = kind, (model if kind is models.EncoderDecoder else language_model)(name)

    def start(self, beam_size=K, **options):
        if self.kind is models.LanguageModel:
            return self.call("start", batch_size=B, beam_size=beam_size, length=T, **options)
        memory = self.call("encode", SOURCES)
        return self.call("start", memory, beam_size=beam_size, length=T, **options)

    def steps(self, tokens, context, state):
        """The logits of each of `tokens` ``[B, K, T]`` in turn, and the state after them."""
        rows = []
        for t in range(tokens.shape[2]):
            row, state = self.call("step", int32(tokens[:, :, t]), state, context)
            rows.append(np.asarray(row))
        return np.stack(rows, 2), state

    def whole(self, tokens):
        """Teacher-forced logits ``[B, K, T, V]``."""
        flat = int32(np.reshape(tokens, (-1, tokens.shape[2])))
        if self.kind is models.LanguageModel:
            logits = self.small.apply(self.small.params, flat)
        else:
            rows = np.repeat(np.arange(B), tokens.shape[1])
            source, valid = (np.asarray(x)[rows] for x in (SOURCE, SOURCE_VALID))
            logits = self.small.apply(self.small.params, functional.Tokens(source, valid), flat)
        return np.asarray(logits).reshape(*tokens.shape, V)

    def call(self, method, *args, **kwargs):
        return self.small.call(getattr(self.kind, method), self.small.params, *args, **kwargs)


@pytest.fixture(
    params=[
        (models.EncoderDecoder, "post"),
        pytest.param((models.EncoderDecoder, "pre"), marks=pytest.mark.full),
        (models.LanguageModel, "tied"),
        pytest.param((models.LanguageModel, "untied"), marks=pytest.mark.full),
    ],
    ids=lambda param: f"{param[0].__name__} {param[1]}",
)
def stepper(request):
    return Stepper(*request.param)


@pytest.fixture
def tokens():
    return np.random.default_rng(0).integers(0, V, (B, K, T))


@pytest.mark.full
def test_hypotheses_at_different_positions(stepper, tokens):
    """Prefixes of 0 to 3 tokens in one batch: each next row equals that of the full pass."""
    context, state = stepper.start()
    lengths = np.array([[0, 1, 3], [2, 3, 0]])
    prefix = np.where(np.arange(3) < lengths[..., None], tokens[:, :, :3], V - 1)  # filled up with another word
    _, state = stepper.steps(prefix, context, state)
    np.testing.assert_array_equal(state.position, np.full((B, K), 3))
    state = state._replace(position=int32(lengths))
    columns = lengths[..., None] + np.arange(2)
    got, state = stepper.steps(np.take_along_axis(tokens, columns, 2), context, state)
    expected = np.take_along_axis(stepper.whole(tokens), columns[..., None], 2)
    np.testing.assert_allclose(got, expected, atol=3e-5)
    np.testing.assert_array_equal(state.position, lengths + 2)


@pytest.mark.full
def test_only_hypotheses_beyond_the_end_are_nan(stepper, tokens):
    context, state = stepper.start()
    state = state._replace(position=int32([[0, T, 1], [T - 1, 0, T + 2]]))
    got, _ = stepper.steps(tokens[:, :, :1], context, state)
    beyond = np.array([[False, True, False], [False, False, True]])
    np.testing.assert_array_equal(np.isnan(got).any((2, 3)), beyond)
    np.testing.assert_array_equal(np.isnan(got).all((2, 3)), beyond)


def test_steps_beyond_the_capacity_are_nan(stepper, tokens):
    """And not those of another sentence, as if the last position of a cache were written twice.

    Nothing is stored there.
    """
    context, state = stepper.start()
    logits, state = stepper.steps(tokens, context, state)
    beyond, after = stepper.steps(tokens[:, :, :1], context, state)
    assert np.isfinite(logits).all()
    assert np.isnan(beyond).all()
    chex.assert_trees_all_equal(state.caches, after.caches)


def test_reorder_equals_running_again(stepper, tokens):
    """Hypotheses that continue others, at different positions, equal ones that were decoded from the beginning."""
    context, state = stepper.start()
    lengths, parents = np.array([[3, 2, 1], [1, 3, 2]]), np.array([[2, 0, 0], [1, 1, 2]])
    _, state = stepper.steps(tokens[:, :, :3], context, state)
    reorder = quick(lambda state, parents: state.reorder(parents))
    state = reorder(state._replace(position=int32(lengths)), parents.astype(np.int32))
    np.testing.assert_array_equal(state.position, np.take_along_axis(lengths, parents, 1))
    grown, counts = np.take_along_axis(tokens, parents[..., None], 1), np.take_along_axis(lengths, parents, 1)
    grown[..., -1] = tokens[..., -1]  # the next word is each one's own
    np.put_along_axis(grown, counts[..., None], tokens[..., -1:], 2)
    got, _ = stepper.steps(np.take_along_axis(grown, counts[..., None], 2), context, state)
    expected = np.take_along_axis(stepper.whole(grown), counts[..., None, None], 2)
    np.testing.assert_allclose(got, expected, atol=3e-5)


@pytest.mark.full
def test_many_hypotheses_have_separate_caches(stepper):
    """Reordering then moves keys and values; each next row equals that of the full pass."""
    many = MOST_LANES + 1
    tokens = np.random.default_rng(1).integers(0, V, (B, many, T))
    parents = np.random.default_rng(2).integers(0, many, (B, many))
    context, state = stepper.start(many)
    assert state.lanes is None
    _, state = stepper.steps(tokens[:, :, :3], context, state)
    grown = np.concatenate([np.take_along_axis(tokens, parents[..., None], 1)[:, :, :3], tokens[:, :, 3:]], 2)
    got, _ = stepper.steps(grown[:, :, 3:], context, state.reorder(int32(parents)).take(jnp.arange(B)))
    np.testing.assert_allclose(got, stepper.whole(grown)[:, :, 3:], atol=3e-5)


@pytest.mark.parametrize("sentences", [pytest.param([1], marks=pytest.mark.full), [1, 0, 1]])
def test_take_equals_running_again(stepper, tokens, sentences):
    """Some sentences, in any order, continue as if the others had never been in the batch."""
    context, state = stepper.start()
    _, state = stepper.steps(tokens[:, :, :3], context, state)
    take = quick(lambda both, rows: [each.take(rows) for each in both])
    state, context = take((state, context), np.array(sentences, np.int32))
    assert state.position.shape == (len(sentences), K)
    rows = len(sentences)
    leading = {leaf.shape[0] for leaf in jax.tree.leaves((state.lanes, context.memory, context.valid))}
    assert leading == {rows}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state.caches)} == {rows * (1 if state.lanes is not None else K)}
    got, _ = stepper.steps(tokens[sentences][:, :, 3:], context, state)
    expected = stepper.whole(tokens)[sentences][:, :, 3:]
    np.testing.assert_allclose(got, expected, atol=3e-5)


@pytest.mark.full
def test_step_weights_replace_the_parameters(stepper, tokens):
    """They give the same logits and, if they are changed, others."""
    weights = jax.device_get(stepper.call("step_weights"))
    expected, _ = stepper.steps(tokens[:, :, :2], *stepper.start())
    got, _ = stepper.steps(tokens[:, :, :2], *stepper.start(weights=weights))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    twice = weights._replace(output=2 * weights.output)
    got, _ = stepper.steps(tokens[:, :, :2], *stepper.start(weights=twice))
    np.testing.assert_allclose(got, 2 * expected, rtol=1e-5, atol=1e-6)
    without = weights._replace(layers=tuple(jax.tree.map(np.zeros_like, layer) for layer in weights.layers))
    got, _ = stepper.steps(tokens[:, :, :2], *stepper.start(weights=without))
    assert not np.allclose(got, expected, atol=1e-2)


@pytest.mark.full
def test_only_some_labels_count(stepper):
    """For example those of a completion: earlier tokens are still read. By default, valid labels count."""
    labels, valid = int32(np.asarray(TARGET) % 7 + 1), TARGETS.valid
    where = np.asarray(valid) & (np.arange(T) > 1)[None]
    inputs = (SOURCE, TARGETS) if stepper.kind is models.EncoderDecoder else (TARGETS,)

    def both(params, where):
        bound = stepper.small.net.bind(params)
        logits = bound(*inputs)
        for counted in (where, None):
            yield bound.loss(*inputs, labels=labels, where=counted)
            yield functional.cross_entropy(logits, labels, where=valid if counted is None else counted)

    some, expected_some, every, expected = quick(lambda *args: tuple(both(*args)))(stepper.small.params, where)
    np.testing.assert_allclose(some, expected_some, rtol=1e-5)
    np.testing.assert_allclose(every, expected, rtol=1e-5)


@pytest.mark.full
def test_a_decoder_alone_reads_a_memory_of_another_width():
    """Its whole pass depends on the memory, and its cached steps give the same rows."""
    config = models.DecoderConfig(V, d_model=8, num_heads=2, d_ff=16, num_layers=1, dropout=0.0, memory_dim=5)
    small = Small(config, models.make_decoder)
    states = np.random.default_rng(0).normal(size=(B, 4, 5)).astype(np.float32)
    memory = models.Memory(jax.device_put(states), None)
    tokens = np.random.default_rng(1).integers(0, V, (B, T)).astype(np.int32)
    whole = np.asarray(small.apply(small.params, tokens, memory))
    other = np.asarray(small.apply(small.params, tokens, models.Memory(memory.states + 1, None)))
    assert np.abs(whole - other).max() > 1e-3
    context, state = small.call(models.Decoder.start, small.params, memory, batch_size=B, beam_size=1, length=T)
    for t in range(T):
        row, state = small.call(models.Decoder.step, small.params, tokens[:, t : t + 1], state, context)
        np.testing.assert_allclose(np.asarray(row)[:, 0], whole[:, t], atol=3e-5)


@pytest.mark.full
def test_steps_in_bfloat16(tokens):
    """The cache is bfloat16 then; rows agree to its precision."""
    stepper = Stepper(models.EncoderDecoder, "post")
    stepper.small = Small(dataclasses.replace(CONFIGS["post"], compute_dtype="bfloat16"))
    got, _ = stepper.steps(tokens, *stepper.start())
    expected = stepper.whole(tokens)
    assert np.abs(got - expected).max() < 0.03 * np.abs(expected).max()
