"""A small configuration to plan for eight devices."""

import dataclasses

from jaxformer import models
from jaxformer.tasks.translation import DataConfig, TranslationConfig
from jaxformer.training.config import TrainConfig

MODEL = models.EncoderDecoderConfig(d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=2)
CONFIG = TranslationConfig(
    mesh="fsdp=4,tensor=2",
    model=MODEL,
    data=DataConfig(vocab_size=400, tokens_per_batch=1000, max_length=48),
    train=TrainConfig(num_microbatches=3),
)


def budget(tokens, **model):
    """CONFIG with this many tokens per batch; three parts, each sharded over four devices."""
    data = dataclasses.replace(CONFIG.data, tokens_per_batch=tokens)
    return dataclasses.replace(CONFIG, data=data, model=dataclasses.replace(MODEL, **model))
