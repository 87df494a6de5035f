"""Built-in configurations of text classification."""

from __future__ import annotations

import dataclasses

from jaxformer.models.config import ClassifierConfig
from jaxformer.tasks.classification.config import ClassificationConfig, DataConfig
from jaxformer.tasks.masked_language_model import presets as encoders
from jaxformer.training.config import AdamConfig, LinearDecay, TrainConfig

SMALL, TINY = ClassifierConfig(**vars(encoders.SMALL)), ClassifierConfig(**vars(encoders.TINY))


def classification() -> ClassificationConfig:
    """Classification of your own texts, from the encoder of `masked_language_model`: give --data.train, --init-from."""
    return ClassificationConfig(
        model=SMALL,
        optimizer=AdamConfig(
            learning_rate=1e-3, schedule=LinearDecay(), warmup_steps=30, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0
        ),
        train=TrainConfig(steps=400, validate_every=100, checkpoint_every=100, keep_last=1, metric="accuracy"),
    )


def tiny() -> ClassificationConfig:
    """Classification from the encoder of `masked_language_model:tiny` (2 layers, D = 128)."""
    return dataclasses.replace(classification(), name="classification-tiny", model=TINY, data=DataConfig(num_shapes=3))


def average() -> ClassificationConfig:
    """The baseline without attention: the average of token vectors, trained from scratch, with a linear layer."""
    config = classification()
    return dataclasses.replace(
        config,
        name="classification-average",
        model=dataclasses.replace(SMALL, num_layers=0, positions=None, final_norm=False, pooling="mean"),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=2e-3),
    )
