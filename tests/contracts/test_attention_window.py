"""A window of attention: each decoder token attends to itself and the tokens just before it, in every code path."""

import dataclasses
import functools
import inspect

import chex
import jax
import numpy as np
import pytest

from jaxformer import functional, masks, models, pure, sharding
from jaxformer.config import kind_of
from jaxformer.functional.cache import MOST_LANES
from jaxformer.models import choices
from tests.models.small import CONFIGS, LANGUAGE_CONFIGS, SOURCES, TARGET, B, Small, V
from tests.modules.small import drawn, int32, quick
from tests.selection import first

W = 3
TOKENS = int32([[1, 2, 9, 10, 3, 8], [1, 10, 2, 9, 5, 4]])
LABELS = int32(np.roll(TOKENS, -1, 1))
T = TOKENS.shape[1]
VALID = jax.device_put(np.array([[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1]], bool))
AT_THE_END = jax.device_put(np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], bool))
SEGMENTS, AGAIN, MOVED = [1, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1], [0, 1, 3, 4, 2, 9]


def near(positions=range(T)):
    """The pairs that a window allows, computed without `masks`."""
    return np.array([[0 <= t - s < W for s in positions] for t in positions])


HAND = {
    "plain": ({}, near()),
    "padding": ({"valid": VALID}, near()[None] & np.asarray(VALID)[:, None]),
    "packed": (
        {"positions": int32([AGAIN] * B), "segments": int32([SEGMENTS] * B)},
        near() & np.equal.outer(SEGMENTS, SEGMENTS),
    ),
    "positions": ({"positions": int32([MOVED] * B)}, near() & near(MOVED)),
}
"""The arguments of a call, and the pairs that its mask allows."""


def config_of(window=W, **options):
    return dataclasses.replace(
        LANGUAGE_CONFIGS["tied"], attention_window=window, **{"positions": choices.Rotary()} | options
    )


def loss_of(net, **given):
    return lambda params: net.bind(params).loss(functional.Tokens(TOKENS, **given), labels=LABELS)


def assert_near(got, expected):
    chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=2e-5)


def results(model, where=None, **given):
    """The loss; count and logits."""
    tokens = functional.Tokens(TOKENS, **given)
    loss, count = model.loss(tokens, labels=LABELS, where=where)
    return loss, (count, model(tokens))


def weights(model, **given):
    """Captured weights."""
    tokens = functional.Tokens(TOKENS, **given)
    return model.captured(tokens, names=("decoder.self",))["decoder.self"].layer(1).weights()


@functools.cache
def by_hand(positions):
    """`results` and their gradients with a mask that is an argument: one program for all cases."""

    def run(params, allowed, places, where):
        def attention(query, key, value, *, mask, **options):
            del mask
            return functional.attention(query, key, value, mask=masks.dense(allowed), **options)

        net = pure(models.LanguageModel, config_of(None, positions=positions), attention=attention)
        return results(net.bind(params), where, positions=places)

    return quick(jax.value_and_grad(run, has_aux=True))


@pytest.mark.parametrize("positions", first([choices.Rotary(), choices.T5()], choices.Rotary()), ids=kind_of)
@pytest.mark.parametrize("name", first(HAND, "plain"))
def test_a_window_equals_its_mask(name, positions):
    """Logits, loss, gradients and captured weights agree."""
    given, allowed = HAND[name]
    allowed = np.broadcast_to(allowed, (B, T, T))
    net = pure(models.LanguageModel, config_of(positions=positions))
    params = drawn(net.shapes, 0.3)
    places = given.get("positions", int32([range(T)] * B))
    where = given.get("valid", np.ones((B, T), bool))
    program = jax.value_and_grad(lambda params: results(net.bind(params), **given), has_aux=True)
    got, found = quick(lambda params: (program(params), weights(net.bind(params), **given)))(params)
    assert_near(got, by_hand(positions)(params, allowed, places, where))
    np.testing.assert_array_equal(found > 0, np.broadcast_to(allowed[:, None], found.shape))


@pytest.mark.full
@pytest.mark.parametrize("name", first(HAND, "positions"))
def test_a_window_of_all_tokens_changes_nothing(name):
    """A window of one less hides a token from the last one, unless they are of different texts."""
    tokens, last = functional.Tokens(TOKENS, **HAND[name][0]), max(MOVED) if name == "positions" else T - 1
    params = drawn(pure(models.LanguageModel, config_of(None, num_layers=1)).shapes, 0.3)
    logits = lambda window: pure(models.LanguageModel, config_of(window, num_layers=1)).apply(params, tokens)
    expected = np.asarray(quick(logits, static_argnums=0)(None))
    for window in (last, last + 1, last + 5):
        changed = np.abs(quick(logits, static_argnums=0)(window) - expected).max((0, 2)) > 1e-6
        hides = window == last and name != "packed"
        np.testing.assert_array_equal(changed, (np.arange(T) == T - 1) & hides)


