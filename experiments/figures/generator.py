"""PyTorch's random numbers without PyTorch, for the documents' seeded listings."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def seeded(seed: int, *shapes: tuple[int, ...]) -> list[jax.Array]:
    """Returns the arrays that ``torch.manual_seed(seed)`` and one ``randn`` per shape give; sizes are multiples of 16.

    A Mersenne Twister gives 24 bits for each number. Box and Muller's method then combines the logarithms of eight
    numbers with the angles of the next eight.
    """
    twister, arrays = np.random.RandomState(seed), []
    for shape in shapes:
        bits = np.asarray(twister.randint(0, 2**32, math.prod(shape), "uint32"))  # type: ignore[call-overload]
        low, high = ((bits & (2**24 - 1)) / np.float32(2**24)).reshape(-1, 2, 8).swapaxes(0, 1)
        radius, angle = np.sqrt(-2 * np.log(1 - low)), 2 * np.pi * high
        normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        arrays.append(jnp.asarray(normal.reshape(shape), jnp.float32))
    return arrays
