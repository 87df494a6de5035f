"""The contract that every implementation of attention keeps: `jaxformer.conformance`, and what only ours promise.

A new implementation is tested by a subclass::

    class TestBlockwise(AttentionContract):
        implementation = "blockwise"

What an implementation refuses is in `refuses`, with the reason; it is then not offered, and nothing else may be.
"""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer import conformance, functional, masks
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
}
FOUR_ROWS = np.concatenate([VALID, VALID[::-1]])
PLACED = {"no mask": None, "causal": masks.causal(), "padding": masks.padding(FOUR_ROWS)}
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


@contextlib.contextmanager
def settings(**values):
    """Settings of JAX for all threads: a property runs in one of its own."""
    before = {name: getattr(jax.config, name) for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


NAMES = [name for name in conformance.PROPERTIES if name != "inputs kept"]
FEW = (
    *("values", "large logits", "empty rows", "hidden NaN", "gradients"),
    *("empty rows, gradients", "hidden NaN, gradients"),
)
"""The properties that `make test` checks of the reference; `test_product` has masks, biases and dropout."""


class AttentionContract:
    implementation: str | None = None
    limits = {"float32": 3e-6}  # noqa: RUF012
    refuses: dict[str, str] = {}  # noqa: RUF012
    """The reason for each property that an implementation refuses, as a pattern."""
    partly: dict[str, str] = {}  # noqa: RUF012
    """What the kit notes of a property that an implementation has, except in the cases that it refuses; patterns."""
    lacks: dict[str, str] = {}  # noqa: RUF012
    """What the kit finds of each property that an implementation has not, as the library says."""

    @classmethod
    def attend(cls, query, key, value, **options):
        return functional.attention(query, key, value, implementation=cls.implementation, **options)

    @classmethod
    def on(cls, grid):
        """Returns the class whose `attend` runs where the mesh axes "data" and "tensor" shard the batch and the heads.

        The mesh may also shard the length along "context".
        """
        return type(cls.__name__, (cls,), {"mesh": grid, "options": {"batch": "data", "heads": "tensor"}})

    @pytest.mark.parametrize("name", first(NAMES, *FEW))
    def test_has_property(self, name):
        self.check_property(name)

    def check_property(self, name):
        """Checks a property of the kit; to the bit where the kit says so, and with the reason where it is refused."""
        (row,) = conformance.check(conformance.LibraryAdapter(self.answered), only=[name], limits=self.limits).rows
        wanted = "not offered" if name in self.refuses else "failed" if name in self.lacks else "passed"
        assert row.status == wanted, f"{row.finding}\n{row.code}"
        assert re.fullmatch((self.refuses | self.lacks | self.partly).get(name, ""), row.finding), row

    @classmethod
    def answered(cls, query, key, value, **options):
        """Calls the implementation; a refusal in the words of the library is what the kit calls not offered."""
        try:
            return cls.attend(query, key, value, **options)
        except ValueError as error:
            found = re.match(r"(?:attention implementation '\w+'|ring attention) cannot do this: (.*)", str(error))
            if found is None:
                raise
            raise conformance.NotOfferedError(found[1]) from None

    def weights(self, query, key, *, mask=None):
        """Returns the weights of any implementation, ``[B, T, N, S]``: its output for values that are unit vectors."""
        eye = np.broadcast_to(np.eye(key.shape[1], dtype=key.dtype)[None, :, None], (*key.shape[:3], key.shape[1]))
        return _attend(type(self), query, key, eye, mask)

    def gradients(self, *inputs, mask=None, bias=None, dropout=None, scale=None):
        """Returns the output, and the gradients with respect to query, key, value and bias."""
        rate, dropout_key = (0.0, None) if dropout is None else dropout
        return _attend_and_pull(type(self), *inputs, bias, mask, dropout_key, rate=rate, scale=scale)

    @staticmethod
    def request(name):
        """Returns the arrays, the library's options and the oracle's options of a case."""
        (num_heads, num_kv_heads, value_dim), mask, options = CASES[name]
        inputs = arrays(num_heads, num_kv_heads, value_dim)
        theirs = dict(options)
        if mask is not None:
            theirs["allowed"] = np.asarray(masks.as_mask(mask).dense(T, S))
        ours = {"mask": None if mask is None else masks.as_mask(mask), **options}
        return inputs, ours, theirs

    @pytest.mark.parametrize("dtype", first([jnp.float32, jnp.bfloat16], jnp.float32))
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
            np.testing.assert_allclose(got, want, atol=4 * self.limits["float32"], rtol=0)

    def test_no_keys(self):
        self.check_no_keys()

    def check_no_keys(self):
        """Attention over no keys is 0."""
        query, key, value = map(np.asarray, arrays()[:3])
        assert not np.asarray(_attend(type(self), query, key[:, :0], value[:, :0])).any()
