"""The dispatcher chooses an implementation, or calls the one that is named."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from tests.contracts.attention import arrays


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
def test_long_sequences_go_block_by_block(monkeypatch, platform, lengths, expected):
    """Blocks are chosen at shorter lengths on a CPU, whose cache holds them; cuDNN does not accept float32."""
    device = types.SimpleNamespace(platform=platform, device_kind="some NVIDIA")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    query, key = (jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32) for length in lengths)
    assert api.choose(make_request(query, key, key)) == expected
