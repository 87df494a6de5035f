"""Learning rates, against their formulas."""

import numpy as np
import pytest

from jaxformer.training import schedules


def test_t_inverse_square_root_schedule():
    """T (Vaswani et al. 2017, eq. 3): d ** -.5 * min(t ** -.5, t * w ** -1.5), here with t counted from 1."""
    peak = schedules.noam_peak(512, 4000)
    np.testing.assert_allclose(peak, 6.987712e-4, rtol=1e-5)
    rate = schedules.inverse_sqrt(peak, 4000)
    for t in (1, 100, 4000, 16_000, 100_000):
        np.testing.assert_allclose(rate(t - 1), 512**-0.5 * min(t**-0.5, t * 4000**-1.5), rtol=1e-5)


def test_other_schedules():
    np.testing.assert_allclose(
        [schedules.linear(1.0, 10, 110, end=0.1)(step) for step in (4, 9, 59, 109, 500)],
        [0.5, 1.0, 0.55, 0.1, 0.1],
        atol=1e-6,
    )
    cosine = schedules.cosine(1.0, 10, 110, end=0.1)
    np.testing.assert_allclose(
        [cosine(4), cosine(9), cosine(59), cosine(109), cosine(500)], [0.5, 1.0, 0.55, 0.1, 0.1], atol=1e-6
    )
    np.testing.assert_allclose([schedules.constant(2.0, 4)(0), schedules.constant(2.0, 4)(9)], [0.5, 2.0])
    with pytest.raises(ValueError, match="steps=5, warmup_steps=5"):
        schedules.cosine(1.0, 5, 5)
    with pytest.raises(ValueError, match="cooldown must last between 1 and all 10 steps of the training, got 11"):
        schedules.cooldown(cosine, 10, 11)
