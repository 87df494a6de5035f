"""The kernels behind `jax.nn` keep the contract, and tokamax gets its arguments; each refusal has its reason."""

import importlib
import importlib.machinery
import sys
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, targets
from jaxformer.conformance import oracle
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.attention.vendor import jax_nn
from tests.contracts.attention import VALID, AttentionContract, B, S, T, arrays, bias, settings
from tests.contracts.biases import BiasContract
from tests.modules.small import quick

NO_DROPOUT = "it cannot drop weights by the hash of this library"


@pytest.fixture
def _their_promotion():
    """In bfloat16 the gradient of `jax.nn` multiplies two dtypes, which the tests otherwise forbid."""
    with settings(jax_numpy_dtype_promotion="standard"):
        yield


@pytest.mark.full
@pytest.mark.usefixtures("_their_promotion")
class TestXla(AttentionContract, BiasContract):
    implementation = "xla"
    refuses = {"dropout": NO_DROPOUT}  # noqa: RUF012
    partly = dict.fromkeys(("values", "shape and dtype", "long rows"), "XLA has no products of float16 .*")

    def test_soft_cap(self):
        """It refuses what it lacks."""
        with pytest.raises(ValueError, match="it has no function of the logits"):
            self.check_soft_cap()

    def test_sinks(self):
        with pytest.raises(ValueError, match="it has no attention sinks"):
            self.check_sinks(None)

    def test_no_keys(self):
        with pytest.raises(ValueError, match="at least one query and one key"):
            self.check_no_keys()


FEW = "empty rows", "hidden NaN, gradients", "dropout"


@pytest.mark.parametrize("name", FEW)
@pytest.mark.usefixtures("_their_promotion")
def test_xla_keeps_the_contract(name):
    """Empty rows and unseen keys; `test_product` has all other requests."""
    TestXla().check_property(name)


@pytest.mark.usefixtures("_their_promotion")
def test_xla_and_masked_pairs():
    TestXla().check_c_masked_weights_are_exactly_zero(jnp.float32)
    with pytest.raises(ValueError, match="at least one query and one key"):
        TestXla().check_no_keys()


@pytest.mark.full
def test_causal_masks_and_windows_become_options(monkeypatch):
    """A causal mask over equal lengths and a window become options; other masks become arrays."""
    calls = []
    real = jax.nn.dot_product_attention

    def spy(query, key, value, bias, mask, **options):
        calls.append(options | {"mask": mask})
        return real(query, key, value, bias, mask, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", spy)
    query, key, value, _ = arrays(2, 2)
    for mask in (masks.causal(), masks.window(2), masks.causal(2)):
        functional.attention(query, key[:, :5], value[:, :5], mask=mask, implementation="xla")
    assert calls[0]["is_causal"]
    assert calls[1]["local_window_size"] == (2, 0)
    assert calls[0]["mask"] is calls[1]["mask"] is None
    assert calls[2]["mask"].shape == (2, 1, 5, 5)


class Gpu:
    platform, device_kind = "gpu", "NVIDIA H100"


def request(dtype=jnp.bfloat16, dim=64, value_dim=64, num_queries=128, num_keys=128, **options):
    shape = lambda length, d: jax.ShapeDtypeStruct((2, length, 4, d), dtype)
    return make_request(shape(num_queries, dim), shape(num_keys, dim), shape(num_keys, value_dim), **options)


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
        ({"bias": jnp.zeros((1, 4, 128, 128))}, "round the bias from float32 to bfloat16, the dtype of the query"),
        ({"num_queries": 65, "num_keys": 65}, "its gradient needs even lengths, got T = 65 and S = 65"),
        ({"num_keys": 65}, "its gradient needs even lengths, got T = 128 and S = 65"),
        ({"num_queries": 1}, "its gradient needs even lengths, got T = 1 and S = 128"),
        ({"score": jnp.tanh}, "no function of the logits"),
        ({"dropout": functional.Dropout(0.1, jax.random.key(0))}, "by the hash of this library"),
    ],
)
def test_cudnn_refusals_on_its_device(monkeypatch, options, reason):
    """On a GPU cuDNN is chosen for requests that it accepts, and not for others."""
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    assert api.choose(request()) == "cudnn"
    assert api.choose(request(bias=jnp.zeros((1, 4, 128, 128), jnp.bfloat16))) == "cudnn"
    assert reason in api.implementations["cudnn"].refuse(request(**options))
    assert api.choose(request(**options)) == "reference"


