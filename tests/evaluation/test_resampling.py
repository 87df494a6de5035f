"""Intervals by bootstrap resampling: against sacrebleu, and against the normal distribution."""

import numpy as np
import pytest
import sacrebleu

from jaxformer.evaluation import resampling
from jaxformer.evaluation.resampling import Sample
from jaxformer.evaluation.scores import bleu, chrf, moses_bleu, paired_bootstrap, rouge
from jaxformer.evaluation.spans import span_scores

WORDS = "a dog runs through the big red house and sees an old man who sleeps".split()


def sentences(seed, number=60):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(4, 12))) for _ in range(number)]


def noisy(texts, share, seed=5):
    """The texts, some of whose words are replaced."""
    random = np.random.default_rng(seed)
    return [" ".join(x if random.random() > share else "cat" for x in text.split()) for text in texts]


MEANT = sentences(0)
GOOD, BAD = noisy(MEANT, 0.2), noisy(MEANT, 0.4, seed=6)
LABELS = [["B-PER", "I-PER", "O"], ["O", "B-LOC", "O"]] * 8
GUESSES = [["B-PER", "I-PER", "B-LOC"], ["O", "O", "B-LOC"]] * 8
SCORES = [
    bleu(GOOD, MEANT),
    bleu(GOOD, [[text, *([BAD[i]] * (i % 2))] for i, text in enumerate(MEANT)]),
    chrf(GOOD, MEANT),
    moses_bleu(GOOD, MEANT, language="en"),
    *rouge(GOOD, MEANT),
    *span_scores(LABELS, GUESSES),
]


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
def test_the_sample_of_a_score_gives_the_score(score):
    assert score.sample.score() == pytest.approx(score.value, rel=1e-9)


def test_some_examples_have_the_score_of_them_alone():
    chosen = np.arange(3, 40, 2)
    alone = chrf([GOOD[i] for i in chosen], [MEANT[i] for i in chosen])
    assert chrf(GOOD, MEANT).sample.score(chosen) == pytest.approx(alone.value)


@pytest.mark.parametrize(("ours", "theirs"), [(bleu, sacrebleu.BLEU()), (chrf, sacrebleu.CHRF())])
def test_the_interval_is_that_of_sacrebleu(ours, theirs):
    """Its resamples are others, so that the ends differ a little."""
    found = theirs.corpus_score(GOOD, [MEANT], n_bootstrap=1000)
    low, high = resampling.interval(ours(GOOD, MEANT).sample)
    assert (high - low) / 2 == pytest.approx(float(found._ci), rel=0.15)
    assert (low + high) / 2 == pytest.approx(float(found._mean), abs=0.15 * float(found._ci))


def test_the_interval_of_a_mean():
    values = np.random.default_rng(0).normal(3, 2, 400)
    low, high = resampling.interval(Sample.mean(values, 1))
    error = 1.96 * values.std() / 20
    np.testing.assert_allclose([low, high], values.mean() + np.array([-error, error]), atol=0.15 * error)


def test_a_few_examples_have_no_interval():
    """Ten or more have one."""
    sample = bleu(GOOD, MEANT).sample
    assert resampling.interval(sample, np.arange(9)) is None
    assert resampling.interval(sample, np.arange(10)) is not None
    few = bleu(GOOD[:9], MEANT[:9]).sample
    assert resampling.difference(few, few) is None


def test_a_difference_is_of_the_system_minus_the_baseline():
    """It agrees with sacrebleu's test, also in a case that is not clear."""
    close = noisy(MEANT, 0.24, seed=9)
    for system, baseline in ((GOOD, BAD), (BAD, GOOD), (GOOD, close)):
        found = resampling.difference(bleu(system, MEANT).sample, bleu(baseline, MEANT).sample)
        expected = paired_bootstrap(baseline, system, MEANT)
        assert found.value == pytest.approx(expected.system.value - expected.baseline.value)
        assert found.low < found.value < found.high
        assert found.p_value == pytest.approx(expected.p_value, abs=0.05)
    better = resampling.difference(bleu(GOOD, MEANT).sample, bleu(BAD, MEANT).sample)
    assert better.low > 0


def test_pairs_are_drawn_together():
    """The difference of two systems with the same errors varies less than either."""
    ours, theirs = (Sample.mean(np.random.default_rng(0).normal(size=200) + shift, 1) for shift in (0.1, 0))
    found = resampling.difference(ours, theirs)
    assert found.high - found.low < 1e-6
    assert resampling.difference(ours, ours).p_value == 1
    with pytest.raises(ValueError, match="200 examples of one system, but 100 of the other"):
        resampling.difference(ours, Sample.mean(np.ones(100)))
