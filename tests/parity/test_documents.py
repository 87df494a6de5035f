"""The documents' comparisons with PyTorch's own layers, M6 and N5, and the generator of `experiments.figures`."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.generator import seeded
from jaxformer import functional

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
pytestmark = pytest.mark.parity


def test_the_generator():
    """The numbers of ``torch.manual_seed`` and one ``randn`` after another."""
    torch.manual_seed(42)
    for numbers in seeded(42, (4, 4), (5, 16), (20, 512)):
        np.testing.assert_allclose(numbers, torch.randn(*numbers.shape).numpy(), atol=2e-6)


def test_m6_built_in_comparison():
    """q = k = v = x (1, 5, 8), two heads: output (1, 5, 8), weights (1, 5, 5), the mean over heads; 288 parameters."""
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    output, weights = theirs(x, x, x)
    assert (tuple(output.shape), tuple(weights.shape)) == ((1, 5, 8), (1, 5, 5))
    assert sum(p.numel() for p in theirs.parameters()) == 288


def test_n5_layer_norm_against_the_built_in():
    """The results differ by the epsilons only: 1e-6 in the document's class, 1e-5 in PyTorch's."""
    (x,) = seeded(0, (2, 4, 8))
    x = x * 10 + 5
    theirs = torch.nn.LayerNorm(8)(torch.tensor(np.array(x))).detach().numpy()
    np.testing.assert_allclose(functional.layer_norm(x, jnp.ones(8), epsilon=1e-5), theirs, atol=2e-6)
    assert 0 < np.abs(np.asarray(functional.layer_norm(x, jnp.ones(8), epsilon=1e-6)) - theirs).max() < 1e-5
