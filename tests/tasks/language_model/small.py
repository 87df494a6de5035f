"""A configuration of a language model that trains in seconds.


Only two sizes are multiples of eight: each of eight devices saves an eighth of an array to a checkpoint if it can,
and every such slice is a compilation.
"""

from jaxformer import demo, models
from jaxformer.tasks.language_model import DataConfig, DecodeConfig, LanguageModelingConfig
from jaxformer.training.config import AdamConfig, TrainConfig

TEXT = "\n".join(pair.english for pair in demo.generate(120))


def tiny(folder, **model):
    path = folder / "text.txt"
    path.write_text(TEXT)
    return LanguageModelingConfig(
        mesh="data=8",
        model=models.LanguageModelConfig(
            d_model=12, num_heads=4, d_ff=20, num_layers=1, max_positions=16, dropout=0.1, **model
        ),
        data=DataConfig(text=str(path), length=16, batch_size=16, cache=str(folder / "cache")),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False),
        decode=DecodeConfig(max_tokens=20),
    )
