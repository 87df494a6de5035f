"""The page on positions beyond training beside its record, and losses by position against a model run alone."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest

from experiments.extrapolation import __main__ as extrapolation
from tests.experiments.pages import published


def test_l10_the_page_has_the_results():
    """L10: its tables equal results.json, and the results support its statements."""
    page, results = published(extrapolation)
    assert extrapolation.tables(results).strip() in page
    assert results["scale"] == json.loads(json.dumps(dataclasses.asdict(extrapolation.FULL)))
    for text in extrapolation.TEXTS:
        records = {record["scheme"]: record for record in results["records"] if record["text"] == text}
        loss = {name: {length: np.mean(x) for length, x in r["loss"].items()} for name, r in records.items()}
        rise = {name: each["512"] - each["32"] for name, each in loss.items()}
        assert all(loss[name]["64"] > loss[name]["32"] + 0.4 for name in ("sinusoidal", "learned"))
        assert min(rise[name] for name in ("sinusoidal", "learned", "rotary")) > 0.9
        assert max(rise[name] for name in ("relative keys, to distance 16", "transformer_xl")) < 0.061
        assert rise["alibi"] < 0.08
        yarn = {length: np.mean(x) for length, x in records["rotary"][extrapolation.SCALED].items()}
        assert yarn["64"] < loss["rotary"]["32"] + 0.04 < 0.1 + yarn["128"]
        assert loss["raw"] == pytest.approx(loss["none"], abs=1e-5)


@pytest.mark.full
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
