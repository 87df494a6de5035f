"""The contract that every implementation of attention keeps.

A new implementation is tested by a subclass::

    class TestBlockwise(AttentionContract):
        implementation = "blockwise"

If an implementation refuses a request, its class overrides the test and asserts the refusal of its ``check_`` method.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import functional, masks
from tests.contracts import numpy_attention
from tests.selection import first

B, T, S, H = 2, 5, 7, 4
VALID = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]], bool)  # [B, S]


def arrays(num_heads=4, num_kv_heads=2, value_dim=3, seed=0, dtype=jnp.float32, batch=B):
    """Returns query, key, value and an upstream gradient."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = (
        (batch, T, num_heads, H),
        (batch, S, num_kv_heads, H),
        (batch, S, num_kv_heads, value_dim),
        (batch, T, num_heads, value_dim),
    )
    return tuple(jax.device_put(draw(shape).astype(dtype)) for shape in shapes)


def coin(*shape):
    """Returns a Boolean mask with about a third of the pairs forbidden and one row empty."""
    array = np.random.default_rng(sum(shape)).random(shape) > 0.35
    array[..., 0, :] = shape[-2] == 1
    return array


def bias(*shape):
    return jax.device_put(np.random.default_rng(7).standard_normal(shape).astype(np.float32))


def with_rows(array, rows, fill):
    """A copy with these rows, indices of leading dimensions, filled."""
    copy = np.array(array)
    for row in rows:
        copy[row] = fill
    return jax.device_put(copy)


CASES = {
    # name: (heads, key heads, value dim), mask, options; the broadcast shapes of mask and bias are each met once
    "plain": ((4, 4, 4), None, {}),
    "grouped": ((4, 2, 3), None, {"scale": 0.7}),
    "multi-query": ((4, 1, 6), masks.causal(), {}),
    "one head": ((1, 1, 4), coin(T, S), {"bias": bias(1, 1, T, S)}),
    "mask [1, T, S]": ((4, 2, 4), coin(1, T, S), {"bias": bias(B, 1, 1, S)}),
    "mask [B, T, S]": ((4, 4, 3), coin(B, T, S), {"bias": bias(1, 4, T, 1), "scale": 1.0}),
    "mask [B, N, T, S]": ((4, 2, 4), coin(B, 4, T, S), {"bias": bias(B, 4, T, S)}),
    "mask [1, N, T, S]": ((4, 2, 4), coin(1, 4, T, S), {"bias": bias(1, 4, 1, 1)}),
    "mask [B, 1, 1, S]": ((4, 2, 4), VALID[:, None, None], {"bias": bias(1, 1, 1, 1)}),
    "mask [B, N, T, 1]": ((4, 2, 4), coin(B, 4, 1, T)[:, :, 0, :, None], {}),
    "padding": ((4, 2, 4), masks.padding(VALID), {"bias": bias(B, 4, 1, S)}),
    "causal and padding": ((2, 2, 4), masks.causal(2) & masks.padding(VALID), {}),
    "window, dropout": ((4, 2, 3), masks.window(1, 1), {"dropout": 0.4}),
    "dropout, bias": ((4, 4, 4), coin(B, 1, T, S), {"dropout": 0.2, "bias": bias(B, 4, T, S)}),
}
FEW = (
    *("grouped", "multi-query", "mask [1, T, S]", "mask [B, N, T, S]"),
    *("padding", "causal and padding", "window, dropout", "dropout, bias"),
)
FOUR_ROWS = np.concatenate([VALID, VALID[::-1]])
PLACED = {"no mask": None, "causal": masks.causal(), "padding": masks.padding(FOUR_ROWS)}
FILLS = [
    pytest.param(np.nan, id="nan"),
    pytest.param(np.inf, id="inf", marks=pytest.mark.full),
    pytest.param(-np.inf, id="minus-inf", marks=pytest.mark.full),
]
DTYPES = [pytest.param(jnp.float32, id="float32"), pytest.param(jnp.bfloat16, id="bfloat16")]


QUICK = {"xla_backend_optimization_level": 0}
"""These programs run for a moment and take long to compile."""


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def _attend(contract, query, key, value, mask=None):
    return contract.attend(query, key, value, mask=mask)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("rate", "scale"), compiler_options=QUICK)
