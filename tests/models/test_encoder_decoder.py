"""Properties of the encoder-decoder, each for several arrangements, ties and position schemes."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer import decoding, functional, masks, models, pure
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
from tests.modules.small import int32, quick
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
    """With other ids in padding, every real row is the same, bit for bit."""
    small = model(name)
    other_source = functional.Tokens(np.where(SOURCE_VALID, SOURCE, 7), SOURCE_VALID)
    other_target = functional.Tokens(np.where(TARGET_VALID, TARGET, 11), TARGET_VALID)
    plain, other = small.logits(SOURCES, TARGETS), small.logits(other_source, other_target)
    np.testing.assert_array_equal(different(plain, other) & np.asarray(TARGET_VALID), False)
    assert different(plain, small.logits(other_source.ids, TARGETS)).any()


@pytest.mark.full
@BOTH
def test_the_amount_of_padding_does_not_matter(name):
    """More padding on both sides gives the same rows."""
    small = model(name)
    plain = np.asarray(small.logits(SOURCES, TARGETS))
    grow = lambda tokens: jax.tree.map(lambda x: np.pad(x, ((0, 0), (0, 1))), tokens)
    wide = small.logits(grow(SOURCES), grow(TARGETS))
    np.testing.assert_allclose(np.asarray(wide)[:, : T - 1], plain[:, : T - 1], atol=2e-5)


@pytest.mark.full
@BOTH
def test_a_sentence_alone_equals_the_padded_one(name):
    small = model(name)
    plain = np.asarray(small.logits(SOURCES, TARGETS))
    alone = small.logits(np.asarray(SOURCE)[1:, :4], np.asarray(TARGET)[1:, :4])
    np.testing.assert_allclose(np.asarray(alone)[0], plain[1, :4], atol=2e-5)


@pytest.mark.parametrize("name", ["pre", "biased"])
@pytest.mark.full
def test_permutation_equivariance_without_positions(name):
    """With an empty position table the encoder cannot tell order, and neither can the decoder the source's."""
    small = model(name)
    positions = "encoder.embeddings.positions"
    blind = replaced(small.params, {positions: jax.tree.map(jnp.zeros_like, entry(small.params, positions))})
    order = np.array([3, 0, 5, 1, 4, 2])
    encode = functools.partial(small.call, models.EncoderDecoder.encode)
    plain, moved = encode(blind, SOURCE).states, encode(blind, SOURCE[:, order]).states
    np.testing.assert_allclose(moved, plain[:, order], atol=1e-5)
    np.testing.assert_allclose(small.logits(SOURCE[:, order], params=blind), small.logits(params=blind), atol=2e-5)
    seeing = [encode(small.params, x).states for x in (SOURCE, SOURCE[:, order])]
    assert not np.allclose(seeing[1], seeing[0][:, order], atol=1e-2)


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


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward"])
@pytest.mark.full
def test_each_dropout_rate_is_used(rate):
    """Each of the three rates alone changes the result."""
    value = choices.Plain(dropout=0.4) if rate == "feed_forward" else 0.4
    noisy = Small(dataclasses.replace(CONFIGS["post"], **({"dropout": 0.0} | {rate: value})))
    assert different(noisy.logits(key=jax.random.key(0)), model("post").logits()).all()


@pytest.mark.full
@BOTH
def test_bfloat16_is_close(name):
    """Compute in bfloat16, parameters and logits in float32: within a few roundings of float32."""
    exact, small = model(name), Small(dataclasses.replace(CONFIGS[name], compute_dtype="bfloat16"))
    got = small.logits(SOURCES, TARGETS)
    assert got.dtype == jnp.float32
    assert {x.dtype for x in jax.tree.leaves(small.net.shapes)} == {jnp.dtype("float32")}
    expected = np.asarray(exact.logits(SOURCES, TARGETS))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
    got = np.asarray(got)
    assert (got != got.astype(jnp.bfloat16).astype(np.float32)).any()  # not rounded on the way out
    loss = lambda params: jnp.sum(small.net.apply(params, SOURCE, TARGET) ** 2)
    assert jax.eval_shape(jax.grad(loss), small.net.shapes) == small.net.shapes


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


def decode(small, tokens, source=SOURCES):
    """Folds the cached step over `tokens` ``[B, K, T]`` inside one jitted while_loop."""
    _, width, length = tokens.shape

    @quick
    def run(params, tokens):
        bound = small.net.bind(params)
        memory = bound.encode(source)
        context, state = bound.start(memory, beam_size=width, length=length)
        assert state.position.shape == (B, width)
        assert all(leaf.shape[0] == B for leaf in jax.tree.leaves(context.memory))  # never tiled by hypotheses
        logits = jnp.zeros((B, width, length, small.config.target_vocab_size))

        def body(carry):
            t, state, logits = carry
            row, state = bound.step(tokens[:, :, t], state, context)
            return t + 1, state, logits.at[:, :, t].set(row)

        return jax.lax.while_loop(lambda carry: carry[0] < length, body, (0, state, logits))[2]

    return run(small.params, tokens)


@SLOW
def test_steps_equal_the_teacher_forced_rows(name):
    """Three hypotheses with words of their own, over a padded source: the cached step is the forward pass."""
    small, width = model(name), 3
    tokens = np.random.default_rng(0).integers(0, V, (B, width, T)).astype(np.int32)
    stepped = np.asarray(decode(small, tokens))
    for k in range(width):
        target = functional.Tokens(tokens[:, k], np.ones_like(TARGET_VALID))
        np.testing.assert_allclose(stepped[:, k], small.logits(SOURCES, target), atol=3e-5)


