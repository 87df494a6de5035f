"""The encoder-decoder by its properties: who depends on whom, and that the cached step is the same function."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, functional, models
from jaxformer.models import costs
from jaxformer.modules import pure

CONFIG = models.EncoderDecoderConfig(
    23, 23, width=16, num_heads=2, hidden=24, encoder_depth=2, decoder_depth=2, dropout=0.2, attention_dropout=0.1
)
VARIANTS = {  # each option is met at least once, in pairs that could disturb each other
    "paper": {},
    "pre-norm, learned, untied": {"arrange": "pre", "positions": "learned", "tie": "none", "max_length": 12},
    "two-way, biases, gelu": {"tie": "decoder", "attention_bias": True, "activation": "gelu", "source_vocab_size": 31},
    "pre-norm, remat": {"arrange": "pre", "remat": True, "hidden_dropout": 0.1},
}
SOURCE = jnp.array([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0]])
VALID = SOURCE != 0
TARGET = jnp.array([[1, 11, 12, 13], [1, 14, 15, 16]])


@functools.cache
def network(name="paper"):
    net = pure(models.EncoderDecoder, dataclasses.replace(CONFIG, **VARIANTS[name]))
    return net, jax.jit(net.init)(jax.random.key(0))


@functools.cache
def forward(name="paper"):
    net, _ = network(name)
    return jax.jit(lambda params, source, target, valid: net.apply(params, source, target, source_valid=valid))


def logits(source=SOURCE, target=TARGET, valid=VALID, name="paper"):
    return forward(name)(network(name)[1], source, target, valid)


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_as_many_as_the_formula_says(name):
    net, params = network(name)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == costs.encoder_decoder_parameters(net.config)
    assert jax.tree.structure(net.shapes) == jax.tree.structure(params)


@pytest.mark.parametrize("name", ["paper", "pre-norm, learned, untied"])
def test_causality_by_gradients(name):
    """Row t of the logits depends on targets 0 to t and on no later one; on every real source token."""
    net, params = network(name)
    table = jnp.eye(net.config.target_vocab_size)

    def rows(shift):
        """Logits as a function of a shift of each target's embedding: tokens themselves have no gradient."""
        moved = jax.tree.map(lambda x: x, params)
        out = []
        for position in range(TARGET.shape[1]):
            token = 17 + position
            weight = moved["target_embedding"]["table"].at[token].add(shift[position])
            target = TARGET.at[0, position].set(token)
            changed = {**moved, "target_embedding": {"table": weight}}
            if net.config.tie == "none":
                out.append(net.apply(changed, SOURCE[:1], target[:1]).sum(-1)[0])
            else:  # the same table scores the output: look at tokens other than the one that moves
                scores = net.apply(changed, SOURCE[:1], target[:1])[0]
                out.append((scores * (1 - table[token])[None]).sum(-1))
        return jnp.stack(out)

    slope = jax.jit(jax.jacrev(rows))(jnp.zeros((TARGET.shape[1], net.config.width)))
    for position in range(TARGET.shape[1]):
        influence = np.abs(np.asarray(slope[position, :, position])).sum(-1)
        assert not influence[:position].any()
        assert (influence[position:] > 0).all()


def test_padding_changes_nothing():
    """Neither what stands in padded places nor how many there are."""
    whole = logits()
    garbage = jnp.where(VALID, SOURCE, 19)
    np.testing.assert_array_equal(whole, logits(source=garbage))
    wider = jnp.pad(SOURCE, ((0, 0), (0, 3)))
    np.testing.assert_allclose(whole, logits(source=wider, valid=wider != 0), atol=2e-6)
    alone = logits(SOURCE[1:, :3], TARGET[1:], VALID[1:, :3])
    np.testing.assert_allclose(whole[1:], alone, atol=2e-6)


def test_examples_are_independent():
    np.testing.assert_allclose(logits()[:1], logits(SOURCE[:1], TARGET[:1], VALID[:1]), atol=2e-6)


def test_the_source_is_seen_whole():
    """Changing any real source token changes every row."""
    for position in range(5):
        changed = SOURCE.at[0, position].set(20)
        moved = np.abs(np.asarray(logits() - logits(source=changed)))[0].max(-1)
        assert (moved > 1e-4).all()


def test_order_matters_only_through_positions():
    """P14, A18: encoder states follow a permutation of the source once the positions are taken away."""
    net, params = network("pre-norm, learned, untied")
    blank = {**params, "source_positions": {"table": jnp.zeros_like(params["source_positions"]["table"])}}
    order = np.array([3, 1, 4, 0, 2])
    encode = lambda params, source: net.apply(params, source, method="encode").states
    plain, moved = encode(blank, SOURCE[:1]), encode(blank, SOURCE[:1][:, order])
    np.testing.assert_allclose(plain[:, order], moved, atol=2e-6)
    assert np.abs(np.asarray(encode(params, SOURCE[:1])[:, order] - encode(params, SOURCE[:1][:, order]))).max() > 1e-2


