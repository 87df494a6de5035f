"""Built-in language models are valid and have the documented sizes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from jaxformer.config import from_data, to_data
from jaxformer.models import LanguageModel
from jaxformer.modules.pure import pure
from jaxformer.tasks.language_model import TASK, LanguageModelingConfig, presets
from tests.modules.small import quick


@pytest.mark.parametrize(
    ("preset", "vocab_size", "layers", "millions"),
    [
        (presets.language_model, 80, 4, 0.8),
        (presets.tiny, 80, 2, 0.12),
        (presets.small, 80, 4, 0.8),
        (presets.base, 32_000, 12, 110),
        (presets.big, 32_000, 24, 336),
    ],
)
def test_sizes(preset, vocab_size, layers, millions):
    config = preset()
    config.check()
    assert from_data(LanguageModelingConfig, to_data(config)) == config
    assert config.model.num_layers == layers
    assert TASK.network(config, vocab_size).num_parameters == pytest.approx(millions * 1e6, rel=0.05)


def test_the_loss_begins_near_that_of_the_uniform_distribution():
    """Logits of variance 1 cost half a nat; token vectors times sqrt(D) would make it the token just read: 2.5 nats."""
    config = dataclasses.replace(presets.tiny().model, vocab_size=72, dropout=0.0)
    net = pure(LanguageModel, config)
    tokens = jax.random.randint(jax.random.key(1), (4, 65), 0, 72)
    scores = quick(net.apply)(quick(net.init)(jax.random.key(0)), tokens[:, :-1])
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(scores), tokens[:, 1:, None], -1)
    assert -float(log_probs.mean()) == pytest.approx(math.log(72) + 0.5, abs=0.2)
