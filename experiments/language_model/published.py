"""Published language models at their sizes, for `jaxformer plan`: `jaxformer sizes` has their parameters and bytes.

No text is at hand for them; any other is trained on with ``--data.text FILE``. Each recomputes its blocks in the
backward pass and multiplies in bfloat16. Batches are about those of the papers: 0.5 M tokens, and 3.2 M for GPT-3.
"""

from __future__ import annotations

import dataclasses

from jaxformer.models import LanguageModelConfig
from jaxformer.models.presets import PRESETS
from jaxformer.tasks.language_model import DataConfig, LanguageModelingConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


def gpt2_xl() -> LanguageModelingConfig:
    """GPT-2 XL, 1.6 billion parameters: windows of 1,024 tokens, for planning some accelerators."""
    return _config("gpt2-xl", batch_size=512, learning_rate=1.5e-4)


def megatron_8b() -> LanguageModelingConfig:
    """Megatron-LM, 8.3 billion parameters: windows of 1,024 tokens, for planning a pod."""
    return _config("megatron-8b", batch_size=512, learning_rate=1.5e-4)


def gpt3_175b() -> LanguageModelingConfig:
    """GPT-3, 175 billion parameters: windows of 2,048 tokens, for planning a pod."""
    return _config("gpt3-175b", batch_size=1536, learning_rate=6e-5)


def _config(name: str, *, batch_size: int, learning_rate: float) -> LanguageModelingConfig:
    preset = PRESETS[name]
    assert isinstance(preset.config, LanguageModelConfig)
    model = dataclasses.replace(preset.config, vocab_size=0, dropout=0.0, remat=True, compute_dtype="bfloat16")
    return LanguageModelingConfig(
        name=name,
        model=model,
        data=DataConfig(
            tokenizer="bpe", vocab_size=preset.config.vocab_size, length=preset.length, batch_size=batch_size
        ),
        optimizer=AdamConfig(
            learning_rate=learning_rate,
            schedule=CosineDecay(),
            warmup_steps=2000,
            b2=0.95,
            epsilon=1e-8,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        train=TrainConfig(steps=300_000, validate_every=5000, checkpoint_every=1000),
    )
