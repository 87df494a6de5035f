"""Settings of a training without a meaning are refused, with their name and value."""

import math
import re

import pytest

from jaxformer.config import fingerprint
from jaxformer.errors import ConfigError
from jaxformer.training import TrainConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 2**31}, "steps must be less than 2**31, got 2147483648"),
        ({"num_microbatches": 0}, "num_microbatches must be at least 1, got 0"),
        ({"keep_last": 0}, "keep_last must be at least 1, got 0"),
        ({"ema_decay": 1.0}, "ema_decay must be less than 1, got 1.0"),
        ({"ema_decay": -0.1}, "ema_decay must be at least 0, got -0.1"),
        ({"minutes": math.nan}, "minutes must be at least 0, got nan"),
        ({"patience": -1}, "patience must be at least 0, got -1"),
        (
            {"patience": 3, "validate_every": 0},
            "patience 3 has no effect, because validate_every is 0; take patience 0",
        ),
        ({"validate_every": -1}, "validate_every must be at least 0, got -1"),
        ({"checkpoint_every": -1}, "checkpoint_every must be at least 0, got -1"),
        ({"checkpoint_minutes": -1.0}, "checkpoint_minutes must be at least 0, got -1.0"),
        ({"log_every": -1}, "log_every must be at least 0, got -1"),
        ({"stall_minutes": -1.0}, "stall_minutes must be at least 0, got -1.0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        TrainConfig(**settings)


def test_rollbacks():
    """Three in a row, if enabled."""
    assert [TrainConfig(nonfinite=kind).rollbacks for kind in ("abort", "skip", "rollback")] == [0, 0, 3]


def test_a_run_may_continue_with_another_watchdog_and_time_limit():
    """Launchers add the first to a run that began without it, and each job has its own time."""
    other = TrainConfig(stall_minutes=60, minutes=8)
    assert fingerprint(TrainConfig()) == fingerprint(other) != fingerprint(TrainConfig(steps=7))
