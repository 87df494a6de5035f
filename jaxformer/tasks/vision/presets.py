"""Built-in configurations of image classification."""

from __future__ import annotations

import dataclasses

from jaxformer.models import choices
from jaxformer.models.vision_config import ResidualNetworkConfig, VisionTransformerConfig
from jaxformer.tasks.vision.config import DataConfig, VisionConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


def vision() -> VisionConfig:
    """A vision Transformer for small images, 1.8 M parameters (6 layers, D = 192, patches of 4): give --data.train."""
    return VisionConfig(
        model=VisionTransformerConfig(d_model=192, num_heads=3, d_ff=384),
        data=DataConfig(shift=2, flip=True),
        optimizer=AdamConfig(
            learning_rate=1e-3,
            schedule=CosineDecay(),
            warmup_steps=200,
            b2=0.99,
            epsilon=1e-8,
            weight_decay=0.05,
            clip_norm=1.0,
        ),
        train=TrainConfig(steps=5000, validate_every=250, checkpoint_every=250, keep_last=2, metric="accuracy"),
    )


def tiny() -> VisionConfig:
    """The smallest vision Transformer, 0.5 M parameters, for two CPU cores (4 layers, D = 128)."""
    model = VisionTransformerConfig(d_model=128, num_heads=4, d_ff=256, num_layers=4)
    return dataclasses.replace(vision(), name="vision-tiny", model=model)


def convolution() -> VisionConfig:
    """A residual convolutional network, 0.7 M parameters, without attention (--model.attention gain adds it)."""
    return dataclasses.replace(vision(), name="vision-convolution", model=ResidualNetworkConfig())


def base() -> VisionConfig:
    """ViT-B/16 (Dosovitskiy et al. 2021), 86 M parameters, for photographs of 224 x 224 pixels on accelerators."""
    model = VisionTransformerConfig(
        image_size=(224, 224),
        patch_size=16,
        norm=choices.LayerNorm(1e-6),
        d_model=768,
        num_heads=12,
        d_ff=3072,
        num_layers=12,
    )
    return dataclasses.replace(
        vision(),
        name="vision-base",
        model=model,
        data=DataConfig(batch_size=1024, flip=True, crop=0.5, resize="fit"),
        optimizer=dataclasses.replace(vision().optimizer, warmup_steps=10_000, weight_decay=0.1),
        train=TrainConfig(steps=300_000, validate_every=5000, checkpoint_every=5000, keep_last=2, metric="accuracy"),
    )