def masks_of(call, config, kind=models.LanguageModel):
    """The masks that the attention function receives."""
    given = []

    def spy(query, key, value, **options):
        given.append(options["mask"])
        return functional.attention(query, key, value, **options)

    net = pure(kind, config, attention=spy)
    jax.eval_shape(lambda params: call(net.bind(params)), net.shapes)
    return given


@pytest.mark.full
def test_kernels_receive_the_window():
    """They can skip what is outside of it: a window alone if padding ends the rows, and by index in packed rows."""
    ended = functional.Tokens(TOKENS, AT_THE_END, right_padded=True)
    promised = lambda model: model.loss(ended, labels=LABELS)
    assert set(masks_of(promised, config_of())) == {masks.window(W - 1)}
    packed = masks_of(lambda model: model(functional.Tokens(TOKENS, **HAND["packed"][0])), config_of())
    assert {mask.key_range(4, 5) for mask in packed} == {(2, 5)}
    net = pure(models.LanguageModel, config_of())
    losses = [quick(loss_of(net, valid=AT_THE_END, right_padded=told))(drawn(net.shapes)) for told in (False, True)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_only_the_decoder_of_a_translator_has_a_window():
    config = dataclasses.replace(CONFIGS["post"], attention_window=W)
    given = masks_of(lambda model: model(SOURCES, TARGET), config, models.EncoderDecoder)
    bands = [mask for mask in given if isinstance(mask, masks.Band)]
    assert set(bands) == {masks.window(W - 1)}
    assert all(isinstance(mask, masks.Padding) for mask in given if mask not in bands)
    assert len(given) == 3 * len(bands)  # as many attentions in the encoder, and across


@pytest.mark.full
@pytest.mark.parametrize("beam_size", first([1, MOST_LANES + 1], MOST_LANES + 1))
def test_steps_with_a_cache_for_each_hypothesis(beam_size):
    """Hypotheses have different positions; `tests/contracts/test_cached_step.py` has shared caches."""
    small = Small(config_of(), models.LanguageModel)
    tokens = np.random.default_rng(0).integers(0, V, (B, beam_size, T))
    lengths = np.random.default_rng(1).integers(1, 4, (B, beam_size))
    whole = np.asarray(small.apply(small.params, int32(tokens.reshape(-1, T)))).reshape(B, beam_size, T, V)
    call = lambda name, *args, **sizes: small.call(getattr(models.LanguageModel, name), small.params, *args, **sizes)
    context, state = call("start", batch_size=B, beam_size=beam_size, length=T)
    assert state.lanes is None
    _, state = call("prefill", int32(tokens[:, :, :3]), state, context, lengths=int32(lengths))
    for step in range(3):
        places = (lengths + step)[..., None]
        row, state = call("step", int32(np.take_along_axis(tokens, places, 2)[..., 0]), state, context)
        np.testing.assert_allclose(row, np.take_along_axis(whole, places[..., None], 2)[:, :, 0], atol=3e-5)


@pytest.mark.full
def test_under_vmap():
    """Stacked ensembles, and gradients of each example."""
    net = pure(models.LanguageModel, config_of())
    both = [drawn(net.shapes, deviation) for deviation in (0.3, 0.4)]
    stacked = lambda trees: jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
    slopes = jax.grad(loss_of(net, **HAND["packed"][0]), has_aux=True)
    assert_near(quick(jax.vmap(slopes))(stacked(both)), stacked(list(map(quick(slopes), both))))


@pytest.mark.full
@pytest.mark.parametrize("name", first(HAND, "plain"))
def test_on_a_mesh(name):
    """Sharded over examples and in a ring; cached steps too."""
    attention = sharding.sharded_attention(sharding.mesh("data=2,context=2", jax.devices()[:4]))
    alone, split = (pure(models.LanguageModel, config_of(), **parts) for parts in ({}, {"attention": attention}))
    params, tokens = drawn(alone.shapes, 0.3), functional.Tokens(TOKENS, **HAND[name][0])
    expected = quick(alone.apply)(params, tokens)
    np.testing.assert_allclose(quick(split.apply)(params, tokens), expected, atol=2e-5)

    def steps(params):
        model = split.bind(params)
        context, state = model.start(batch_size=B, beam_size=1, length=T)
        _, state = model.prefill(TOKENS[:, None, : T - 1], state, context)
        return model.step(TOKENS[:, T - 1 :], state, context)[0][:, 0]

    if name == "plain":
        np.testing.assert_allclose(quick(steps)(params), np.asarray(expected)[:, -1], atol=2e-5)


def test_refusals():
    with pytest.raises(ValueError, match=r"^attention_window needs a causal model, got 3"):
        models.LanguageModelConfig(attention_window=W, causal=False)
    decoder = Small(config_of(), models.make_decoder).net.bind(drawn(pure(models.make_decoder, config_of()).shapes))
    for options in ({"window": 0}, {"window": W, "causal": False}):
        with pytest.raises(ValueError, match="a window must be at least 1 and needs a causal mask"):
            inspect.unwrap(models.Decoder.__init__)(decoder, decoder.embeddings, decoder.stack, **options)
