"""Language models of tinyshakespeare (Karpathy 2015), 1.1 M characters; the last tenth is held out.

Published scores, held-out nats per character: 1.88 at 4 layers, D = 128, context 64, 2,000 steps of 12 windows; 1.47 at
6 layers, D = 384, context 256, 5,000 steps of 64 windows (nanoGPT's two settings for characters).
"""

from __future__ import annotations

from jaxformer.models import LanguageModelConfig
from jaxformer.tasks.language_model import DataConfig, DecodeConfig, LanguageModelingConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig

TEXT = "tinyshakespeare/input.txt"


def characters() -> LanguageModelingConfig:
    """Characters at nanoGPT's CPU size: 4 layers, D = 128, context 64, 2,000 steps of 12; nanoGPT has 1.88 nats."""
    return LanguageModelingConfig(
        name="tinyshakespeare, characters",
        model=LanguageModelConfig(d_model=128, num_heads=4, d_ff=512, num_layers=4, max_positions=64, dropout=0.0),
        data=DataConfig(text=TEXT, length=64, batch_size=12),
        optimizer=_adam(2e-3),
        train=TrainConfig(steps=2000, validate_every=500, checkpoint_every=500, keep_last=1),
        decode=DecodeConfig(max_tokens=500),
    )


def characters_large() -> LanguageModelingConfig:
    """Characters at nanoGPT's GPU size: 6 layers, D = 384, context 256, 5,000 steps of 64; nanoGPT has 1.47 nats."""
    return LanguageModelingConfig(
        name="tinyshakespeare, characters, large",
        model=LanguageModelConfig(d_model=384, num_heads=6, d_ff=1536, num_layers=6, max_positions=256, dropout=0.2),
        data=DataConfig(text=TEXT, length=256, batch_size=64),
        optimizer=_adam(1e-3),
        train=TrainConfig(steps=5000, validate_every=250, checkpoint_every=250, keep_last=1),
        decode=DecodeConfig(max_tokens=500),
    )


def characters_hour() -> LanguageModelingConfig:
    """Characters, what two CPU cores train in an hour: 6 layers, D = 192, context 128, 2,000 steps of 32 windows."""
    return LanguageModelingConfig(
        name="tinyshakespeare, characters, an hour",
        model=LanguageModelConfig(d_model=192, num_heads=6, d_ff=768, num_layers=6, max_positions=128, dropout=0.1),
        data=DataConfig(text=TEXT, length=128, batch_size=32),
        optimizer=_adam(2e-3),
        train=TrainConfig(steps=2000, validate_every=250, checkpoint_every=250, keep_last=1),
        decode=DecodeConfig(max_tokens=500),
    )


def subwords() -> LanguageModelingConfig:
    """Subwords, 1,000 pieces, at the same size: a window holds about three times as much text."""
    return LanguageModelingConfig(
        name="tinyshakespeare, subwords",
        model=LanguageModelConfig(d_model=128, num_heads=4, d_ff=512, num_layers=4, max_positions=64, dropout=0.0),
        data=DataConfig(text=TEXT, tokenizer="unigram", vocab_size=1000, length=64, batch_size=12),
        optimizer=_adam(2e-3),
        train=TrainConfig(steps=2000, validate_every=500, checkpoint_every=500, keep_last=1),
        decode=DecodeConfig(max_tokens=200),
    )


def no_mask() -> LanguageModelingConfig:
    """`characters` without the causal mask: the loss falls to almost 0, and the generated text is nonsense."""
    return LanguageModelingConfig(
        name="tinyshakespeare, no causal mask",
        model=LanguageModelConfig(
            d_model=128, num_heads=4, d_ff=512, num_layers=4, max_positions=64, dropout=0.0, causal=False
        ),
        data=DataConfig(text=TEXT, length=64, batch_size=12),
        optimizer=_adam(2e-3),
        train=TrainConfig(steps=500, validate_every=25, checkpoint_every=250, keep_last=1),
        decode=DecodeConfig(max_tokens=500),
    )


def _adam(learning_rate: float) -> AdamConfig:
    return AdamConfig(
        learning_rate=learning_rate,
        schedule=CosineDecay(),
        warmup_steps=100,
        b2=0.99,
        epsilon=1e-8,
        weight_decay=0.1,
        clip_norm=1.0,
    )