@pytest.mark.parametrize("name", VARIANTS)
def test_cached_steps_are_the_forward_pass(name):
    """Three hypotheses with targets of their own, stepped together, equal their teacher-forced rows."""
    net, params = network(name)
    targets = jax.random.randint(jax.random.key(0), (2, 3, 6), 3, 23)

    @jax.jit
    def stepped(params):
        memory = net.apply(params, SOURCE, source_valid=VALID, method="encode")
        context, state = net.apply(params, memory, width=3, length=6, method="start")
        assert decoding.api.state_size(state) == (2, 3)
        rows = []
        for t in range(6):
            row, state = net.apply(params, targets[:, :, t], state, context, method="step")
            rows.append(row)
        return jnp.stack(rows, 2)

    found = stepped(params)
    for k in range(3):
        np.testing.assert_allclose(found[:, k], logits(target=targets[:, k], name=name), atol=5e-6)


def test_greedy_search_is_repeated_forward_passes():
    """D6: the loop with a cache finds what recomputing every prefix finds."""
    net, params = network()
    memory = net.apply(params, SOURCE, source_valid=VALID, method="encode")
    context, state = net.apply(params, memory, width=1, length=6, method="start")
    step = lambda tokens, state: net.apply(params, tokens, state, context, method="step")
    found = decoding.greedy(step, state, length=6, begin=1, end=2)
    for sentence in range(2):
        prefix = [1]
        for number in range(6):
            padded = jnp.array([prefix + [0] * (6 - len(prefix))])
            row = np.array(logits(SOURCE[sentence : sentence + 1], padded, VALID[sentence : sentence + 1])[0, number])
            row[[0, 1]] = -np.inf
            prefix.append(2 if number == 5 else int(row.argmax()))
            if prefix[-1] == 2:
                break
        length = int(found.lengths[sentence, 0])
        assert np.asarray(found.tokens[sentence, 0, :length]).tolist() == prefix[1:]


def test_dropout_is_a_function_of_the_key():
    net, params = network()
    run = jax.jit(lambda key: net.apply(params, SOURCE, TARGET, key=key))
    first, again, other = (np.asarray(run(jax.random.key(seed))) for seed in (1, 1, 2))
    assert (first == again).all()
    assert np.abs(first - other).max() > 1e-2


def test_remat_changes_no_number():
    net, params = network("pre-norm, remat")
    plain = pure(models.EncoderDecoder, dataclasses.replace(net.config, remat=False))

    def loss(net, params):
        out = net.apply(params, SOURCE, TARGET, source_valid=VALID, key=jax.random.key(3))
        return functional.cross_entropy(out, TARGET, smoothing=0.1)[0]

    for a, b in zip(
        *(jax.tree.leaves(jax.grad(functools.partial(loss, n))(params)) for n in (net, plain)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_bfloat16_is_close():
    net, params = network()
    half = pure(models.EncoderDecoder, dataclasses.replace(net.config, compute_dtype="bfloat16"))
    found = half.apply(params, SOURCE, TARGET, source_valid=VALID)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, logits(), atol=0.25)


def test_captured_attention_is_what_was_used():
    """Weights from captured queries and keys: layers first, rows sum to 1, nothing on padding, nothing ahead."""
    net, params = network()
    names = ("encoder.self", "decoder.self", "decoder.cross")
    found = net.apply(params, SOURCE, TARGET, names, source_valid=VALID, method="captured")
    query, key = found["decoder.cross"]
    assert query.shape == (2, 2, 4, 2, 8)
    assert key.shape == (2, 2, 5, 2, 8)
    weights = functional.attention_weights(query[1], key[1], mask=jnp.asarray(VALID)[:, None])
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert not np.asarray(weights[1, :, :, 3:]).any()
    with pytest.raises(ValueError, match=r"unknown attention names \['decoder\.corss'\]"):
        net.apply(params, SOURCE, TARGET, ("decoder.corss",), method="captured")


def test_operations_are_those_that_xla_counts():
    """At one layer a stack, which a compiler's count sees once: within a tenth, for it counts softmax and norms too."""
    config = dataclasses.replace(
        CONFIG, width=64, hidden=256, encoder_depth=1, decoder_depth=1, source_vocab_size=500, target_vocab_size=500
    )
    net = pure(models.EncoderDecoder, config)
    tokens = jax.ShapeDtypeStruct((4, 32), jnp.int32)
    counted = jax.jit(net.apply).lower(net.shapes, tokens, tokens).compile().cost_analysis()["flops"]
    assert counted == pytest.approx(costs.encoder_decoder_flops(config, 4, 32, 32), rel=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 15}, r"width \(15\) must be divisible by num_heads \(2\)"),
        ({"source_vocab_size": 9}, "vocabularies must be equal: source 9, target 23"),
        ({"width": 3, "num_heads": 1}, "even width"),
    ],
)
def test_configurations_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_sequences_beyond_the_positions():
    net, params = network("pre-norm, learned, untied")
    with pytest.raises(ValueError, match="length 13 has no learned position beyond 12"):
        net.apply(params, jnp.ones((1, 13), jnp.int32), TARGET[:1])


def test_a_model_without_vocabulary():
    with pytest.raises(ValueError, match="needs vocabularies"):
        pure(models.EncoderDecoder, models.EncoderDecoderConfig(width=16, num_heads=2)).shapes
