"""The arguments of tokamax, which a module that calls `jax.nn` replaces here; the parity tests call the real one."""

import importlib.machinery
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from tests.contracts.attention import VALID, B, S, T, arrays


class Gpu:
    platform, device_kind = "gpu", "AMD Instinct MI300X"


@pytest.fixture
def calls(monkeypatch):
    """The arguments that the replacement of tokamax receives; it has no soft caps."""
    recorded = []

    def attention(query, key, value, bias, mask, **options):
        recorded.append(options | {"bias": bias, "mask": mask})
        supported = {name: option for name, option in options.items() if name != "logits_soft_cap"}
        return jax.nn.dot_product_attention(query, key, value, bias, mask, **supported)

    module = types.ModuleType("tokamax")
    module.__spec__ = importlib.machinery.ModuleSpec("tokamax", None)
    module.dot_product_attention = attention
    monkeypatch.setitem(sys.modules, "tokamax", module)
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    return recorded


def attend(*inputs, **options):
    return functional.attention(*inputs, implementation="tokamax", **options)


@pytest.mark.full
def test_arguments(calls):
    query, key, value, _ = arrays(2, 2)
    for mask in (None, masks.causal(), masks.window(2), masks.causal(2)):
        attend(query, key[:, :T], value[:, :T], mask=mask, scale=0.3)
    attend(query, key, value, score=functional.soft_cap(5.0))
    plain = {"scale": 0.3, "bias": None, "mask": None}
    assert calls[:3] == [plain, plain | {"is_causal": True}, plain | {"is_causal": True, "local_window_size": (2, 0)}]
    np.testing.assert_array_equal(calls[3]["mask"], np.broadcast_to(np.tri(T, T, 2, dtype=bool), (B, 1, T, T)))
    assert calls[4] == {"scale": 0.5, "bias": None, "mask": None, "logits_soft_cap": 5.0}


@pytest.mark.full
def test_the_contract_of_attention(calls):
    """Unseen keys and empty rows are replaced by 0, a bias is an array, and tokamax is never the default."""
    query, key, value, _ = arrays()
    mask = masks.causal(-2) & masks.padding(VALID)
    seen = mask.dense(T, S).any(2)[:, 0, :, None, None]
    options = {"mask": mask, "bias": functional.alibi(4)}
    got = attend(query.at[:, 0].set(jnp.nan), *(jnp.where(seen, x, jnp.nan) for x in (key, value)), **options)
    expected = functional.attention(query, key, value, implementation="reference", **options)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert not np.asarray(got[:, :2]).any()
    assert calls[0]["bias"].shape == (1, 4, T, S)
    assert api.choose(make_request(query, key, value)) == "reference"


def test_refusals(calls, monkeypatch):
    query, key, value, _ = arrays()
    key0, value0 = key[:, :0], value[:, :0]
    cap = functional.soft_cap(2.0)
    for inputs, options, reason in (
        ((query, key, value), {"score": jnp.tanh}, "its only function of the logits is soft_cap"),
        ((query, key, value), {"score": cap, "bias": functional.alibi(4)}, "it would cap the sum of logits and bias"),
        ((query, key, value), {"dropout": functional.Dropout(0.1, jax.random.key(0))}, "it cannot drop weights"),
        ((query, key0, value0), {}, "it needs at least one query and one key"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"'tokamax' cannot do this: {reason}")):
            attend(*inputs, **options)
    assert not calls
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with pytest.raises(ValueError, match="'tokamax' cannot do this: tokamax is not installed"):
        attend(query, key, value)


def test_needs_a_device(calls, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices())
    with pytest.raises(ValueError, match=r"'tokamax' cannot do this: it needs a GPU or a TPU, got cpu \(cpu\)"):
        attend(*arrays()[:3])