@pytest.mark.full
def test_steps_without_a_source_mask():
    small, every = model("post"), lambda ids: functional.Tokens(ids, np.ones(ids.shape, bool))
    expected = small.logits(every(SOURCE), every(TARGET))
    np.testing.assert_allclose(decode(small, TARGET[:, None], SOURCE)[:, 0], expected, atol=3e-5)


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


@pytest.mark.full
def test_steps_in_bfloat16():
    """The cache is bfloat16 then; rows agree to its precision."""
    small = Small(dataclasses.replace(CONFIGS["post"], compute_dtype="bfloat16"))
    expected = np.asarray(small.logits(SOURCES))
    got = decode(small, TARGET[:, None])[:, 0]
    assert np.abs(got - expected).max() < 0.03 * np.abs(expected).max()


def test_greedy_search_equals_repeated_forward_passes():
    """The loop with a cache equals recomputing every prefix."""
    small, length, valid = model("pre"), 5, np.ones_like(TARGET_VALID)

    def search(params):
        bound = small.net.bind(params)
        context, state = bound.start(bound.encode(SOURCES), beam_size=1, length=length)
        limits = decoding.Limits(max_length=length, bos=1, eos=2)
        return decoding.greedy(decoding.ContextStep(bound.step, context), state, limits)

    found = quick(search)(small.params)
    prefix = np.zeros((B, length + 1), np.int32)
    prefix[:, 0] = 1
    for t in range(length):
        row = np.array(small.logits(SOURCES, functional.Tokens(prefix[:, :length], valid)))[:, t]
        row[:, [0, 1]] = -np.inf  # search never chooses padding or begin
        prefix[:, t + 1] = 2 if t == length - 1 else row.argmax(-1)
    for sentence in range(B):
        count = int(np.asarray(found.lengths)[sentence, 0])
        assert np.asarray(found.tokens)[sentence, 0, :count].tolist() == prefix[sentence, 1 : count + 1].tolist()
        assert prefix[sentence, count] == 2


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


@pytest.mark.full
def test_the_same_logits_with_the_batch_over_eight_devices():
    """With dropout: its bits do not depend on the device."""
    source, target = (jnp.tile(x, (4, 1)) for x in (SOURCE, TARGET))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    noisy, key = Small(dataclasses.replace(CONFIGS["post"], dropout=0.3)), jax.random.key(0)
    plain = noisy.logits(source, target, key=key)
    spread = noisy.logits(jax.device_put(source, rows), jax.device_put(target, rows), key=key)
    assert len(spread.sharding.device_set) == 8
    np.testing.assert_allclose(spread, plain, atol=2e-5)


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


def test_sequences_longer_than_the_learned_positions_are_refused():
    small = model("pre")
    long = np.ones((1, 8), np.int32)
    message = "a sequence of length 8 has no learned position beyond 7"
    with pytest.raises(ValueError, match=message):
        small.logits(long, TARGET[:1])
    with pytest.raises(ValueError, match=message):
        small.logits(SOURCE[:1], long)
    memory = small.call(models.EncoderDecoder.encode, small.params, SOURCES)
    with pytest.raises(ValueError, match=message):
        small.call(models.EncoderDecoder.start, small.params, memory, beam_size=1, length=8)


@pytest.mark.full
@BOTH
def test_initial_logits_are_modest(name):
    """The loss starts near log V, so training starts well."""
    sizes = {"source_vocab_size": 300, "target_vocab_size": 300, "d_model": 64, "num_heads": 4, "d_ff": 128}
    net = pure(models.EncoderDecoder, shallow(CONFIGS[name], **sizes))
    logits = lambda key: net.apply(net.init(key), SOURCE, TARGET)
    labels = int32(np.roll(TARGET, -1, 1))
    total, count = quick(lambda key: functional.cross_entropy(logits(key), labels))(jax.random.key(0))
    assert abs(float(total / count) - np.log(300)) < 1.5  # a tied table starts by favoring the input token


@pytest.mark.full
@SLOW
def test_cross_entropy_equals_that_of_the_logits(name):
    """Value and every gradient, including padding and dropout; only the logits are never stored."""
    small = Small(dataclasses.replace(CONFIGS[name], dropout=0.2))
    labels, key = jnp.roll(TARGET, -1, 1), jax.random.key(3)
    inputs = SOURCES, functional.Tokens(TARGET, TARGET != 0)

    def whole(params):
        logits = small.net.apply(params, *inputs, key=key)
        return functional.cross_entropy(logits, labels, where=TARGET != 0, smoothing=0.1)

    def fused(params):
        return small.net.bind(params).loss(*inputs, labels=labels, loss=functional.CrossEntropy(0.1), key=key)

    found = [quick(jax.value_and_grad(loss, has_aux=True))(small.params) for loss in (whole, fused)]
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("shapes", first([((1, 0), (1, 3)), ((1, 3), (1, 0)), ((0, 3), (0, 4))], ((1, 3), (1, 0))))
def test_empty_sources_targets_and_batches(shapes):
    """All have logits, and a loss over their labels."""
    small, (source, target) = model("post"), (np.zeros(shape, np.int32) for shape in shapes)
    assert small.logits(source, target).shape == (*shapes[1], V)
    total, count = small.call(models.EncoderDecoder.loss, small.params, source, target, labels=target)
    assert np.isfinite(total)
    assert float(count) == np.prod(shapes[1])
