"""Hard attention and the objectives of captioning follow their formulas, and padding has no effect."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import functional
from tests.modules.small import normal, quick

VALID = jnp.asarray([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(5), (3, 4)).astype(np.float32)


def test_the_gradient_of_reinforce_is_the_remaining_reward():
    """Minus the rewards from a step on, less the baseline; steps of padding have and give none, NaN or not."""
    rewards = normal(3, 4, seed=1)
    dirty = jnp.where(VALID, rewards, jnp.nan)

    def estimate(log_probs, rewards, baseline, where):
        return functional.reinforce(log_probs, rewards, baseline=baseline, where=where)

    both = quick(jax.value_and_grad(estimate, (0, 1, 2)))
    for where, given in ((None, rewards), (VALID, dirty)):
        real = np.ones((3, 4), bool) if where is None else np.asarray(where)
        gained = np.where(real, np.asarray(rewards) - 0.3, 0)
        to_go = np.array([[row[t:].sum() for t in range(4)] for row in gained])
        value, (found, *constants) = both(normal(3, 4), given, jnp.float32(0.3), where)
        np.testing.assert_allclose(found, np.where(real, -to_go, 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(value, -(to_go * np.asarray(normal(3, 4)))[real].sum(), rtol=1e-5)
        assert not any(np.asarray(slope).any() for slope in constants)


def test_the_doubly_stochastic_penalty_is_of_the_sum_over_steps():
    """For each position, one term for each row with a real step."""
    plain = np.square(1 - WEIGHTS.sum(1)).sum()
    np.testing.assert_allclose(functional.doubly_stochastic_penalty(jnp.asarray(WEIGHTS)), plain, rtol=1e-5)
    received = [WEIGHTS[0, :3].sum(0), WEIGHTS[1, :1].sum(0)]
    found = functional.doubly_stochastic_penalty(jnp.asarray(WEIGHTS), where=VALID)
    np.testing.assert_allclose(found, np.square(1 - np.array(received)).sum(), rtol=1e-5)


def test_entropy_and_its_gradient_are_finite_for_a_weight_of_zero():
    weights = jnp.asarray([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    entropy = functional.weights_entropy(weights)
    slope = quick(jax.grad(lambda weights: functional.weights_entropy(weights).sum()))(weights)
    np.testing.assert_allclose(entropy, [np.log(2), 0], atol=1e-6)
    np.testing.assert_allclose(slope[0], [np.log(2) - 1, np.log(2) - 1, 0], atol=1e-6)
    assert np.isfinite(np.asarray(slope)).all()


def test_a_position_without_weight_is_never_drawn_and_noise_can_force_any_other():
    weights = jnp.broadcast_to(jnp.asarray([0.7, 0.0, 0.3]), (500, 3))
    drawn = np.asarray(functional.pick_position(weights, jax.random.gumbel(jax.random.key(0), (500, 3))))
    assert set(drawn) == {0, 2}
    assert functional.pick_position(weights[0]).item() == 0
    assert functional.pick_position(weights[0], jnp.asarray([0.0, 0.0, jnp.inf])).item() == 2