def test_cudnn_is_not_the_default_for_a_few_queries(monkeypatch):
    """A beam's cached step would copy the whole cache; by name it works, and `explain_attention` gives the reason."""
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    few = request(num_queries=62, num_keys=512)
    assert api.choose(request(num_queries=64, num_keys=512)) == "cudnn"
    assert api.choose(few) == "reference"
    assert api.implementations["cudnn"].refuse(few) is None
    explanation = functional.explain_attention(few.query, few.key, few.value)
    reason = "it is slow for fewer than 64 queries, got 62"
    assert explanation.declined == {"cudnn": reason}
    assert f"   cudnn        no default: {reason}" in str(explanation)


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ("--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0", "reference"),
        ("--xla_gpu_autotune_level=0 --xla_gpu_exclude_nondeterministic_ops", "reference"),
        ("--xla_gpu_deterministic_ops=false --xla_gpu_autotune_level=0", "cudnn"),
    ],
)
def test_cudnn_is_not_the_default_for_deterministic_programs(monkeypatch, flags, chosen):
    monkeypatch.setattr(jax, "devices", lambda: [Gpu()])
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert api.choose(request()) == chosen
    assert api.implementations["cudnn"].refuse(request()) is None


@pytest.mark.parametrize(
    ("capability", "reason"),
    [("7.0", "it needs compute capability 8.0 or later, got 7.0"), ("8.0", None), ("10.3", None), (None, None)],
)
def test_cudnn_needs_flash_attention(monkeypatch, capability, reason):
    """A V100 has none; a device that does not report its capability is not refused."""
    device = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA", compute_capability=capability)
    monkeypatch.setattr(targets, "devices", lambda: [device])
    assert api.implementations["cudnn"].refuse(request()) == reason


def test_cudnn_must_be_installed(monkeypatch):
    """For a device of this machine; a target that is only described has its own library."""

    class Device(Gpu):
        compute_capability = "9.0"

    here, there = Device(), Device()
    monkeypatch.setattr(jax, "Device", Device)
    monkeypatch.setattr(jax, "devices", lambda: [here])
    for library, reason in ((None, "it needs cuDNN, which is not installed"), (object(), None)):
        monkeypatch.setattr(importlib.import_module("jax._src.lib"), "cuda_versions", library)
        assert api.implementations["cudnn"].refuse(request()) == reason
        with targets.compiling_for([there]):
            assert api.implementations["cudnn"].refuse(request()) is None


@pytest.mark.full
@pytest.mark.parametrize("finite", [True, False])
def test_finite_arrays_are_not_copied(finite):
    """A caller that promises finite values saves copies of keys and values; empty rows are still 0."""
    query, key, value, _ = arrays(2, 2)
    allowed = np.tri(5, 7, -1, dtype=bool)
    mask = masks.dense(allowed, finite=finite)
    given = []

    def kernel(*arrays, **options):
        given.extend(arrays[:3])
        return jax.nn.dot_product_attention(*arrays, implementation="xla", **options)

    def loss(query, key, name):
        output = functional.attention(query, key, value, mask=mask, implementation=name)
        return (output**2).sum(), output

    jax_nn.attention_by(kernel, make_request(query, key, value, mask=mask))
    changed = [
        bool((got[..., : want.shape[3]] != want).any()) for got, want in zip(given, (query, key, value), strict=True)
    ]
    assert changed == [not finite] * 3
    slope = quick(jax.grad(loss, (0, 1), has_aux=True), static_argnums=2)
    (slopes, output), (wanted, expected) = (slope(query, key, name) for name in ("xla", "reference"))
    np.testing.assert_allclose(output, expected, atol=1e-6)
    assert not np.asarray(output[:, 0]).any()
    chex.assert_trees_all_close(slopes, wanted, rtol=0, atol=1e-5)


