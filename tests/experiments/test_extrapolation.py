"""Losses by position against a model run alone, and the smoke version."""

import jax
import numpy as np
import optax
import pytest

from experiments.extrapolation import __main__ as extrapolation


def test_losses_by_position():
    """Each window has no context before it; all windows together are the text."""
    net = extrapolation.network(None, 5)
    params = jax.vmap(net.init)(jax.random.split(jax.random.key(0), 2))
    ids = jax.numpy.array(np.random.default_rng(0).integers(0, 5, 65), np.int32)
    found = extrapolation.losses(net, params, ids, 32)
    for seed in range(2):
        own = jax.tree.map(lambda x, seed=seed: x[seed], params)
        each = [
            optax.softmax_cross_entropy_with_integer_labels(
                net.apply(own, ids[None, start : start + 32])[0], ids[start + 1 : start + 33]
            )
            for start in (0, 32)
        ]
        assert np.asarray(found[seed]) == pytest.approx(np.mean(each, 0), abs=1e-5)


@pytest.mark.full
def test_a_smoke_run_resumes(tmp_path, capsys):
    words = ["--smoke", "--out", str(tmp_path)]
    with jax.numpy_dtype_promotion("standard"):  # a schedule of optax multiplies an integer
        assert extrapolation.main(words) == 0
    first = capsys.readouterr().out
    assert extrapolation.main(words) == 0
    assert capsys.readouterr().out == first