def _attend_and_pull(contract, query, key, value, upstream, bias, mask, dropout_key, *, rate, scale):
    dropout = None if dropout_key is None else functional.Dropout(rate, dropout_key)
    call = lambda q, k, v, b: contract.attend(q, k, v, mask=mask, bias=b, dropout=dropout, scale=scale)
    output, pull = jax.vjp(call, query, key, value, bias)
    return output, pull(upstream)


class AttentionContract:
    implementation: str | None = None
    tolerance = 3e-6

    @classmethod
    def attend(cls, query, key, value, **options):
        return functional.attention(query, key, value, implementation=cls.implementation, **options)

    @classmethod
    def on(cls, grid):
        """Returns the class whose `attend` runs where the mesh axes "data" and "tensor" shard the batch and the heads.

        The mesh may also shard the length along "context".
        """
        return type(cls.__name__, (cls,), {"mesh": grid, "options": {"batch": "data", "heads": "tensor"}})

    def weights(self, query, key, *, mask=None):
        """Returns the weights of any implementation, ``[B, T, N, S]``: its output for values that are unit vectors."""
        eye = np.broadcast_to(np.eye(key.shape[1], dtype=key.dtype)[None, :, None], (*key.shape[:3], key.shape[1]))
        return _attend(type(self), query, key, eye, mask)

    def gradients(self, *inputs, mask=None, bias=None, dropout=None, scale=None):
        """Returns the output, and the gradients with respect to query, key, value and bias."""
        rate, dropout_key = (0.0, None) if dropout is None else dropout
        return _attend_and_pull(type(self), *inputs, bias, mask, dropout_key, rate=rate, scale=scale)

    @staticmethod
    def request(name, dtype=jnp.float32):
        """Returns the arrays, the library's options and the oracle's options of a case."""
        (num_heads, num_kv_heads, value_dim), mask, options = CASES[name]
        inputs = arrays(num_heads, num_kv_heads, value_dim, dtype=dtype)
        theirs = dict(options)
        if mask is not None:
            theirs["allowed"] = np.asarray(masks.as_mask(mask).dense(T, S))
        ours = {"mask": None if mask is None else masks.as_mask(mask), **options}
        if rate := theirs.pop("dropout", 0.0):
            key = jax.random.key(11)
            ours["dropout"] = functional.Dropout(rate, key)
            theirs |= {"rate": rate, "kept": numpy_attention.kept(jax.random.key_data(key), rate, (B, num_heads, T, S))}
        return inputs, ours, theirs

    @pytest.mark.parametrize("name", first(CASES, *FEW))
    def test_agrees_with_numpy(self, name):
        self.check_agrees_with_numpy(name)

    def check_agrees_with_numpy(self, name):
        """Output and all four gradients agree with an independent float64 implementation."""
        inputs, ours, theirs = self.request(name)
        output, grads = self.gradients(*inputs, **ours)
        expected, _ = numpy_attention.attention(*inputs[:3], **theirs)
        np.testing.assert_allclose(output, expected, atol=self.tolerance, rtol=0)
        *expected, d_bias = numpy_attention.gradients(*inputs, **theirs)
        chex.assert_trees_all_close(grads[:3], tuple(expected), atol=4 * self.tolerance, rtol=0)
        if "bias" in ours:
            spread = tuple(dim for dim, size in enumerate(ours["bias"].shape) if size == 1)
            np.testing.assert_allclose(grads[3], d_bias.sum(spread, keepdims=True), atol=8 * self.tolerance, rtol=0)

    @pytest.mark.parametrize("name", first(["grouped", "mask [B, N, T, S]", "dropout, bias"], "dropout, bias"))
    def test_bfloat16(self, name):
        self.check_bfloat16(name)

    def check_bfloat16(self, name):
        """Input and output are bfloat16 and the softmax is float32: within two roundings of the exact result."""
        inputs, ours, theirs = self.request(name, jnp.bfloat16)
        output, grads = self.gradients(*inputs, **ours)
        assert output.dtype == jnp.bfloat16
        assert all(g.dtype == jnp.bfloat16 for g in grads[:3])
        expected, _ = numpy_attention.attention(*inputs[:3], **theirs)
        np.testing.assert_allclose(np.asarray(output, np.float64), expected, atol=0.03, rtol=0.01)

    def test_rows_sum_to_one(self):
        query, key, _, _ = arrays()
        weights = np.asarray(self.weights(query, key, mask=masks.padding(VALID)))
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
        assert (weights >= 0).all()

    def test_large_logits(self):
        """Logits of a thousand neither overflow nor lose the largest."""
        query, key, value = map(np.asarray, arrays(2, 2)[:3])
        output = _attend(type(self), 400 * query, 400 * key, value)
        expected, _ = numpy_attention.attention(400 * query, 400 * key, value)
        np.testing.assert_allclose(output, expected, atol=1e-4)

    def test_minus_infinite_bias(self):
        self.check_minus_infinite_bias()

    def check_minus_infinite_bias(self):
        """An additive mask: pairs at minus infinity have weight 0, rows of it are empty, gradients stay finite."""
        allowed = coin(B, 4, T, S)
        inputs = arrays()
        additive = masks.dense(allowed).additive(T, S)
        output, grads = self.gradients(*inputs, bias=additive)
        expected, _ = numpy_attention.attention(*inputs[:3], allowed=allowed)
        np.testing.assert_allclose(output, expected, atol=self.tolerance)
        assert all(np.isfinite(x).all() for x in grads)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("fill", FILLS)
    def test_a_empty_query_rows(self, fill, dtype):
        self.check_a_empty_query_rows(fill, dtype)

    def check_a_empty_query_rows(self, fill, dtype):
        """(a): an empty query gets output 0, weights 0 and gradient 0 for any contents; other queries do not change."""
        allowed = np.ones((B, 4, T, S), bool)
        allowed[0, :, 1], allowed[1, 2, 3] = False, False
        query, key, value, upstream = arrays(dtype=dtype)
        clean, clean_grads = self.gradients(query, key, value, upstream, mask=masks.dense(allowed))
        holes = with_rows(query, [(0, 1), (1, 3, 2)], fill)
        output, grads = self.gradients(holes, key, value, upstream, mask=masks.dense(allowed))
        for empty in ((0, 1), (1, 3, 2)):
            assert not np.asarray(output)[empty].any()
            assert not np.asarray(grads[0])[empty].any()
        weights = np.asarray(self.weights(holes, key, mask=masks.dense(allowed))).swapaxes(1, 2)
        assert not weights[~allowed.any(-1)].any()
        assert not self.differences((output, *grads[:3]), (clean, *clean_grads[:3]))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("fill", FILLS)
    @pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
    def test_b_unseen_keys_are_inert(self, fill, dtype, with_bias):
        self.check_b_unseen_keys_are_inert(fill, dtype, with_bias)

    def check_b_unseen_keys_are_inert(self, fill, dtype, with_bias):
        """(b): the contents of an unseen key and value change no bit of other results, and their own gradient is 0."""
        mask = masks.padding(VALID) & masks.causal(S - T)
        options = {"bias": bias(1, 4, T, S)} if with_bias else {}
        query, key, value, upstream = arrays(dtype=dtype)
        clean = self.gradients(query, key, value, upstream, mask=mask, **options)
        dirty_key, dirty_value = (with_rows(x, [~VALID], fill) for x in (key, value))
        output, grads = self.gradients(query, dirty_key, dirty_value, upstream, mask=mask, **options)
        same = slice(None if with_bias else 3)
        assert not self.differences((output, *grads[same]), (clean[0], *clean[1][same]))
        assert not np.asarray(grads[1])[~VALID].any()
        assert not np.asarray(grads[2])[~VALID].any()
        before, after = (np.asarray(self.weights(query, k, mask=mask)) for k in (key, dirty_key))
        np.testing.assert_array_equal(before, after)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_c_masked_weights_are_exactly_zero(self, dtype):
        self.check_c_masked_weights_are_exactly_zero(dtype)

    def check_c_masked_weights_are_exactly_zero(self, dtype):
        """(c): masked weights are exactly 0, also where the masked logit is by far the largest."""
        query, key, value, upstream = arrays(dtype=dtype)
        allowed = coin(B, 4, T, S)
        loud = with_rows(key, [np.s_[:, 3]], np.asarray(key)[:, 3] * 100)
        weights = np.asarray(self.weights(query, loud, mask=masks.dense(allowed))).swapaxes(1, 2)
        assert not weights[~allowed].any()
        assert (weights[allowed.any(-1)].sum(-1) > 0.9).all()
        allowed[:, :, :, 3] = False  # now no query attends to the loud key: no gradient reaches it
        _, grads = self.gradients(query, loud, value, upstream, mask=masks.dense(allowed))
        assert not np.asarray(grads[1])[:, 3].any()
        assert not np.asarray(grads[2])[:, 3].any()

    def test_nan_upstream_stays_out_of_empty_rows(self):
        self.check_nan_upstream_stays_out_of_empty_rows()

    def check_nan_upstream_stays_out_of_empty_rows(self):
        """An empty query has output 0 and gradient 0, even if a key that other queries see holds NaN."""
        allowed = np.ones((1, 1, T, S), bool)
        allowed[..., 2, :] = False
        query, key, value, upstream = arrays()
        value = with_rows(value, [np.s_[:, 0]], np.nan)
        output, grads = self.gradients(query, key, value, upstream, mask=masks.dense(allowed))
        assert np.isnan(np.asarray(output)[:, 1]).all()
        assert not np.asarray(output)[:, 2].any()
        assert not np.asarray(grads[0])[:, 2].any()

    def test_transformations_compose(self):
        """The vmap of a jitted gradient equals the loop over it."""
        query, key, value, upstream = (np.stack([x, 2 * x, -x]) for x in map(np.asarray, arrays()))
        mask = masks.Padding(np.stack([VALID, ~VALID, VALID]))

        def one(query, key, value, upstream, mask):
            loss = lambda q, k, v: jnp.sum(self.attend(q, k, v, mask=mask & masks.causal(2)) * upstream)
            return jax.value_and_grad(loss, argnums=(0, 1, 2))(query, key, value)

        quick = functools.partial(jax.jit, compiler_options=QUICK)
        together, each = quick(jax.vmap(jax.jit(one)))(query, key, value, upstream, mask), quick(one)
        for i in range(3):
            pick = functools.partial(jax.tree.map, lambda x: np.asarray(x)[i])  # noqa: B023
            alone = each(*(pick(x) for x in (query, key, value, upstream, mask)))
            chex.assert_trees_all_close(alone, pick(together), rtol=0, atol=1e-5)

    @pytest.mark.parametrize("name", first(PLACED, "padding"))
    def test_eight_devices(self, name):
        """Four devices shard the batch and two the heads, without communication; results are placed like the inputs."""
        grid = Mesh(np.array(jax.devices()).reshape(4, 1, 2), ("data", "context", "tensor"))
        layout = NamedSharding(grid, PartitionSpec("data", None, "tensor"))
        inputs, mask = arrays(batch=4), PLACED[name]
        expected, expected_slopes = self.gradients(*inputs, mask=mask)
        everywhere = jax.device_put(mask, NamedSharding(grid, PartitionSpec()))
        placed = *jax.device_put(inputs, layout), None, everywhere, None
        program = _attend_and_pull.lower(self.on(grid), *placed, rate=0.0, scale=None).compile()
        text = program.as_text() or ""
        for told in ("all-gather", "all-reduce", "all-to-all"):
            assert told not in text
        output, slopes = program(*placed)
        for got, want in zip((output, *slopes[:3]), (expected, *expected_slopes[:3]), strict=True):
            assert got.sharding.is_equivalent_to(layout, got.ndim), got.sharding
            np.testing.assert_allclose(got, want, atol=4 * self.tolerance, rtol=0)

    def test_no_keys(self):
        self.check_no_keys()

    def check_no_keys(self):
        """Attention over no keys is 0."""
        query, key, value = map(np.asarray, arrays()[:3])
        assert not np.asarray(_attend(type(self), query, key[:, :0], value[:, :0])).any()

    def test_one_query_one_key(self):
        query, key, value = (np.asarray(x)[:, :1] for x in arrays(2, 2)[:3])
        np.testing.assert_array_equal(_attend(type(self), query, key, value), value)

    @staticmethod
    def differences(got, expected):
        """Returns the indices of the arrays that are not equal bit for bit."""
        return [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if not np.array_equal(a, b)]
