"""CHECKLIST section T for models and losses: teacher forcing, likelihood, the gradient through scaling."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional, masks, models
from tests.models.small import SOURCE, SOURCE_VALID, model
from tests.modules.small import normal

REFERENCE = jnp.array([[5, 6, 7, 2], [8, 4, 3, 2]], jnp.int32)  # y_1 .. y_T, the last is the end (id 2)
INPUT = jnp.concatenate([jnp.ones((2, 1), jnp.int32), REFERENCE[:, :-1]], 1)  # begin, y_1 .. y_{T-1}


def test_t1_teacher_forcing():
    """Row t is conditioned on the correct prefix, even after an error: it equals a separate run on that prefix.

    The end token must be the last label; the toy target y_1:4 of the document omits it.
    """
    small = model("post")
    logits = small.logits(SOURCE, INPUT, source_valid=SOURCE_VALID)
    assert REFERENCE[0, -1] == 2
    for t in (1, 2):
        fresh = small.logits(SOURCE, INPUT[:, : t + 1], source_valid=SOURCE_VALID)
        np.testing.assert_allclose(fresh[:, t], logits[:, t], atol=2e-5)


def test_t2_parallel_likelihood_is_sequential():
    """NLL = -sum_t log p(y_t | y_<t, x) in parallel equals the sum step by step with the cache."""
    small = model("post")
    logits = small.logits(SOURCE, INPUT, source_valid=SOURCE_VALID)
    total, count = functional.cross_entropy(logits, REFERENCE)
    memory = small.call(models.EncoderDecoder.encode, small.params, SOURCE, source_valid=SOURCE_VALID)
    context, state = small.call(models.EncoderDecoder.start, small.params, memory, beam_size=1, length=4)
    sequential = 0.0
    for t in range(4):
        row, state = small.call(models.EncoderDecoder.step, small.params, INPUT[:, t : t + 1], state, context)
        log_p = np.asarray(jax.nn.log_softmax(row[:, 0]), np.float64)
        sequential -= log_p[np.arange(2), np.asarray(REFERENCE[:, t])].sum()
    assert int(count) == 8
    np.testing.assert_allclose(total, sequential, rtol=1e-5)


def test_t7_without_the_mask_the_answer_is_in_the_input():
    """The label of row t is at t + 1 of the input: unmasked attention can copy it, causal attention cannot."""
    x = normal(5, 8)
    target = x[1:]  # each row predicts the content of the next row
    key = jnp.eye(8)[:5]
    shifted = jnp.roll(key, -1, 0)  # each query asks for the next position
    unmasked, _ = functional.attention_head(shifted * 50, key, x)
    np.testing.assert_allclose(unmasked[:4], target, atol=1e-4)
    masked, weights = functional.attention_head(shifted * 50, key, x, mask=masks.causal())
    assert np.abs(np.asarray(masked[:4] - target)).max(-1).min() > 0.1
    assert not np.triu(weights, 1).any()


def test_t9_scaling_keeps_the_gradient():
    """At d = 512 unscaled softmax saturates: the gradient that reaches the queries almost vanishes."""
    query, key, value = (normal(20, 512, seed=i) for i in range(3))

    def slope(scale):
        loss = lambda q: jnp.sum(functional.attention_head(q, key, value, scale=scale)[0] * value)
        return float(jnp.median(jnp.linalg.norm(jax.grad(loss)(query), axis=-1) / scale))

    assert slope(512**-0.5) > 20 * slope(1.0)
