"""A translation configuration whose model is too small for its data."""

from jaxformer import models
from jaxformer.tasks.translation import DataConfig, TranslationConfig


def small(**data):
    model = models.EncoderDecoderConfig(
        d_model=16,
        num_heads=2,
        d_ff=32,
        num_encoder_layers=1,
        num_decoder_layers=1,
        positions="learned",
        max_positions=8,
    )
    return TranslationConfig(model=model, data=DataConfig(corpus="grammar", vocab_size=400, **data))
