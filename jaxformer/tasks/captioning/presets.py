"""Built-in configurations of captioning.

They keep the checkpoint with the best validation BLEU: the loss is lowest early, when captions still say little about
an image (Xu et al. 2015, 4.3).
"""

from __future__ import annotations

import dataclasses

from jaxformer.models import choices
from jaxformer.models.vision_config import GridConfig, RecurrentCaptionerConfig, TransformerCaptionerConfig
from jaxformer.tasks.captioning.config import CaptioningConfig, DataConfig, DecodeConfig
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig


def captioning() -> CaptioningConfig:
    """Captions by soft attention (Xu et al. 2015), at the size `small`: give --data.train and --data.images."""
    return CaptioningConfig(
        model=RecurrentCaptionerConfig(
            image=GridConfig(image_size=(128, 128), widths=(32, 64, 128, 256), num_blocks=2),
            attention=choices.SoftAttention(doubly_stochastic=0.1),
            d_model=256,
            dropout=0.2,
        ),
        data=DataConfig(resize="fit"),
        optimizer=AdamConfig(
            learning_rate=1e-3, schedule=CosineDecay(), warmup_steps=200, weight_decay=0.01, clip_norm=1.0
        ),
        train=TrainConfig(
            steps=10_000, validate_every=500, checkpoint_every=500, keep_last=2, patience=10, metric="bleu"
        ),
        decode=DecodeConfig(validation_images=200),
    )


def tiny() -> CaptioningConfig:
    """The smallest captioner, for two CPU cores: images of 64 x 64, a grid of 16 x 16, D = 128; 0.6 M parameters."""
    model = RecurrentCaptionerConfig(
        image=GridConfig(image_size=(64, 64), widths=(16, 32, 64), num_blocks=1),
        attention=choices.SoftAttention(doubly_stochastic=0.1),
        d_model=128,
        dropout=0.1,
    )
    return dataclasses.replace(
        captioning(),
        name="captioning-tiny",
        model=model,
        train=dataclasses.replace(captioning().train, steps=3000, validate_every=250, checkpoint_every=250),
    )


def small() -> CaptioningConfig:
    """Thousands of images, on a GPU or many cores: images of 128 x 128, a grid of 16 x 16, an LSTM with D = 256."""
    return dataclasses.replace(captioning(), name="captioning-small")


def transformer() -> CaptioningConfig:
    """The network of `small` with a Transformer decoder of 4 layers instead of the LSTM."""
    model = TransformerCaptionerConfig(
        image=captioning().model.image,
        num_layers=4,
        norm_position="pre",
        positions=choices.Sinusoidal(),
        dropout=0.2,
    )
    return dataclasses.replace(captioning(), name="captioning-transformer", model=model)
