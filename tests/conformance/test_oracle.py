"""The gradients that the kit trusts are finite differences of the output that it trusts."""

import numpy as np

from jaxformer.conformance import oracle


def test_gradients_are_finite_differences():
    draw = np.random.default_rng(3).standard_normal
    inputs = [draw(shape) for shape in ((2, 5, 2, 4), (2, 7, 1, 4), (2, 7, 1, 3), (2, 5, 2, 3))]
    allowed = draw((1, 1, 5, 7)) > -0.5
    allowed[..., 2, :] = False
    options = {"allowed": allowed, "bias": draw((2, 2, 1, 7))}
    grads = oracle.gradients(*inputs, **options)
    loss = lambda q, k, v, bias: np.sum(oracle.attention(q, k, v, **(options | {"bias": bias}))[0] * inputs[3])
    point = [*inputs[:3], np.broadcast_to(options["bias"], (2, 2, 5, 7))]
    for i, gradient in enumerate(grads):
        step = 1e-6 * draw(point[i].shape)
        moved = [[x + sign * step if i == j else x for j, x in enumerate(point)] for sign in (1, -1)]
        rise = (loss(*moved[0]) - loss(*moved[1])) / 2
        np.testing.assert_allclose(np.sum(gradient * step), rise, rtol=1e-6)


def test_a_scale_of_0_is_one():
    ones, keys = np.ones((1, 3, 1, 4)), np.arange(12.0).reshape(1, 3, 1, 4)
    d_query, d_key, d_value, _ = oracle.gradients(ones, keys, keys, ones, scale=0.0)
    assert not d_query.any()
    assert not d_key.any()
    np.testing.assert_allclose(d_value, 1)
