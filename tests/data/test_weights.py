"""The weights of corpora by step."""

import numpy as np
import pytest

from jaxformer.data.weights import WeightConfig, check_weights, make_phases
from jaxformer.errors import ConfigError


def test_phases_follow_first_and_last_steps_and_other_weights():
    corpora = {
        "a": WeightConfig(weight=1.0, reweighted="101=3, 201=0"),
        "b": WeightConfig(weight=2, first_step=51, last_step=150),
        "c": WeightConfig(weight=1.0),
    }
    phases = make_phases(corpora)
    assert phases.starts == (0, 50, 100, 150, 200)
    assert phases.weights == ((1, 0, 1), (1, 2, 1), (3, 2, 1), (3, 0, 1), (0, 0, 1))
    assert phases.before(100).starts == (0, 50)


@pytest.mark.parametrize(
    ("temperature", "shares"), [(1, [1 / 101, 100 / 101]), (2, [1 / 11, 10 / 11]), (1e9, [0.5] * 2)]
)
def test_a_temperature_makes_shares_of_sizes_more_equal(temperature, shares):
    corpora = {"small": WeightConfig(), "large": WeightConfig()}
    found = make_phases(corpora, sizes=[30, 3000], temperature=temperature).shares
    np.testing.assert_allclose(found, [shares], rtol=1e-6)


ONE = WeightConfig(weight=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightConfig(weight=-1.0), "weight must be from 0 and finite in float32, got -1.0"),
        (lambda: WeightConfig(weight=float("nan")), "weight must be from 0 and finite in float32, got nan"),
        (lambda: WeightConfig(weight=1.0, reweighted="9=-2"), "weight must be from 0 and finite in float32, got -2.0"),
        (lambda: WeightConfig(weight=1.0, reweighted="9=1e308"), "finite in float32, got 1e.308"),
        (lambda: WeightConfig(weight=0.0), "weight 0 leaves the corpus unused at every step"),
        (lambda: WeightConfig(reweighted="9=2"), "reweighted 9=2 needs a weight before it"),
        (lambda: WeightConfig(weight=1.0, reweighted="9:2"), "must be STEP=WEIGHT with commas between, got '9:2'"),
        (lambda: WeightConfig(weight=1.0, reweighted="9=x"), "must be STEP=WEIGHT with commas between, got '9=x'"),
        (lambda: WeightConfig(weight=1.0, reweighted="9=2,9=3"), "reweighted must have rising steps after first_step"),
        (lambda: WeightConfig(weight=1.0, reweighted="1=2"), "reweighted must have rising steps after first_step"),
        (lambda: WeightConfig(weight=1.0, reweighted="9=2", last_step=8), "no effect at step 9: steps 1 to 8 use"),
        (lambda: WeightConfig(first_step=0), "first_step must be at least 1, got 0"),
        (lambda: WeightConfig(first_step=5, last_step=4), "last_step must be at least first_step 5, got 4"),
        (lambda: make_phases({"a": ONE, "b": WeightConfig()}), "a has a weight and b has none"),
        (lambda: make_phases({"a": ONE}), "the weight of a has no effect: it is the only corpus"),
        (lambda: make_phases({"a": ONE, "b": ONE}, temperature=2), "temperature 2 has no effect: the corpora have wei"),
        (lambda: make_phases({"a": WeightConfig()}, temperature=2), "temperature 2 has no effect: there are not sev"),
        (lambda: make_phases({"a": WeightConfig(), "b": WeightConfig()}, temperature=0), "must be more than 0, got 0"),
        (lambda: make_phases({"a": WeightConfig(first_step=5)}), "no corpus has a weight at steps 1 to 4"),
        (lambda: make_phases({"a": WeightConfig(last_step=5)}), "no corpus has a weight at steps 6 and later"),
    ],
)
def test_weights_without_a_meaning_are_refused(make, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        make()


def test_a_run_continues_with_weights_that_change_no_completed_step():
    saved = {"a": WeightConfig(weight=1.0), "b": WeightConfig(weight=3.0)}
    check_weights(saved, {"a": WeightConfig(weight=2.0, reweighted="11=9"), "b": WeightConfig(weight=6.0)}, 10)
    check_weights(saved, {"a": WeightConfig(weight=1.0, last_step=10), "b": WeightConfig(weight=3.0)}, 10)
    with pytest.raises(ConfigError, match=r"corpora at step 10 would have been others; .* 11=WEIGHT"):
        check_weights(saved, {"a": WeightConfig(weight=1.0, reweighted="10=9"), "b": WeightConfig(weight=3.0)}, 10)
    with pytest.raises(ConfigError, match="at step 1 would have been others"):
        check_weights(saved, {"a": WeightConfig(), "b": WeightConfig()}, 10)
