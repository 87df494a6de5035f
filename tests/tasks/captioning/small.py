"""Dark and light pictures with captions, and a tiny configuration that captions them."""

from jaxformer.models import GridConfig, RecurrentCaptionerConfig, TransformerCaptionerConfig, choices
from jaxformer.tasks.captioning import Beam, CaptioningConfig, DataConfig, DecodeConfig
from jaxformer.training.config import AdamConfig, TrainConfig
from tests.data.pictures import encoded, write_zip
from tests.tasks.vision.small import picture

GRID = GridConfig(image_size=(8, 8), widths=(6, 12), num_blocks=1)
SOFT = choices.SoftAttention(doubly_stochastic=0.1)
RECURRENT = RecurrentCaptionerConfig(image=GRID, attention=SOFT, d_model=12, d_hidden=12, dropout=0.1)
TRANSFORMER = TransformerCaptionerConfig(image=GRID, d_model=12, num_heads=2, d_ff=20, num_layers=1, max_positions=24)
WORDS = {0: ("a dark picture", "this is dark."), 1: ("a light picture", "this is light.")}


def table(number):
    """A table of captions: two for every second pair of pictures, one for the others."""
    return "".join(f"{i}.png\t{caption}\n" for i in range(number) for caption in WORDS[i % 2][: 2 if i % 4 < 2 else 1])


def tiny(folder, *, model=RECURRENT, **changes):
    """The configuration of 6 steps on 60 pictures in an archive."""
    write_zip(folder / "my.zip", {f"{i}.png": encoded(picture(i)) for i in range(60)})
    (folder / "my.tsv").write_text(table(60))
    data = DataConfig(
        train=str(folder / "my.tsv"), images=str(folder / "my.zip"), batch_size=48, held_out=0.2, shift=1,
        max_length=24, tokenizer="characters", cache=str(folder / "cache"),
    )  # fmt: skip
    return CaptioningConfig(
        mesh="data=8",
        model=model,
        data=data,
        optimizer=AdamConfig(learning_rate=1e-3, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False),
        decode=DecodeConfig(search=Beam(beam_size=2), batch_size=8, max_length=20, validation_images=8),
        **changes,
    )
