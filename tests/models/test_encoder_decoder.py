"""Properties of the encoder-decoder, each for several arrangements, ties and position schemes."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, models, pure
from jaxformer.models import choices
from tests.models.small import (
    CONFIGS,
    SOURCE,
    SOURCE_VALID,
    SOURCES,
    TARGET,
    TARGET_VALID,
    TARGETS,
    B,
    S,
    Small,
    T,
    V,
    different,
    entry,
    model,
    replaced,
)
from tests.modules.small import quick
from tests.selection import first

BOTH = pytest.mark.parametrize("name", first(["post", "pre"], "post"))
MOST = pytest.mark.parametrize("name", first(CONFIGS, "post", "pre"))
"""These two have both arrangements and kinds of positions, one table and three."""
SLOW = pytest.mark.parametrize("name", first(CONFIGS, "post"))
"""Gradients of the whole: ten seconds to compile."""
SOURCE_TABLE, TARGET_TABLE = "encoder.embeddings.tokens.table", "decoder.embeddings.tokens.table"
OUTPUT = "decoder.output.kernel"


@SLOW
def test_causality_by_gradients(name):
    """Logits at t have slope exactly 0 on later target tokens, not 0 on itself and earlier ones and on the source.

    Tokens are told apart by their rows of the embedding; the logit is of a word that occurs nowhere.
    """
    small, unused = Small(shallow(CONFIGS[name])), V - 2
    names = [name for name in (TARGET_TABLE, SOURCE_TABLE) if entry(small.params, name) is not None]

    def logit(tables):
        params = replaced(small.params, tables)
        return small.net.apply(params, SOURCE[:1], TARGET[:1])[0, :, unused]

    jacobians = quick(jax.jacrev(logit))({name: entry(small.params, name) for name in names})
    moves = np.abs(np.asarray(jacobians[names[0]])).sum(-1)[:, np.asarray(TARGET[0])]  # [T, T]
    np.testing.assert_array_equal(moves > 0, np.tri(T, dtype=bool))
    from_source = np.abs(np.asarray(jacobians[names[-1]])).sum(-1)[:, np.asarray(SOURCE[0])]  # [T, S]
    assert (from_source > 0).all()


@pytest.mark.full
@MOST
def test_the_contents_of_padding_do_not_matter(name):
    """With other ids in padding, every real row is the same, bit for bit; without any, it is nearly so."""
    small = model(name)
    other_source = functional.Tokens(np.where(SOURCE_VALID, SOURCE, 7), SOURCE_VALID)
    other_target = functional.Tokens(np.where(TARGET_VALID, TARGET, 11), TARGET_VALID)
    plain, other = small.logits(SOURCES, TARGETS), small.logits(other_source, other_target)
    np.testing.assert_array_equal(different(plain, other) & np.asarray(TARGET_VALID), False)
    assert different(plain, small.logits(other_source.ids, TARGETS)).any()
    alone = small.logits(np.asarray(SOURCE)[1:, :4], np.asarray(TARGET)[1:, :4])
    np.testing.assert_allclose(np.asarray(alone)[0], np.asarray(plain)[1, :4], atol=2e-5)


@MOST
def test_examples_are_independent(name):
    """Changing one example of a batch changes no bit of another."""
    small = model(name)
    plain = np.asarray(small.logits(SOURCES, TARGETS))
    source, target, valid = map(np.array, (SOURCE, TARGET, SOURCE_VALID))
    source[0], target[0], valid[0, 2:] = 5, 3, False
    other = np.asarray(small.logits(functional.Tokens(source, valid), functional.Tokens(target, TARGET_VALID)))
    np.testing.assert_array_equal(plain[1], other[1])
    assert different(plain[0], other[0]).all()


def shallow(config, **changes):
    """The same with one layer on each side: gradients and dropout of two take twice as long to compile."""
    return dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=1, **changes)


@pytest.mark.full
def test_an_empty_source_is_finite():
    """A row that only fills up the batch has no real word: its logits and all gradients are finite."""
    small = Small(shallow(CONFIGS["post"]))
    source = functional.Tokens(SOURCE, jax.device_put(np.asarray(SOURCE_VALID) & [[True], [False]]))

    def loss(params):
        return functional.cross_entropy(small.net.apply(params, source, TARGET), TARGET)[0]

    found = quick(jax.value_and_grad(loss))(small.params)
    chex.assert_tree_all_finite(found)


@BOTH
def test_dropout_is_a_function_of_the_key(name):
    """Without a key, the program is that of a model without dropout."""
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "feed_forward": choices.Plain(dropout=0.1)}
    noisy = Small(shallow(CONFIGS[name], **rates))
    one, same, other = (noisy.logits(key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert different(one, other).all()
    programs = [each.apply.lower(each.params, SOURCE, TARGET) for each in (noisy, Small(shallow(CONFIGS[name])))]
    assert programs[0].as_text() == programs[1].as_text()


@pytest.mark.full
def test_tied_weights_share_one_array():
    """One leaf, used for source, target and output: its gradient is the sum over the three uses."""
    small, separate = model("post"), Small(dataclasses.replace(CONFIGS["post"], tie_embeddings="none"))
    assert {name for name in (SOURCE_TABLE, TARGET_TABLE, OUTPUT) if entry(small.params, name) is not None} == {
        TARGET_TABLE
    }
    shared = entry(small.params, TARGET_TABLE)
    split = replaced(small.params, {OUTPUT: shared.T, SOURCE_TABLE: shared})
    np.testing.assert_allclose(separate.logits(params=split), small.logits(), atol=1e-5)
    slope = lambda net, params: quick(jax.grad(lambda p: jnp.sum(net.apply(p, SOURCE, TARGET) ** 2)))(params)
    one, many = slope(small.net, small.params), slope(separate.net, split)
    total = sum(entry(many, name) for name in (SOURCE_TABLE, TARGET_TABLE)) + entry(many, OUTPUT).T
    np.testing.assert_allclose(entry(one, TARGET_TABLE), total, rtol=1e-3, atol=1e-3)


def test_two_and_no_tied_weights():
    """Target and output share in one, nothing in the other."""
    small = model("biased")
    present = lambda params: [entry(params, name) is not None for name in (SOURCE_TABLE, TARGET_TABLE, OUTPUT)]
    assert present(small.params) == [True, True, False]
    assert present(model("pre").params) == [True, True, True]


@pytest.mark.full
def test_steps_show_their_attention_to_the_source():
    """The mean over the heads of the last layer's weights in the whole pass; logits and state are those of a step."""
    small = model("post")

    @quick
    def run(params):
        bound = small.net.bind(params)
        context, state = bound.start(bound.encode(SOURCES), beam_size=1, length=T)
        rows = []
        for t in range(2):
            logits, _ = bound.step(TARGET[:, None, t], state, context)
            attending, weights, state = bound.attending_step(TARGET[:, None, t], state, context)
            rows.append((logits, attending, weights[:, 0]))
        captured = bound.captured(SOURCES, TARGET, names=("decoder.cross",))["decoder.cross"]
        layer = captured.layer(small.config.num_decoder_layers - 1)
        return rows, layer.weights(mask=masks.padding(SOURCE_VALID)).mean(1)

    rows, expected = run(small.params)
    for t, (logits, attending, weights) in enumerate(rows):
        np.testing.assert_allclose(attending, logits, atol=1e-6)
        np.testing.assert_allclose(weights, expected[:, t], atol=1e-5)


