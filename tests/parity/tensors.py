"""Arrays and tensors that the comparisons with PyTorch share."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


def array(*shape, seed=0):
    """Returns normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def leaf(x):
    """Returns a tensor that collects a gradient."""
    return torch.tensor(np.asarray(x), requires_grad=True)


def close(ours, theirs, tolerance=3e-5):
    """Checks that an array and a tensor agree."""
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs
    np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=1e-4)
