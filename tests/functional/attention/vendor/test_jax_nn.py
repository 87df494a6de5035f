"""Kernels of others behind our contract; what they refuse is asserted, by the reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from tests.contracts.attention import CASES, AttentionContract, arrays
from tests.contracts.biases import BiasContract

DROPS = {name for name, (_, _, options) in CASES.items() if "dropout" in options}


@pytest.mark.full
class TestXla(AttentionContract, BiasContract):
    implementation = "xla"

    @pytest.fixture(autouse=True)
    def _their_promotion(self):
        """In bfloat16 their gradient multiplies two dtypes, which our tests forbid everybody else."""
        with jax.numpy_dtype_promotion("standard"):
            yield

    @pytest.mark.parametrize("name", CASES)
    def test_agrees_with_numpy(self, name):
        if name not in DROPS:
            return self.check_agrees_with_numpy(name)
        with pytest.raises(
            ValueError, match="'xla' cannot do this: it cannot drop weights by the hash of this library"
        ):
            self.check_agrees_with_numpy(name)
        return None

    @pytest.mark.parametrize("name", ["grouped", "mask [B, N, T, S]", "dropout, bias"])
    def test_bfloat16(self, name):
        if name not in DROPS:
            return self.check_bfloat16(name)
        with pytest.raises(ValueError, match="cannot drop weights"):
            self.check_bfloat16(name)
        return None

    def test_soft_cap(self):
        with pytest.raises(ValueError, match="it has no function of the logits"):
            self.check_soft_cap()

    def test_no_keys(self):
        with pytest.raises(ValueError, match="at least one query and one key"):
            self.check_no_keys()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_xla_keeps_the_contract(dtype):
    """Empty rows, unseen keys, forbidden pairs, and no keys at all; whatever else it is asked is in `test_product`."""
    xla = TestXla()
    with jax.numpy_dtype_promotion("standard"):
        xla.check_a_empty_query_rows(np.nan, dtype)
        xla.check_b_unseen_keys_are_inert(np.nan, dtype, True)
        xla.check_c_masked_weights_are_exactly_zero(dtype)
        xla.check_no_keys()


def test_what_the_kernel_is_told_in_its_own_words(monkeypatch):
    """A causal mask over equal lengths and a window are named, not built; others arrive as arrays."""
    told = []
    real = jax.nn.dot_product_attention

    def spy(query, key, value, bias, mask, **options):
        told.append(options | {"mask": mask})
        return real(query, key, value, bias, mask, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", spy)
    query, key, value, _ = arrays(2, 2)
    for mask in (masks.causal(), masks.window(2), masks.causal(2)):
        functional.attention(query, key[:, :5], value[:, :5], mask=mask, implementation="xla")
    assert told[0]["is_causal"]
    assert told[1]["local_window_size"] == (2, 0)
    assert told[0]["mask"] is told[1]["mask"] is None
    assert told[2]["mask"].shape == (2, 1, 5, 5)


class Gpu:
    platform, device_kind = "gpu", "NVIDIA H100"


def request(dtype=jnp.bfloat16, dim=64, value_dim=64, **options):
    shape = lambda d: jax.ShapeDtypeStruct((2, 128, 4, d), dtype)
    return make_request(shape(dim), shape(dim), shape(value_dim), **options)


def test_cudnn_needs_its_device():
    query, key, value, _ = arrays()
    with pytest.raises(ValueError, match="'cudnn' cannot do this: it needs an NVIDIA GPU, got cpu"):
        functional.attention(query, key, value, implementation="cudnn")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": jnp.float32}, "bfloat16 or float16, got float32"),
        ({"dim": 256}, "at most 128, got 256"),
        ({"dim": 12, "value_dim": 12}, "multiple of 8 and at most 128, got 12"),
        ({"bias": functional.alibi(4)}, "a T x S array"),
        ({"score": jnp.tanh}, "no function of the logits"),
        ({"dropout": functional.Dropout(0.1, jax.random.key(0))}, "by the hash of this library"),
    ],
)
def test_cudnn_refusals_on_its_device(monkeypatch, options, reason):
    """On a GPU it is chosen for what it takes, and passed over for what it does not."""
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    assert api.choose(request()) == "cudnn"
    assert reason in api.implementations["cudnn"].refuse(request(**options))
    assert api.choose(request(**options)) == "reference"


def test_xla_keeps_rows_that_mask_and_bias_empty_together():
    """The first query may see the first key alone, which the bias forbids: as by the reference, zeros."""
    query, key, value, _ = arrays(2, 2)
    query, key, value = (x[:, :5] for x in (query, key, value))
    bias = jnp.where(jnp.arange(5) > 0, 0.0, -jnp.inf).reshape(1, 1, 1, 5)

    def loss(arrays, implementation):
        output = functional.attention(*arrays, mask=masks.causal(), bias=bias, implementation=implementation)
        return (output**2).sum() + output[:, 0].sum(), output

    (expected, _), wanted = jax.value_and_grad(loss, has_aux=True)((query, key, value), "reference")
    (found, output), slopes = jax.value_and_grad(loss, has_aux=True)((query, key, value), "xla")
    assert not np.asarray(output[:, 0]).any()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for got, want in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("low", [-np.inf, -1e9])
def test_xla_in_float16_takes_a_bias_beyond_its_range(low):
    query, key, value = (x.astype(jnp.float16) for x in arrays(2, 2)[:3])
    bias = jnp.zeros((1, 1, 5, 7), jnp.float32).at[:, :, 1].set(low)

    def loss(query, implementation):
        return functional.attention(query, key, value, bias=bias, implementation=implementation).sum()

    with jax.numpy_dtype_promotion("standard"):
        found = jax.grad(loss)(query, "xla")
    others = np.arange(5) != 1  # of float32 so low a row keeps no difference of its logits, and of ours it does
    assert np.isfinite(np.asarray(found)).all()
    np.testing.assert_allclose(found[:, others], jax.grad(loss)(query, "reference")[:, others], atol=2e-2)
