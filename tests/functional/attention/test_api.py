"""The dispatcher chooses an implementation, or calls the one that is named; the explanation says why."""

import inspect
import types

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from tests.contracts import biases
from tests.contracts.attention import arrays
from tests.selection import first


def test_default_is_an_implementation_by_name():
    query, key, value, _ = arrays()
    named = functional.attention(query, key, value, implementation="reference")
    np.testing.assert_array_equal(functional.attention(query, key, value), named)


@pytest.mark.parametrize(
    ("platform", "lengths", "expected"),
    [
        ("cpu", (256, 255), "reference"),
        ("cpu", (256, 256), "blockwise"),
        ("cpu", (64, 1024), "blockwise"),
        ("gpu", (1024, 1024), "reference"),
        ("gpu", (1024, 2048), "blockwise"),
    ],
)
def test_long_sequences_use_blockwise(monkeypatch, platform, lengths, expected):
    """Blocks are chosen at shorter lengths on a CPU because of its cache; cuDNN does not accept float32."""
    device = types.SimpleNamespace(platform=platform, device_kind="some NVIDIA")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    query, key = (jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32) for length in lengths)
    assert api.choose(make_request(query, key, key)) == expected


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("symbols", ["b, 512", "1, s"])
def test_symbolic_sizes_use_the_reference(monkeypatch, platform, symbols):
    """Blocks need a known length, and a kernel belongs to the machine that exports it."""
    batch, length = jax.export.symbolic_shape(symbols)
    device = types.SimpleNamespace(platform=platform, device_kind="some NVIDIA")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    x = jax.ShapeDtypeStruct((batch, length, 2, 8), jnp.bfloat16)
    assert api.choose(make_request(x, x, x)) == "reference"
    assert "not symbolic" in str(api.refuse_blockwise(make_request(x, x, x)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["array", *first(biases.BIASES, "relative keys", "transformer-xl")])
@pytest.mark.parametrize(
    ("implementation", "empty"),
    [(name, x) for name in ("reference", "blockwise") for x in ("batch", "queries", "keys")] + [("xla", "batch")],
)
def test_empty_arrays(implementation, empty, name):
    """A batch of no examples, no queries, or no keys: an output of 0, whose gradients are 0."""
    query, key, value, _ = arrays()
    match empty:
        case "batch":
            query, key, value = query[:0], key[:0], value[:0]
        case "queries":
            query = query[:, :0]
        case "keys":
            key, value = key[:, :0], value[:, :0]
    shape = query.shape[0], 4, query.shape[1], key.shape[1]
    learned = {"array": jnp.ones((1, *shape[1:]))} if name == "array" else biases.LEARNED

    def attend(query, key, value, learned):
        bias = learned["array"] if name == "array" else biases.made(name, learned)
        mask = masks.dense(jnp.ones(shape, bool))
        return functional.attention(query, key, value, bias=bias, mask=mask, implementation=implementation)

    output, pull = jax.vjp(attend, query, key, value, learned)
    assert output.shape == (*query.shape[:3], value.shape[3])
    assert not any(np.asarray(x).any() for x in (output, *jax.tree.leaves(pull(output))))
    if implementation != "xla":
        dropout = functional.Dropout(0.5, jax.random.key(0))
        dropped = functional.attention(query, key, value, dropout=dropout, implementation=implementation)
        np.testing.assert_array_equal(dropped, output)


def test_arrays_on_explicit_axes_are_not_computed_in_blocks():
    """The carries of its loops have no sharding; JAX's own error would not say which mesh to make."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((2, 512, 1, 8), jnp.float32, sharding=rows)
    attend = lambda x, name=None: functional.attention(x, x, x, implementation=name)
    with jax.set_mesh(mesh):
        assert jax.eval_shape(attend, x).shape == x.shape
        with pytest.raises(ValueError, match=r"'blockwise' cannot do this: its loops need .*AxisType\.Auto"):
            jax.eval_shape(lambda x: attend(x, "blockwise"), x)


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
