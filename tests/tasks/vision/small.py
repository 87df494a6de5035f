"""Dark and light pictures, and a tiny configuration that classifies them."""

import numpy as np
from PIL import Image

from jaxformer.models import ResidualNetworkConfig, VisionTransformerConfig, choices
from jaxformer.tasks.vision import DataConfig, VisionConfig
from jaxformer.training.config import AdamConfig, TrainConfig
from tests.data.pictures import encoded, write_zip

TRANSFORMER = VisionTransformerConfig(
    image_size=(8, 8), patch_size=4, d_model=12, num_heads=2, d_ff=20, num_layers=2, dropout=0.0
)
CONVOLUTION = ResidualNetworkConfig(
    image_size=(8, 8), widths=(4, 6), num_blocks=1, attention=choices.GainAttention(d_attention=4)
)


def picture(number, size=8):
    """A picture that is light if its number is odd."""
    noise = np.random.default_rng(number).integers(0, 100, (size, size, 3))
    return Image.fromarray((noise + 140 * (number % 2)).astype(np.uint8))


def files(number, size=8):
    return {f"{('dark', 'light')[i % 2]}/{i}.png": encoded(picture(i, size)) for i in range(number)}


def tiny(folder, *, model=TRANSFORMER, **changes):
    """The configuration of 6 steps on 60 pictures in an archive."""
    write_zip(folder / "my.zip", files(60))
    data = DataConfig(
        train=str(folder / "my.zip"), batch_size=48, held_out=0.2, shift=1, flip=True, cache=str(folder / "cache")
    )
    return VisionConfig(
        mesh="data=8",
        model=model,
        data=data,
        optimizer=AdamConfig(learning_rate=3e-4, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False, metric="accuracy"),
        **changes,
    )