@pytest.mark.full
def test_xla_keeps_rows_that_mask_and_bias_empty_together():
    """The bias forbids the only key that the mask leaves to the first query: the row is 0."""
    query, key, value, _ = arrays(2, 2)
    query, key, value = (x[:, :5] for x in (query, key, value))
    bias = jnp.where(jnp.arange(5) > 0, 0.0, -jnp.inf).reshape(1, 1, 1, 5)

    def loss(arrays, implementation):
        output = functional.attention(*arrays, mask=masks.causal(), bias=bias, implementation=implementation)
        return (output**2).sum() + output[:, 0].sum(), output

    slope = quick(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (expected, _), wanted = slope((query, key, value), "reference")
    (result, output), slopes = slope((query, key, value), "xla")
    assert not np.asarray(output[:, 0]).any()
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    chex.assert_trees_all_close(slopes, wanted, rtol=0, atol=1e-5)


@pytest.fixture
def _for_a_gpu(monkeypatch):
    """The target is a GPU; single operations also run here, where JAX falls back to another precision."""
    monkeypatch.setattr(targets, "devices", lambda: [Gpu()])


def test_xla_refuses_float16_on_a_cpu(monkeypatch):
    """Compiled, its products have a precision that XLA lacks on a CPU; the refusal says what does."""
    query, key, value, _ = (x.astype(jnp.float16) for x in arrays())
    attend = jax.jit(jax.grad(lambda query: functional.attention(query, key, value, implementation="xla").sum()))
    reason = (
        "'xla' cannot do this: XLA has no products of float16 with sums in float32 on a CPU; use float32 or bfloat16"
    )
    with pytest.raises(ValueError, match=reason):
        attend(query)
    assert api.implementations["xla"].refuse(make_request(query, key, value))
    monkeypatch.setattr(targets, "devices", lambda: [Gpu()])
    assert api.implementations["xla"].refuse(make_request(query, key, value)) is None
    mixed = make_request(query.astype(jnp.bfloat16), key, value)
    assert api.implementations["xla"].refuse(mixed) == "it needs one dtype, got bfloat16, float16 and float16"


@pytest.mark.full
@pytest.mark.usefixtures("_for_a_gpu")
@pytest.mark.parametrize("low", [-np.inf, -1e9])
def test_xla_in_float16_takes_a_bias_beyond_its_range(low):
    query, key, value = (x.astype(jnp.float16) for x in arrays(2, 2)[:3])
    bias = jnp.zeros((1, 1, 5, 7), jnp.float32).at[:, :, 1].set(low)

    def loss(query, implementation):
        return functional.attention(query, key, value, bias=bias, implementation=implementation).sum()

    with jax.numpy_dtype_promotion("standard"):
        result = jax.grad(loss)(query, "xla")
    others = np.arange(5) != 1  # with the clamped bias row 1 keeps differences of logits, but not in the reference
    assert np.isfinite(np.asarray(result)).all()
    np.testing.assert_allclose(result[:, others], jax.grad(loss)(query, "reference")[:, others], atol=2e-2)


@pytest.mark.usefixtures("_for_a_gpu")
def test_a_float32_bias_is_not_rounded():
    """Near 500 bfloat16 has steps of 2; only the inputs and the result are rounded. CPUs cannot do it in float16."""
    query, key, value, _ = (x.astype(jnp.bfloat16) for x in arrays(2, 2))
    added = 500 + bias(1, 2, T, S)
    expected, _ = oracle.attention(query, key, value, bias=added)

    def attend(query, key, value, added):
        return functional.attention(query, key, value, bias=added, implementation="xla").astype(jnp.float32)

    @quick
    def pulled(*arrays):
        output, pull = jax.vjp(attend, *arrays)
        return output, pull(output)[3]

    with jax.numpy_dtype_promotion("standard"):
        output, slope = pulled(query, key, value, added)
    np.testing.assert_allclose(output, expected, atol=0.02)
    *_, wanted = oracle.gradients(query, key, value, output, bias=added)
    np.testing.assert_allclose(slope, wanted.sum(0, keepdims=True), atol=0.05)
    assert slope.dtype == jnp.float32


def test_a_bias_of_few_bits_is_not_cut_off_before_it_is_cast():
    """Half of the smallest float16 is -32,752: keys with lower biases would have equal weights."""
    query, key, value = jnp.ones((1, 1, 1, 4)), jnp.ones((1, 2, 1, 4)), jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    bias = jnp.array([[-40_000.0, -60_000.0]], jnp.float16)
    assert functional.attention(query, key, value, bias=bias, implementation="xla").item() == 1


@pytest.fixture
def tokamax(monkeypatch):
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
    monkeypatch.setattr(
        jax, "devices", lambda: [types.SimpleNamespace(platform="gpu", device_kind="AMD Instinct MI300X")]
    )
    return recorded


def by_tokamax(*inputs, **options):
    return functional.attention(*inputs, implementation="tokamax", **options)


@pytest.mark.full
def test_arguments_of_tokamax(tokamax):
    query, key, value, _ = arrays(2, 2)
    for mask in (None, masks.causal(), masks.window(2), masks.causal(2)):
        by_tokamax(query, key[:, :T], value[:, :T], mask=mask, scale=0.3)
    by_tokamax(query, key, value, score=functional.soft_cap(5.0))
    plain = {"scale": 0.3, "bias": None, "mask": None}
    assert tokamax[:3] == [plain, plain | {"is_causal": True}, plain | {"is_causal": True, "local_window_size": (2, 0)}]
    np.testing.assert_array_equal(tokamax[3]["mask"], np.broadcast_to(np.tri(T, T, 2, dtype=bool), (B, 1, T, T)))
    assert tokamax[4] == {"scale": 0.5, "bias": None, "mask": None, "logits_soft_cap": 5.0}


@pytest.mark.full
def test_tokamax_keeps_the_contract(tokamax):
    """Unseen keys and empty rows are replaced by 0, a bias is an array, and tokamax is never the default."""
    query, key, value, _ = arrays()
    mask = masks.causal(-2) & masks.padding(VALID)
    seen = mask.dense(T, S).any(2)[:, 0, :, None, None]
    options = {"mask": mask, "bias": functional.alibi(4)}
    got = by_tokamax(query.at[:, 0].set(jnp.nan), *(jnp.where(seen, x, jnp.nan) for x in (key, value)), **options)
    expected = functional.attention(query, key, value, implementation="reference", **options)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert not np.asarray(got[:, :2]).any()
    assert tokamax[0]["bias"].shape == (1, 4, T, S)
    assert api.choose(make_request(query, key, value)) == "reference"


CAP, DROPPED = functional.soft_cap(2.0), functional.Dropout(0.1, jax.random.key(0))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"score": jnp.tanh}, "its only function of the logits is soft_cap"),
        ({"score": CAP, "bias": functional.alibi(4)}, "it would cap the sum of logits and bias"),
        ({"dropout": DROPPED}, "it cannot drop weights"),
        ({"num_keys": 0}, "it needs at least one query and one key"),
    ],
)
def test_tokamax_refuses(tokamax, options, reason):
    assert reason in api.implementations["tokamax"].refuse(request(**options))


def test_tokamax_needs_a_package_and_a_device(tokamax, monkeypatch):
    query, key, value, _ = arrays()
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices())
    with pytest.raises(ValueError, match=r"'tokamax' cannot do this: it needs a GPU or a TPU, got cpu \(cpu\)"):
        by_tokamax(query, key, value)
    monkeypatch.setitem(sys.modules, "tokamax", None)
    with pytest.raises(ValueError, match="'tokamax' cannot do this: tokamax is not installed"):
        by_tokamax(query, key, value)
