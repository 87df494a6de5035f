"""Functions that work outside of `jax.jit` only."""

import jax.numpy as jnp

from jaxformer import conformance
from tests.conformance import wrong


def test_a_function_that_cannot_be_jitted_is_called_outside():
    """Only the property "jit" fails: its other results are right."""

    def attend(query, key, value, *, mask=None):
        if not jnp.isfinite(query).all():
            raise ValueError("NaN")
        return wrong.attend_in_jax(query, key, value, mask=mask)

    report = conformance.check(attend, only=["values", "mask", "jit"], dtypes=("float32",), shrink=False)
    assert report.of("failed") == ["jit"], str(report)
    assert report["jit"].finding.startswith("raises TracerBoolConversionError")
    alone = conformance.check(attend, only=["gradients"], dtypes=("float32",), shrink=False)
    assert alone.of("passed") == ["gradients"], str(alone)
