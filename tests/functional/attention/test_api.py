"""The dispatcher chooses an implementation, or calls the one that is named."""

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
    with pytest.raises(ValueError, match=r"implementation must be one of \['blockwise', 'cudnn', .*\], got 'fast'"):
        functional.attention(query, key, value, implementation="fast")


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