def test_captured_attention():
    """Queries and keys of every layer; as weights they are causal where they must be and skip the padding."""
    small = model("pre")
    names = ("encoder.self", "decoder.self", "decoder.cross")
    found = small.call(models.EncoderDecoder.captured, small.params, SOURCES, TARGET, names=names)
    shapes = {name: (x.query.shape, x.key.shape) for name, x in found.items()}
    assert shapes == {
        "encoder.self": ((2, B, S, 2, 4), (2, B, S, 2, 4)),
        "decoder.self": ((2, B, T, 2, 4), (2, B, T, 2, 4)),
        "decoder.cross": ((2, B, T, 2, 4), (2, B, S, 2, 4)),
    }
    weights = quick(lambda found: found.layer(1).weights(mask=masks.padding(SOURCE_VALID)))(found["decoder.cross"])
    assert weights.shape == (B, 2, T, S)
    np.testing.assert_allclose(np.asarray(weights).sum(-1), 1, rtol=1e-5)
    assert not np.asarray(weights)[1, :, :, 4:].any()
    with pytest.raises(ValueError, match=r"unknown attention names \['decoder.slef'\]; there are \['decoder.cross'"):
        small.call(models.EncoderDecoder.captured, small.params, SOURCE, TARGET, names=("decoder.slef",))


def test_attention_function_reaches_every_layer():
    """A model built with another attention function uses it everywhere."""
    seen = []

    def spy(query, key, value, **options):
        seen.append((query.shape[1], key.shape[1]))
        return functional.attention(query, key, value, **options)

    net = pure(models.EncoderDecoder, CONFIGS["post"], attention=spy)
    shapes = net.shapes
    seen.clear()  # of the rows that are tried when the model is made
    jax.eval_shape(net.apply, shapes, SOURCE, TARGET)
    assert sorted(set(seen)) == [(T, T), (T, S), (S, S)]


@pytest.mark.parametrize("shapes", first([((1, 0), (1, 3)), ((1, 3), (1, 0)), ((0, 3), (0, 4))], ((1, 3), (1, 0))))
def test_empty_sources_targets_and_batches(shapes):
    """All have logits, and a loss over their labels."""
    small, (source, target) = model("post"), (np.zeros(shape, np.int32) for shape in shapes)
    assert small.logits(source, target).shape == (*shapes[1], V)
    total, count = small.call(models.EncoderDecoder.loss, small.params, source, target, labels=target)
    assert np.isfinite(total)
    assert float(count) == np.prod(shapes[1])
