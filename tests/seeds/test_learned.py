"""CHECKLIST section L: what attention learns in a small training, the reversal of five words, and which parts help."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, pure, training
from jaxformer.models import EncoderDecoder, EncoderDecoderConfig, Seq2Seq, Seq2SeqConfig, choices
from jaxformer.planning import graph
from tests.modules.small import drawn, quick
from tests.training import copying
from tests.training.small import settings

SIZE = {"d_model": 16, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
CHANCE = np.log(7)
"""The loss of a model that knows the length of the answer, but none of its words."""


def reversal(seed):
    words = copying.sentences(seed)
    return copying.batch(words, [sentence[::-1] for sentence in words])


def batches(start):
    return map(reversal, range(1000 + start, 2000))


def recurrent(attention):
    return pure(Seq2Seq, Seq2SeqConfig(11, 11, d_hidden=16, attention=attention, **SIZE))


def loss_of(net, steps, learning_rate=1e-2):
    """The loss of new sentences after these steps, in nats per word."""
    config = training.AdamConfig(learning_rate=learning_rate, warmup_steps=20, clip_norm=1.0)
    optimizer = training.make_optimizer(config, steps=steps)

    def loss(params, batch, key=None):
        return *net.bind(params).loss(batch.source, batch.target, labels=batch.labels), {}

    state = training.create(net.init, optimizer, jax.random.key(0))
    step = training.make_step(loss, optimizer)
    params = training.fit(step, state, batches, config=settings(steps)).state.params
    total, count, _ = quick(loss)(params, jax.tree.map(jnp.asarray, reversal(1)))
    return float(total / count)


@pytest.fixture(scope="module")
def cross_attention():
    """Weights of new sentences, ``[B, heads, T, S]``, by the initial parameters and by the trained ones."""
    batch = reversal(1)
    initial, trained = quick(copying.NET.init)(jax.random.key(0)), copying.train(batches, 300)
    assert float(copying.mean_loss(trained, batch)) < 0.1

    @quick
    def weights(params):
        source, target = jax.tree.map(jnp.asarray, (batch.source, batch.target))
        captured = copying.NET.bind(params).captured(source, target, names=("decoder.cross",))
        return captured["decoder.cross"].layer(0).weights()

    return np.asarray(weights(initial)), np.asarray(weights(trained))


def test_l4_attention_becomes_sparse_and_heads_differ(cross_attention):
    """Weights begin almost uniform and alike in all heads; training makes them sharp, and the heads different."""
    entropy = [-(weights * np.log(weights + 1e-20)).sum(-1).mean() for weights in cross_attention]
    assert entropy[0] > 0.9 * np.log(6)
    assert entropy[1] < 0.4 * entropy[0]
    differing = [np.abs(weights[:, 0] - weights[:, 1]).sum(-1).mean() / 2 for weights in cross_attention]
    assert differing[1] > 2 * differing[0]


def test_l5_reordering_is_aligned_without_supervision(cross_attention):
    """Word t of the answer attends to the word that it came from, last first, which no loss told."""
    came_from = np.arange(copying.LENGTH)[::-1]
    right = [(weights.mean(1)[:, : copying.LENGTH].argmax(-1) == came_from).mean() for weights in cross_attention]
    assert right[0] < 0.4
    assert right[1] > 0.9


@pytest.mark.full
def test_l6_r3_attention_beats_one_fixed_vector():
    """The same recurrent translator learns the reversal with attention long before it does with one fixed vector."""
    assert loss_of(recurrent(choices.Additive()), 300) < 0.6 * loss_of(recurrent(None), 300) < 0.6 * CHANCE


def test_l7_additive_scores_cost_more():
    """A pair costs additive attention a tanh for each hidden unit, and any attention one exponential.

    Its accuracy is not lower: see the tables of experiments/recurrent_translation.
    """
    queries, keys, hidden = 32, 64, 16
    q, k = (jnp.zeros((1, n, hidden)) for n in (queries, keys))
    scaled = lambda q, k: functional.attention(q[:, :, None], k[:, :, None], k[:, :, None], implementation="reference")
    kernels = {"w_query": jnp.eye(hidden), "w_key": jnp.eye(hidden), "v": jnp.ones(hidden)}
    additive = lambda q, k: functional.additive_attention(q, k, k, **kernels)[0]
    exponentials, with_tanh = (
        jax.jit(attend).lower(q, k).compile().cost_analysis()["transcendentals"] for attend in (scaled, additive)
    )
    assert exponentials == queries * keys
    assert with_tanh - exponentials == queries * keys * hidden


@pytest.mark.full
@pytest.mark.parametrize(("norm_position", "learns"), [("pre", True), ("post", False)])
def test_l8_pre_norm_trains_deeper(norm_position, learns):
    """25 + 25 layers with Xavier's kernels learn with pre-norm, and stay at chance with post-norm.

    Gradients do not vanish at the start; kernels that are scaled by depth (`modules.layers.scaled_gains`) let
    post-norm learn, too, if the rate is low.
    """
    size = SIZE | {"num_encoder_layers": 25, "num_decoder_layers": 25, "num_heads": 2, "d_ff": 32}
    config = EncoderDecoderConfig(11, 11, norm_position=norm_position, initialization="xavier", **size)
    loss = loss_of(pure(EncoderDecoder, config), 150, learning_rate=3e-3)
    assert loss < 0.7 * CHANCE if learns else loss > 0.95 * CHANCE


def test_l15_r3_a_summary_reaches_the_whole_text():
    """The words of an answer depend on the first, the middle and the last of 200 words, by one step of attention.

    The fixed vector of a recurrent network has both ends, but what stands between has passed a hundred cells.
    """
    source, answer = jnp.asarray(np.random.default_rng(0).integers(4, 11, (1, 200))), jnp.array([[1, 5]])

    def effects(net):
        logits = quick(functools.partial(net.apply, drawn(net.shapes, 0.2)))
        change = lambda at: np.abs(logits(source.at[0, at].set(3), answer) - logits(source, answer)).max()
        return [change(at) for at in (0, 100, 199)]

    attention = effects(copying.NET)
    assert min(attention) > max(attention) / 10
    first, middle, last = effects(recurrent(None))
    assert middle < min(first, last) / 1e3


@pytest.mark.parametrize(("net", "grows"), [(copying.NET, False), (recurrent(None), True)])
def test_l17_a_transformer_trains_all_positions_at_once(net, grows):
    """The products of a training step that wait for one another are as many for 64 words as for 8; a recurrence's grow.

    How long either trains for equal quality is measured in experiments/recurrent_translation.
    """

    def in_a_row(length):
        tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
        loss = lambda params, tokens: net.bind(params).loss(tokens, tokens, labels=tokens)[0]
        return graph.products(jax.grad(loss), net.shapes, tokens).in_a_row

    short, long = in_a_row(8), in_a_row(64)
    assert (long > 4 * short) if grows else (long == short)
