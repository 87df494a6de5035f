"""Translation configurations: one whose model is too small for its data, and one that trains in seconds."""

from jaxformer import models
from jaxformer.models import choices
from jaxformer.tasks.translation import Beam, DataConfig, DecodeConfig, TranslationConfig
from jaxformer.training.config import AdamConfig, TrainConfig

GRAMMAR = {
    "corpus": "grammar",
    "grammar_pairs": 4_000,
    "source_language": "en",
    "target_language": "fr",
    "vocab_size": 400,
}


def small(**data):
    model = models.EncoderDecoderConfig(
        d_model=16,
        num_heads=2,
        d_ff=32,
        num_encoder_layers=1,
        num_decoder_layers=1,
        positions=choices.Learned(),
        max_positions=8,
    )
    return TranslationConfig(model=model, data=DataConfig(**GRAMMAR, **data))


def tiny(cache, **changes):
    data = {"tokens_per_batch": 640, "num_shapes": 1, "max_length": 32}
    return TranslationConfig(
        mesh="data=8",
        model=models.EncoderDecoderConfig(
            d_model=12, num_heads=4, d_ff=20, num_encoder_layers=1, num_decoder_layers=1, dropout=0.1
        ),
        data=DataConfig(**GRAMMAR, cache=str(cache), **data),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False),
        decode=DecodeConfig(
            search=Beam(beam_size=2), batch_size=64, max_extra=0, max_ratio=1.0, validation_sentences=8
        ),
        **changes,
    )
