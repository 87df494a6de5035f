"""What several seeds show, against scipy's tests, simulated trainings and sacrebleu."""

import numpy as np
import pytest
from scipy import stats

from jaxformer.evaluation import scores, seeds

REFERENCES = [
    f"the {word} sees a white house and {word} old trees today" for word in ("cat", "dog", "man", "girl", "bird")
] * 4


@pytest.mark.parametrize("paired", [False, True])
def test_a_difference_is_that_of_scipy(paired):
    first, second = [24.1, 24.9, 24.3, 23.8], [25.0, 25.9, 24.7, 25.2]
    found = seeds.difference(first, second, paired=paired)
    test = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=False)
    low, high = test.confidence_interval()
    np.testing.assert_allclose(found.p_value, test.pvalue, rtol=1e-10)
    np.testing.assert_allclose([found.value - found.half_width, found.value + found.half_width], [low, high])


@pytest.mark.parametrize("paired", [False, True])
def test_the_detectable_difference_is_found_in_four_of_five_cases(paired):
    """Simulated trainings, 5 a group; and these are the seeds that it needs."""
    rng, effect = np.random.default_rng(0), seeds.detectable_effect(5, 5, paired=paired)
    draws = rng.normal(size=(2, 4000, 5)) * np.array(2**-0.5 if paired else 1.0)
    draws[1] += effect
    test = stats.ttest_rel if paired else stats.ttest_ind
    assert np.mean(test(draws[0], draws[1], axis=1).pvalue < 0.05) == pytest.approx(seeds.POWER, abs=0.02)
    assert seeds.seeds_needed(effect * 1.0001, paired=paired) == 5
    assert seeds.seeds_needed(effect * 0.9999, paired=paired) == 6


def test_values_that_do_not_vary():
    found = seeds.difference([2.0, 2.0], [3.0, 3.0])
    assert (found.value, found.half_width, found.seeds) == (1.0, 0.0, 2)
    assert np.isnan(found.p_value)
    assert np.isnan(seeds.difference([24.3] * 3, [24.4] * 3).p_value)  # whose mean is rounded
    assert seeds.difference([24.3] * 3, [24.3] * 3).seeds is None  # no number of them finds a difference of 0
    assert seeds.difference([2.0], [3.0, 4.0]) is None
    with pytest.raises(ValueError, match="equally many, got 3 and 2"):
        seeds.difference([1.0, 2.0, 3.0], [1.0, 2.0], paired=True)


def worse(rate, seed):
    """The references with a share of their words replaced."""
    rng = np.random.default_rng(seed)
    return [" ".join("x" if rng.random() < rate else word for word in text.split()) for text in REFERENCES]


def test_sentences_and_seeds_are_drawn_together():
    first, second = ([worse(rate, seed) for seed in range(3)] for rate in (0.3, 0.2))
    mean = lambda group: np.mean([scores.bleu(said, REFERENCES).value for said in group])
    found = seeds.resampled(first, second, REFERENCES, draws=300)
    assert found.value == pytest.approx(mean(second) - mean(first), abs=1e-9)
    assert found.low < found.value < found.high
    assert found.reversed < 0.05
    back = seeds.resampled(second, first, REFERENCES, draws=300)
    assert (back.value, back.reversed) == (pytest.approx(-found.value), pytest.approx(found.reversed, abs=0.03))
    same = seeds.resampled(first, first, REFERENCES, paired=True, draws=20)
    assert (same.value, same.low, same.high, same.reversed) == (0.0, 0.0, 0.0, 1.0)


def test_seeds_widen_the_interval():
    """Of trainings that differ more than their sentences do; a single training has the interval of its sentences."""
    width = lambda found: found.high - found.low
    baseline, others = [REFERENCES], [worse(rate, 1) for rate in (0.05, 0.5)]
    assert width(seeds.resampled(baseline, others, REFERENCES, draws=200)) > 20
    alone = seeds.resampled(baseline, [others[0]] * 2, REFERENCES, draws=200)
    assert width(seeds.resampled(baseline, others[:1], REFERENCES, draws=200)) == pytest.approx(width(alone), rel=0.3)


def test_the_spread_of_the_mean_over_seeds_is_that_of_the_trainings():
    """With equal sentences, the variance over draws is that of the mean of n trainings, not n - 1 n-ths of it."""
    group = [worse(rate, 1) for rate in (0.05, 0.2, 0.35, 0.5)]
    values = [scores.bleu(said, REFERENCES[:1] * len(said)).value for said in [[said[0]] * 20 for said in group]]
    found = seeds.resampled([[REFERENCES[0]] * 20], [[said[0]] * 20 for said in group], REFERENCES[:1] * 20, draws=4000)
    expected = np.std(values, ddof=1) / 2
    drawn = np.random.default_rng(1).choice(values, (100_000, 3)).mean(1) - 100
    np.testing.assert_allclose([found.low, found.high], np.quantile(drawn, [0.025, 0.975]), atol=1e-6)
    assert np.std(drawn) == pytest.approx(expected, rel=0.02)
