"""Tables of positions, shortened and lengthened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional

TABLE = jnp.asarray(np.random.default_rng(2).standard_normal((5, 3)), jnp.float32)


def test_resize_truncate_and_extend_leave_short_inputs_alone():
    resize = functional.resize_positions
    np.testing.assert_array_equal(resize(TABLE, 3, method="truncate"), TABLE[:3])
    longer = resize(TABLE, 8, method="extend")
    np.testing.assert_array_equal(longer[:5], TABLE)
    assert not np.asarray(longer[5:]).any()
    drawn = resize(TABLE, 4000, method="extend", key=jax.random.key(0))
    np.testing.assert_array_equal(drawn[:5], TABLE)
    assert float(drawn[5:].std()) == pytest.approx(float(TABLE.std()), rel=0.05)


def test_resize_interpolate_keeps_ends_and_lines():
    longer = functional.resize_positions(TABLE, 9, method="interpolate")
    np.testing.assert_allclose(longer[::2], TABLE, atol=1e-6)
    np.testing.assert_allclose(longer[1::2], (TABLE[1:] + TABLE[:-1]) / 2, atol=1e-6)
    shorter = functional.resize_positions(TABLE, 3, method="interpolate")
    np.testing.assert_allclose(shorter, TABLE[::2], atol=1e-6)
    np.testing.assert_array_equal(functional.resize_positions(TABLE, 5, method="interpolate"), TABLE)
    one = functional.resize_positions(TABLE[:1], 4, method="interpolate")
    np.testing.assert_allclose(one, jnp.broadcast_to(TABLE[:1], (4, 3)))


@pytest.mark.parametrize(("length", "method"), [(6, "truncate"), (4, "extend"), (0, "interpolate")])
def test_resize_refuses_the_wrong_direction(length, method):
    with pytest.raises(ValueError, match=f"cannot {method} a table of 5 positions to {length}"):
        functional.resize_positions(TABLE, length, method=method)
