"""Tatoeba: short everyday sentences, many with several translations.

The table has no splits, and neighboring lines repeat an English sentence. Validation and test sets are held out by
English sentence, so that none of their English is in the training set.
"""

from jaxformer.models import EncoderDecoderConfig
from jaxformer.tasks.translation import DataConfig, DecodeConfig, TranslationConfig
from jaxformer.training.config import AdamConfig, TrainConfig


def en_fr() -> TranslationConfig:
    """English to French, 167,000 pairs, 4+4 layers, D=256: a few hours on 2 CPU cores, minutes on a GPU."""
    return _config("eng-fra.tsv", "fr")


def en_de() -> TranslationConfig:
    """English to German, 170,000 pairs, with the same model."""
    return _config("eng-deu.tsv", "de")


def _config(table: str, target: str) -> TranslationConfig:
    return TranslationConfig(
        name=f"tatoeba en-{target}",
        model=EncoderDecoderConfig(
            d_model=256,
            num_heads=4,
            d_ff=1024,
            num_encoder_layers=4,
            num_decoder_layers=4,
            dropout=0.2,
            norm_position="pre",
        ),
        data=DataConfig(
            source=f"tatoeba/{table}",
            held_out=3000,
            source_language="en",
            target_language=target,
            vocab_size=8000,
            tokens_per_batch=8192,
            num_shapes=6,
            max_length=96,
        ),
        optimizer=AdamConfig(learning_rate=2e-3, warmup_steps=2000),
        train=TrainConfig(steps=20_000, validate_every=500, checkpoint_every=500, keep_last=5, patience=8),
        decode=DecodeConfig(validation_sentences=300),
    )
