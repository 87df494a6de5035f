"""The recurrent encoder-decoder: what it may see, padding, its context, its loss and what it refuses.

The law of decoding, steps equal to the whole pass, is in tests/contracts/test_cached_step.py.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, functional, models, pure
from jaxformer.models import choices
from jaxformer.models.recurrent_decoder import CapturedWeights
from tests.models.small import SOURCE, SOURCE_VALID, SOURCES, TARGET, TARGET_VALID, TARGETS, B, S, Small, T, V
from tests.modules.small import drawn, int32, quick
from tests.selection import first

near = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
KINDS = {
    "none": {"attention": None, "cell": "lstm"},
    "additive": {"cell": "gru", "num_encoder_layers": 2, "tie_embeddings": "none"},
    "dot": {"attention": choices.Dot(), "cell": "lstm", "num_decoder_layers": 2},
    "fed": {"attention": choices.General(input_feeding=True), "cell": "rnn", "tie_embeddings": "decoder"},
}


@functools.cache
def small(name):
    return Small(models.Seq2SeqConfig(V, V, d_model=8, d_hidden=6, **KINDS[name]), models.Seq2Seq)


@pytest.mark.full
@pytest.mark.parametrize("name", first(KINDS, "additive", "fed"))
def test_padding_changes_no_bit_and_no_row_sees_a_later_token(name):
    model = small(name)
    logits = model.logits(SOURCES, TARGETS)
    assert logits.shape == (B, T, V)
    assert logits.dtype == jnp.float32
    again = model.logits(functional.Tokens(jnp.where(SOURCE_VALID, SOURCE, V - 1), SOURCE_VALID), TARGETS)
    np.testing.assert_array_equal(logits, again)
    later = model.logits(SOURCES, functional.Tokens(TARGET.at[:, 3].set(5), TARGET_VALID))
    changed = (np.asarray(later) != np.asarray(logits)).any(-1)
    assert not changed[:, :3].any()
    assert changed[:, 3].all()
    shorter = model.logits(SOURCE[1:, :4], TARGET[1:, :4])
    near(logits[1, :4], shorter[0])


@pytest.mark.full
@pytest.mark.parametrize("name", first(KINDS, "additive"))
def test_the_loss_equals_that_of_the_logits_and_depends_on_every_parameter(name):
    model, labels = small(name), jnp.roll(TARGET, -1, 1)
    smoothed = functional.CrossEntropy(smoothing=0.1)

    def loss(params):
        return model.net.bind(params).loss(SOURCES, TARGETS, labels=labels, loss=smoothed)

    (total, count), gradients = quick(jax.value_and_grad(loss, has_aux=True))(model.params)
    logits = model.logits(SOURCES, TARGETS)
    expected = functional.cross_entropy(logits, labels, where=TARGET_VALID, smoothing=0.1)
    near((total, count), expected)
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))


def test_the_loss_takes_the_arguments_of_its_transformer_sibling():
    """A task passes the same ones to both."""
    for kind, sibling in (
        (models.Seq2Seq, models.EncoderDecoder),
        (models.RecurrentCaptioner, models.TransformerCaptioner),
    ):
        assert kind.loss is sibling.loss is models.TokenModel.loss
        assert inspect.signature(kind.states).parameters.keys() == inspect.signature(sibling.states).parameters.keys()


def test_labels_to_count_need_not_be_all_tokens():
    model, target = small("none"), functional.Tokens(TARGET, TARGET_VALID, right_padded=True)
    loss = quick(lambda params, where: model.net.bind(params).loss(SOURCE, target, labels=TARGET, where=where))
    logits = model.logits(SOURCE, target)
    counted = TARGET_VALID.at[:, 0].set(False)
    for where, expected in ((counted, counted), (None, TARGET_VALID)):
        near(loss(model.params, where), functional.cross_entropy(logits, TARGET, where=expected))


def test_the_fixed_context_is_the_last_state_of_each_direction():
    model = small("none")
    memory = model.call(models.Seq2Seq.encode, model.params, SOURCES)
    context, state = model.call(models.Seq2Seq.start, model.params, memory, beam_size=2, length=3)

    @quick
    def ends(params):
        encoder = model.net.bind(params)
        return encoder.encoder(encoder.embeddings(SOURCES), valid=SOURCE_VALID)[1]

    last = ends(model.params)
    near(context.fixed, jnp.concatenate([direction.hidden for direction in last], -1))
    assert context.states is None
    assert state.shape == (B, 2)
    assert not np.asarray(memory.states)[1, 4:].any()


@pytest.mark.full
def test_captured_weights_are_those_of_the_attention():
    model = small("dot")
    given = {"names": ("decoder.cross",)}
    captured = model.call(models.Seq2Seq.captured, model.params, SOURCES, TARGET, **given)["decoder.cross"]
    weights = captured.layer(0).weights()
    with pytest.raises(ValueError, match="layers count from 0 to 0, got 1"):
        captured.layer(1)
    assert weights.shape == (B, 1, T, S)
    near(weights.sum(-1), np.ones((B, 1, T)))
    assert not np.asarray(weights)[1, ..., 4:].any()
    memory = model.call(models.Seq2Seq.encode, model.params, SOURCES)
    bound = model.net.bind(model.params)
    _, state = bound.start(memory, beam_size=1, length=T)
    x = bound.decoder.embeddings(functional.Tokens(TARGET))
    x, _ = bound.decoder.stack(x, states=jax.tree.map(lambda leaf: leaf[:, 0], state.layers))
    logits = jnp.where(SOURCE_VALID[:, None], jnp.einsum("btd,bsd->bts", x, memory.states), -1e30)
    near(weights[:, 0], jax.nn.softmax(logits, -1))
    near(captured.layer(0).weights(rows=[2], heads=[0]), weights[:, :, 2:3])
    fewer = np.asarray(captured.layer(0).weights(mask=jnp.arange(S)[None, None, None] < 3))
    near(fewer, np.asarray(weights) * (np.arange(S) < 3) / np.asarray(weights)[..., :3].sum(-1, keepdims=True))
    with pytest.raises(ValueError, match=r"unknown attention names \['decoder\.cross'\]; there are \[\]"):
        small("none").net.bind(small("none").params).captured(SOURCE, TARGET, names=("decoder.cross",))


def test_rows_and_heads_of_the_captured_weights_of_a_stack():
    """Without `layer`, they were taken from the wrong dimensions."""
    captured = CapturedWeights(jax.random.uniform(jax.random.key(0), (2, 3, 2, 4, 5)))
    options = {"mask": jnp.arange(5)[None] < 3, "rows": [3, 0], "heads": [1]}
    weights = captured.weights(**options)
    assert weights.shape == (2, 3, 1, 2, 5)
    near(weights, jnp.stack([captured.layer(i).weights(**options) for i in range(2)]))
    kept = np.asarray(captured.values)[:, :, 1, 3, :3]
    near(weights[:, :, 0, 0, :3], kept / kept.sum(-1, keepdims=True))
    for name, last in (("rows", 3), ("heads", 1)):  # the last one was taken for any above
        with pytest.raises(ValueError, match=f"{name} must be indices from 0 to {last}, got"):
            captured.layer(0).weights(**{name: [last + 1]})


@pytest.mark.full
@pytest.mark.parametrize("name", first(["additive", "fed"], "additive"))
def test_a_reordered_state_equals_that_of_the_parent(name):
    """Beam search and forced decoding give its result the same log-probability."""
    model = small(name)

    def search(params):
        bound = model.net.bind(params)
        memory = bound.encode(SOURCES)
        context, state = bound.start(memory, beam_size=3, length=T)
        limits = decoding.Limits(max_length=T, bos=1, eos=2)
        return decoding.beam_search(decoding.ContextStep(bound.step, context), state, limits, beam_size=3)

    found = quick(search)(model.params)
    tokens, lengths = np.asarray(found.tokens[:, 0]), np.asarray(found.lengths[:, 0])
    inputs = np.concatenate([np.ones((B, 1), int), tokens[:, :-1]], 1)
    logits = model.logits(SOURCES, jnp.asarray(inputs, jnp.int32))
    chosen = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), tokens[..., None], 2)[..., 0]
    near(found.log_probs[:, 0], np.where(np.arange(T) < lengths[:, None], chosen, 0).sum(1))
    bound, parents = model.net.bind(model.params), np.array([[2, 0, 1], [1, 1, 0]])
    context, state = bound.start(bound.encode(SOURCE), beam_size=3, length=T)
    tokens = np.array([[3, 4, 5], [6, 7, 8]])
    moved = bound.step(int32(tokens), state, context)[1].reorder(int32(parents))
    own = bound.step(int32(np.take_along_axis(tokens, parents, 1)), state, context)[1]
    jax.tree.map(near, moved, own)
    few = jnp.asarray([1])
    assert moved.take(few).shape == (1, 3)
    assert context.take(few).fixed.shape == (1, 6)


@pytest.mark.full
@pytest.mark.parametrize("name", ["additive", "fed"])
def test_steps_show_their_attention_to_the_source(name):
    """The weights of the whole pass; a fixed context has none to show."""
    model = small(name)

    def run(params):
        bound = model.net.bind(params)
        context, state = bound.start(bound.encode(SOURCES), beam_size=1, length=T)
        logits, _ = bound.step(TARGET[:, :1], state, context)
        attending, weights, _ = bound.attending_step(TARGET[:, :1], state, context)
        captured = bound.captured(SOURCES, TARGET, names=("decoder.cross",))["decoder.cross"]
        return logits, attending, weights[:, 0], captured.layer(0).weights()[:, 0, 0]

    logits, attending, weights, expected = quick(run)(model.params)
    near(attending, logits)
    near(weights, expected)
    fixed = small("none").net.bind(small("none").params)
    context, state = fixed.start(fixed.encode(SOURCE), beam_size=1, length=T)
    with pytest.raises(ValueError, match="fixed context has no attention to a memory"):
        fixed.attending_step(TARGET[:, :1], state, context)


@pytest.mark.full
def test_dropout_depends_on_its_key_and_bfloat16_is_kept():
    options = {"dropout": 0.3, "state_dropout": 0.2, "num_decoder_layers": 2, "compute_dtype": "bfloat16"}
    net = pure(models.Seq2Seq, models.Seq2SeqConfig(V, V, d_model=8, d_hidden=6, **options))
    params, run = net.init(jax.random.key(0)), quick(net.apply)
    one, same, other = (run(params, SOURCE, TARGET, key=jax.random.key(i)) for i in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (np.asarray(one) != np.asarray(other)).any(-1).all()
    assert one.dtype == jnp.float32
    assert net.bind(params).encode(SOURCE).states.dtype == jnp.bfloat16


def test_a_key_may_be_a_raw_one():
    config = models.Seq2SeqConfig(V, V, d_model=8, d_hidden=6, dropout=0.3)
    net = pure(models.Seq2Seq, config)
    run = quick(lambda params, key: net.apply(params, SOURCE, TARGET, key=key))
    params = drawn(net.shapes)
    np.testing.assert_array_equal(run(params, jax.random.PRNGKey(0)), run(params, jax.random.key(0)))


@pytest.mark.full
@pytest.mark.parametrize("name", first(["none", "additive"], "additive"))
def test_an_empty_source_is_a_source_of_padding(name):
    model, target = small(name), TARGET[:, :3]
    padding = model.logits(functional.Tokens(jnp.zeros((B, 2), jnp.int32), jnp.zeros((B, 2), bool)), target)
    np.testing.assert_array_equal(model.logits(jnp.zeros((B, 0), jnp.int32), target), padding)


@pytest.mark.full
@pytest.mark.parametrize("shapes", first([((1, 3), (1, 0)), ((0, 3), (0, 4))], ((0, 3), (0, 4))))
def test_empty_targets_and_batches(shapes):
    model, (source, target) = small("additive"), (np.zeros(shape, np.int32) for shape in shapes)
    assert model.logits(source, target).shape == (*shapes[1], V)
    total, count = model.call(models.Seq2Seq.loss, model.params, source, target, labels=target)
    assert (float(total), float(count)) == (0, 0)
