"""Settings of a training without a meaning are refused, with their name and value."""

import math
import re

import pytest

from jaxformer.config import fingerprint
from jaxformer.errors import ConfigError
from jaxformer.training import AdamConfig, CosineDecay, MuonConfig, TrainConfig


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (TrainConfig, {"steps": 0}, "steps must be at least 1, got 0"),
        (TrainConfig, {"steps": 2**31}, "steps must be less than 2147483648, got 2147483648"),
        (TrainConfig, {"num_microbatches": 0}, "num_microbatches must be at least 1, got 0"),
        (TrainConfig, {"keep_last": 0}, "keep_last must be at least 1, got 0"),
        (TrainConfig, {"ema_decay": 1.0}, "ema_decay must be less than 1, got 1.0"),
        (TrainConfig, {"ema_decay": -0.1}, "ema_decay must be at least 0, got -0.1"),
        (TrainConfig, {"minutes": math.nan}, "minutes must be at least 0, got nan"),
        (TrainConfig, {"patience": -1}, "patience must be at least 0, got -1"),
        (TrainConfig, {"patience": 3, "validate_every": 0}, "patience 3 has no effect, because validate_every is 0"),
        (TrainConfig, {"validate_every": -1}, "validate_every must be at least 0, got -1"),
        (TrainConfig, {"checkpoint_every": -1}, "checkpoint_every must be at least 0, got -1"),
        (TrainConfig, {"checkpoint_minutes": -1.0}, "checkpoint_minutes must be at least 0, got -1.0"),
        (TrainConfig, {"log_every": -1}, "log_every must be at least 0, got -1"),
        (TrainConfig, {"stall_minutes": -1.0}, "stall_minutes must be at least 0, got -1.0"),
        # A rate below 0 climbs the loss, and NaN would end the training only after it had claimed its run directory.
        (AdamConfig, {"learning_rate": -1.0}, "learning_rate must be at least 0, got -1.0"),
        (AdamConfig, {"learning_rate": math.nan}, "learning_rate must be at least 0, got nan"),
        (AdamConfig, {"learning_rate": math.inf}, "learning_rate must be less than inf, got inf"),
        (AdamConfig, {"warmup_steps": -5}, "warmup_steps must be at least 0, got -5"),
        (AdamConfig, {"schedule": "cosine"}, "schedule must be one of InverseSqrtDecay(), CosineDecay(), LinearDecay"),
        (AdamConfig, {"cooldown": math.nan}, "cooldown must be at least 0, got nan"),
        (AdamConfig, {"cooldown": 2000.0}, "cooldown is a fraction of training, at most 1, got 2000.0"),
        (AdamConfig, {"b1": 1.0}, "b1 must be less than 1, got 1.0"),
        (AdamConfig, {"b2": math.nan}, "b2 must be at least 0, got nan"),
        (AdamConfig, {"epsilon": -1.0}, "epsilon must be at least 0, got -1.0"),
        (AdamConfig, {"weight_decay": -1.0}, "weight_decay must be at least 0, got -1.0"),
        (AdamConfig, {"clip_norm": math.nan}, "clip_norm must be at least 0, got nan"),
        (MuonConfig, {"momentum": 1.0}, "momentum must be less than 1, got 1.0"),
        (CosineDecay, {"decay_steps": -4}, "decay_steps must be at least 0, got -4"),
    ],
)
def test_refusals(kind, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        kind(**settings)


def test_rollbacks():
    """Three in a row, if enabled."""
    assert [TrainConfig(nonfinite=kind).rollbacks for kind in ("abort", "skip", "rollback")] == [0, 0, 3]


def test_a_run_may_continue_with_another_watchdog_and_time_limit():
    """Launchers add the first to a run that began without it, and each job has its own time."""
    other = TrainConfig(stall_minutes=60, minutes=8)
    assert fingerprint(TrainConfig()) == fingerprint(other) != fingerprint(TrainConfig(steps=7))
