"""CHECKLIST section R: recurrent translation by the documents' equations, step by step in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, models
from jaxformer.config import kind_of
from jaxformer.models import choices
from jaxformer.planning.graph import products
from tests.models.small import SOURCE_VALID, SOURCES, TARGET, Small
from tests.modules.small import normal, quick

H = 6


def step_by_step(params, states, valid, summary, target, *, attention):
    """The logits of a target ``[T]`` by equations 17.1 to 17.3: one cell h' = tanh(W [y; c] + U h), one source."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["decoder"])
    cell, table = p["stack"]["layers"]["0"]["forward"], p["embeddings"]["tokens"]["table"]
    state = np.tanh(summary @ p["bridge"]["kernel"] + p["bridge"]["bias"])  # s_0 from the last states of the encoder
    logits = []
    for token in target:
        context = summary  # one fixed c, again in every step
        if attention:
            kernels = p["alignment"]
            inside = np.tanh(state @ kernels["w_query"]["kernel"] + states @ kernels["w_key"]["kernel"])
            weights = np.exp(inside @ kernels["v"]) * valid
            context = weights / weights.sum() @ states
        x = np.concatenate([table[token] * table.shape[1] ** 0.5, context])
        both = x @ cell["input"][:, 0] + cell["input_bias"][0] + state @ cell["hidden"][:, 0] + cell["hidden_bias"][0]
        state = np.tanh(both)
        logits.append(np.tanh(np.concatenate([state, context]) @ p["readout"]["kernel"]) @ table.T)
    return np.stack(logits)


@pytest.mark.parametrize("attention", [None, choices.Additive()], ids=kind_of)
def test_r1_r2_the_decoder_by_its_equations(attention):
    """R1: s_0 and one fixed c from the last states, c given in every step. R2: a new c_t from s_(t-1) in every step."""
    small = Small(models.Seq2SeqConfig(13, 13, d_model=8, d_hidden=H, cell="rnn", attention=attention), models.Seq2Seq)
    logits = small.logits(SOURCES)
    states = np.asarray(small.call(models.Seq2Seq.encode, small.params, SOURCES).states)
    for row, length in enumerate(np.asarray(SOURCE_VALID).sum(1)):
        summary = np.concatenate([states[row, length - 1, : H // 2], states[row, 0, H // 2 :]])  # of each direction
        given = states[row], np.asarray(SOURCE_VALID[row]), summary, np.asarray(TARGET[row])
        expected = step_by_step(small.params, *given, attention=attention is not None)
        np.testing.assert_allclose(logits[row], expected, atol=1e-5)


@pytest.mark.parametrize(("attention", "least", "most"), [(None, H, H), (choices.Additive(), 2 * H + 1, 6 * H)])
def test_r3_one_fixed_vector_is_a_bottleneck(attention, least, most):
    """The effect of a source of six words on the outputs of five steps passes H numbers, by the rank of the Jacobian.

    With attention more of the 6 H numbers count than a first state and one context of H have. That a fixed vector also
    learns later is in test_learned.
    """
    small = Small(models.Seq2SeqConfig(13, 13, d_model=8, d_hidden=H, cell="rnn", attention=attention), models.Seq2Seq)

    def slopes(params, states):
        decoder = small.net.bind(params).decoder
        return jax.jacrev(lambda states: decoder(TARGET[:1], models.Memory(states, None))[0])(states)

    jacobian = np.asarray(quick(slopes)(small.params, normal(1, 6, H))).reshape(-1, 6 * H)
    sizes = np.linalg.svd(jacobian, compute_uv=False)
    assert least <= (sizes > 1e-5 * sizes[0]).sum() <= most


def test_r4_weights_of_the_first_step():
    """ "we are eating bread" -> "estamos": weights .45 .45 .05 .05, which sum to 1, mix the four states.

    The states of "we" and "are" begin with 1, the others with -1, and e = v tanh(2 s + h): a state of the decoder
    s = 0 gives +-v tanh 1, which the softmax makes 9 to 1 for v = ln 9 / (2 tanh 1). After "estamos", s = 1 gives
    v tanh 3 and v tanh 1: all four words almost alike.
    """
    states = normal(1, 4, H).at[0, :, 0].set(jnp.array([1.0, 1.0, -1.0, -1.0]))
    v = np.log(9) / (2 * np.tanh(1))
    kernels = {"w_query": jnp.full((1, 1), 2.0), "w_key": jnp.eye(H)[:, :1], "v": jnp.float32(v)[None]}
    context, found = functional.additive_attention(jnp.array([[[0.0], [1.0]]]), states, states, **kernels)
    np.testing.assert_allclose(found[0, 0], [0.45, 0.45, 0.05, 0.05], atol=1e-6)
    expected = 0.45 * (states[0, 0] + states[0, 1]) + 0.05 * (states[0, 2] + states[0, 3])
    np.testing.assert_allclose(context[0, 0], expected, atol=1e-6)
    later = np.exp(v * np.tanh([3, 3, 1, 1]))
    np.testing.assert_allclose(found[0, 1], later / later.sum(), atol=1e-6)


@pytest.mark.parametrize("cell", [functional.rnn_cell, functional.gru_cell, functional.lstm_cell])
def test_c9_r6_a_recurrent_layer_takes_its_steps_in_turn(cell):
    """n tokens are n products of the state, and each waits for the last; that of all inputs waits for none."""
    gates = {functional.rnn_cell: 1, functional.gru_cell: 3, functional.lstm_cell: 4}[cell]
    weights = functional.RecurrentWeights(*map(jnp.zeros, [(4, gates, 3), (3, gates, 3), (gates, 3), (gates, 3)]))
    run = lambda x: functional.recurrent(cell, x, weights)[0]
    chains = [products(run, jax.ShapeDtypeStruct((1, n, 4), np.float32)).in_a_row for n in (10, 1_000)]
    assert chains == [10, 1_000]
