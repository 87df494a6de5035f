"""A task of your own in one file: restore the capital letters of a lower-cased text.

    python examples/own_task.py train truecase --data.text my.txt --out run
    python examples/own_task.py evaluate run

An encoder reads the bytes of a text in lower case, and says for each ASCII letter whether it was a capital. This file
has the settings, the data, the model with its loss, and what a trained run can do; `TASK` lists them. The runner does
the rest: resuming, checkpoints, meshes, plans, logs and curves, as for any other task (``pip install ".[train]"``). In
your package, an entry point of the group ``jaxformer.tasks`` stands for the last lines; the command is `jaxformer`.
After 500 steps on tinyshakespeare, it finds 91% of the held-out capitals, and 95% of those found are right. Where the
task is registered, ``jaxformer.load("run").restore("the king of england")`` gives "the king of England".
"""

import dataclasses
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxformer import functional as F
from jaxformer import models, modules, pure
from jaxformer.cli.main import script
from jaxformer.data.text import read_text, split_text
from jaxformer.data.windows import OrderedWindows, RandomWindows, TextBatch, TokenStream
from jaxformer.errors import DataError
from jaxformer.evaluation.scores import Score
from jaxformer.models import choices
from jaxformer.modules.pure import Pure
from jaxformer.tasks import registry
from jaxformer.tasks.base import CorpusScores, Data, Network, Splits, Task, sum_losses
from jaxformer.tasks.config import TaskConfig
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.training.config import AdamConfig, CosineDecay, MuonConfig, TrainConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text and its windows: each setting is an argument of the command line, with its docstring as help."""

    text: str = ""
    """The training text; a tenth of it, at its end, is held out for validation."""
    length: int = 128
    """The number of bytes per window."""
    batch_size: int = 32
    """The number of windows per batch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruecaseConfig(TaskConfig):
    """A complete truecasing experiment."""

    task: ClassVar[str] = "truecase"
    model: models.EncoderConfig = models.EncoderConfig(
        256, num_layers=3, d_model=128, num_heads=4, d_ff=512, norm_position="pre", positions=choices.Rotary()
    )
    """The encoder."""
    data: DataConfig = DataConfig()
    """Text and windows."""
    optimizer: AdamConfig | MuonConfig = AdamConfig(learning_rate=2e-3, warmup_steps=50, schedule=CosineDecay())
    train: TrainConfig = TrainConfig(steps=500, validate_every=100, checkpoint_every=100)


class Bytes:
    """The vocabulary: all bytes. A tokenizer would be saved with the run."""

    vocab_size, fingerprint = 256, "bytes"


def read(config: TruecaseConfig) -> Splits:
    """Reads the text."""
    if not config.data.text:
        raise DataError("no text: give --data.text FILE")
    return Splits(*split_text(read_text(config.data.text), held_out=0.1))


def windows(make, text, config: TruecaseConfig, *seed: int):
    """Returns batches of the bytes of a text, with their capitals."""
    stream = TokenStream(np.frombuffer(text.characters.encode() + b"\0", np.uint8), SpecialTokens())
    return make(stream, config.data.length, config.data.batch_size, *seed)


def prepare(config: TruecaseConfig, corpus: Splits, run) -> Data:
    """Plans batches, pure functions of the text, the seed and their number, so that a stopped run can continue."""
    train = windows(RandomWindows, corpus.train, config, config.seed)
    return Data(train, windows(OrderedWindows, corpus.validation, config), Bytes())


class Truecasing(nnx.Module):
    """An encoder, and a logit for each position."""

    def __init__(self, config: models.EncoderConfig, *, attention=F.attention, rngs: nnx.Rngs):
        self.encoder = models.make_encoder(config, attention=attention, rngs=rngs)
        self.output = modules.Linear(config.d_model, 1, axes=("model", None), rngs=rngs)

    def __call__(self, tokens, *, key=None):
        """Returns the logits ``[B, T]`` of capitals for bytes in lower case; with a key, with dropout."""
        memory, _ = self.encoder(tokens, key=key)
        return self.output(memory.states)[..., 0].astype(jnp.float32)


def loss(model: Truecasing, batch: TextBatch, key):
    """Returns the cross entropy of the case of letters, as a sum and a count, and sums for precision and recall."""
    ids, valid = batch.tokens.ids, batch.tokens.valid
    capital = (ids >= ord("A")) & (ids <= ord("Z")) & valid
    letter = capital | ((ids >= ord("a")) & (ids <= ord("z")) & valid)
    logits = model(dataclasses.replace(batch.tokens, ids=jnp.where(capital, ids + 32, ids)), key=key)
    losses = jnp.where(letter, optax.sigmoid_binary_cross_entropy(logits, capital.astype(jnp.float32)), 0)
    found, count = (logits > 0) & letter, lambda where: where.sum(dtype=jnp.float32)
    sums = {"found": count(found), "right": count(found & capital), "capitals": count(capital)}
    return losses.sum(), count(letter), sums


def network(config: TruecaseConfig, vocab_size: int, attention=F.attention) -> Network:
    """Returns the model with its loss."""
    net = pure(Truecasing, config.model, attention=attention)
    return Network(net, loss, TextBatch.row, (config.data.batch_size, config.data.length), unit="letters")


@dataclasses.dataclass(frozen=True)
class Truecaser:
    """A trained network that restores capitals; `jaxformer.load(run)` returns it."""

    net: Pure
    params: dict
    steps: tuple[int, ...]

    def restore(self, text: str) -> str:
        """Returns a text with capitals where the network finds them; letters other than A to Z stay as they are."""
        lower = np.frombuffer(text.encode().lower(), np.uint8).astype(np.int32)
        letter = (lower >= ord("a")) & (lower <= ord("z"))
        capital = letter & np.asarray(self.net.apply(self.params, jnp.asarray(lower[None]))[0] > 0)
        return (lower - 32 * capital).astype(np.uint8).tobytes().decode()


def percentages(sums) -> dict[str, float]:
    """Returns precision, recall and their harmonic mean."""
    precision, recall = (100 * float(sums["right"]) / max(sums[name], 1) for name in ("found", "capitals"))
    return {"precision": precision, "recall": recall, "F1": 2 * precision * recall / max(precision + recall, 1)}


def score(config: TruecaseConfig, corpus: Splits, truecaser: Truecaser, split: str, say):
    """Scores the capitals of a split."""
    batches = windows(OrderedWindows, corpus.part(split), config)
    step = jax.jit(dataclasses.replace(network(config, 256), net=truecaser.net).validation_sums)
    sums = sum_losses(step(truecaser.params, batches.batch(i)) for i in range(batches.steps_per_epoch))
    yield CorpusScores("text", [Score(name, value, "of capital letters") for name, value in percentages(sums).items()])


TASK = Task(
    config=TruecaseConfig,
    read=read,
    prepare=prepare,
    vocabulary=lambda run: Bytes(),
    vocab_size=lambda config: Bytes.vocab_size,
    network=network,
    predictor=lambda config, vocabulary, trained: Truecaser(trained.net, trained.params, trained.steps),
    metrics={"f1": True},  # the metrics of validations: higher is better
    measure=lambda config, corpus, data, truecaser, sums: {"f1": percentages(sums)["F1"]},
    score=score,
    default_split="validation",
)


if __name__ == "__main__":
    registry.TASKS["truecase"] = "own_task"  # the module that has TASK; an installed package has an entry point
    sys.exit(script())
