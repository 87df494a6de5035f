"""The real tokamax keeps the contract on CPU, where it chooses plain XLA.

`tests/functional/attention/vendor/test_jax_nn.py` has the tests of its arguments. tokamax needs Python 3.12 and is not
a dependency of this library: pip install tokamax.
"""

import jax
import numpy as np
import pytest

pytest.importorskip("tokamax")

from jaxformer import functional, masks
from jaxformer.functional.attention import api
from jaxformer.functional.attention.vendor import jax_nn
from tests.contracts.attention import AttentionContract, arrays, settings
from tests.contracts.biases import BiasContract

pytestmark = pytest.mark.parity


def refused(reason):
    return pytest.raises(ValueError, match=f"'tokamax' cannot do this: {reason}")


class TestTokamax(AttentionContract, BiasContract):
    implementation = "tokamax"
    refuses = {"dropout": "it cannot drop weights by the hash of this library"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _on_any_device(self, monkeypatch):
        """Sets the dtype promotion that tokamax needs, as for `jax.nn`."""
        monkeypatch.setitem(
            api.implementations, "tokamax", api.Implementation(jax_nn.tokamax_attention, jax_nn.refuse_tokamax_anywhere)
        )
        with settings(jax_numpy_dtype_promotion="standard", jax_numpy_rank_promotion="allow"):
            yield

    def test_sinks(self):
        with refused("it has no attention sinks"):
            self.check_sinks(None)

    def test_no_keys(self):
        with refused("it needs at least one query and one key"):
            self.check_no_keys()


@pytest.mark.parametrize("mask", [masks.causal(), masks.window(2)])
def test_causal_masks_and_windows_become_options(mask, monkeypatch):
    """A causal mask and a window become options of tokamax."""
    query, key, value, _ = arrays()
    inputs = query, key[:, :5], value[:, :5]
    monkeypatch.setitem(
        api.implementations, "tokamax", api.Implementation(jax_nn.tokamax_attention, jax_nn.refuse_tokamax_anywhere)
    )
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        got = functional.attention(*inputs, mask=mask, implementation="tokamax")
    np.testing.assert_allclose(got, functional.attention(*inputs, mask=mask, implementation="reference"), atol=1e-6)
