"""The explanation names the chosen implementation, the refusals with their reasons, and the worst errors."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention import api
from tests.contracts.attention import arrays


def test_explanation():
    """Every accepting implementation has a small worst error, every other one a reason, and one is chosen."""
    query, key, value, _ = arrays()
    options = {"mask": masks.causal(1), "bias": functional.alibi(4)}
    explanation = functional.explain_attention(query, key, value, **options)
    assert explanation.chosen == "reference"
    assert set(explanation.errors) == {"reference", "blockwise", "xla"}
    assert all(error and 0 < error < 1e-5 for error in explanation.errors.values())
    assert set(explanation.refused) == {"cudnn", "splash", "tokamax"}
    text = str(explanation)
    assert text.splitlines()[0].startswith("-> reference    worst error ")
    assert "   cudnn        refuses: it needs an NVIDIA GPU" in text
    assert "   splash       refuses: it needs a TPU v4 or later, got cpu (cpu)" in text


@pytest.mark.full
def test_explanation_is_compared_with_float64(monkeypatch):
    """An error of a thousandth is found; dropout and empty rows are part of the comparison."""
    wrong = api.Implementation(lambda r: api.reference.attention(r) * 1.001, lambda r: None)
    monkeypatch.setitem(api.implementations, "wrong", wrong)
    query, key, value, _ = arrays()
    options = {"mask": masks.dense(np.tri(5, 7, -1, dtype=bool)), "score": functional.soft_cap(3.0)}
    options["dropout"] = functional.Dropout(0.3, jax.random.key(2))
    explanation = functional.explain_attention(query, key, value, **options)
    errors = {name: error or 0.0 for name, error in explanation.errors.items()}
    assert errors["wrong"] > 1e-4
    assert 0 < errors["blockwise"] < 1e-5
    assert 0 < errors["reference"] < 1e-5


@pytest.mark.full
def test_explanation_with_sinks_at_positions():
    query, key, value, _ = arrays()
    mask, _ = functional.at_positions(query, key, query_positions=np.arange(2, 7), mask=masks.causal())
    explanation = functional.explain_attention(query, key, value, mask=mask, sinks=jnp.array([0.0, 1.0, -1.0, 3.0]))
    assert set(explanation.errors) == {"reference", "blockwise"}
    assert all(error is not None and error < 1e-5 for error in explanation.errors.values())
    assert explanation.refused["xla"] == "it has no attention sinks"


@pytest.mark.full
@pytest.mark.parametrize("fill", [np.nan, np.inf])
def test_unseen_keys_may_hold_anything(fill):
    """Keys and values of padding, also if the key is padding in one example only, and empty queries."""
    query, key, value, _ = arrays()
    lengths = np.array([0, 4])[: query.shape[0]]
    seen = np.arange(key.shape[1]) < lengths[:, None]
    key, value = (jnp.where(seen[..., None, None], x, fill) for x in (key, value))
    query = jnp.where((lengths > 0)[:, None, None, None], query, fill)
    explanation = functional.explain_attention(query, key, value, mask=masks.padding(jnp.asarray(seen)))
    assert set(explanation.errors) >= {"reference", "blockwise"}
    assert all(error is not None and error < 1e-5 for error in explanation.errors.values())


@pytest.mark.full
def test_explanation_of_shapes_alone():
    explain = inspect.unwrap(functional.explain_attention)
    long = jax.ShapeDtypeStruct((1, 16_384, 8, 64), jnp.float32)
    explanation = explain(long, long, long, mask=masks.causal())
    assert explanation.chosen == "blockwise"
    assert explanation.errors == {"reference": None, "blockwise": None, "xla": None}
    assert "worst" not in str(explanation)
