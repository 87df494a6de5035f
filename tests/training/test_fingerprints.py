"""A step of a checkpoint belongs to one run."""

import jax.numpy as jnp
import pytest

from jaxformer import training


def test_a_step_of_another_run_is_refused(tmp_path):
    """A step without a fingerprint, as of earlier versions, is read; so is each without the run's fingerprint."""
    for step, fingerprint in enumerate(("", "mine", "other"), 1):
        with training.Checkpoints(tmp_path, fingerprint=fingerprint) as checkpoints:
            checkpoints.save(step, {"x": jnp.full(2, step)}, {})
    target = {"x": jnp.zeros(2, int)}
    with training.Checkpoints(tmp_path, fingerprint="mine") as checkpoints:
        assert [int(checkpoints.restore(step, target)[0]["x"][0]) for step in (1, 2)] == [1, 2]
        for restore in (lambda: checkpoints.restore(3, target), lambda: checkpoints.restore_latest(target)):
            with pytest.raises(training.OtherModelError, match=r"step 3 in .* belongs to another run"):
                restore()
        assert checkpoints.steps() == [1, 2, 3]
    with training.Checkpoints(tmp_path) as checkpoints:
        assert int(checkpoints.restore_latest(target)[0]["x"][0]) == 3
