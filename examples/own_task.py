"""A task of your own in one file: restore the capital letters of a lower-cased text.

    python examples/own_task.py train truecase --data.text my.txt --out run
    python examples/own_task.py evaluate run
    python examples/own_task.py average run --last 3

It needs ``pip install ".[train]"``. An encoder reads the bytes of a text in lower case, and says for each ASCII letter
whether it was a capital. This file defines the settings, the data, the network with its loss, and what a trained run
can do. The runner does the rest: `train` resumes where it stopped, with the same batches; checkpoints, meshes, plans,
logs and curves work as for any other task. In a package of your own, an entry point of the group ``jaxformer.tasks``
stands for the last lines, and the command is `jaxformer`.

After 500 steps on tinyshakespeare, it finds 91% of the capitals of the held-out text, and 95% of those found are right.
Where the task is registered, ``jaxformer.load("run").restore("the king of england")`` gives "the king of England".
"""

import dataclasses
import hashlib
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxformer import functional as F
from jaxformer import models, modules, pure
from jaxformer.config import at_least
from jaxformer.data.batch import Rows
from jaxformer.errors import DataError
from jaxformer.evaluation.scores import Score
from jaxformer.models import choices
from jaxformer.modules.pure import Params, Pure
from jaxformer.tasks.base import Network, PlannedData, Splits, Task, Trained, sum_losses
from jaxformer.tasks.config import TaskConfig
from jaxformer.training.config import AdamConfig, CosineDecay, MuonConfig, TrainConfig

# Settings: each becomes an argument of the command line, with its docstring as help.


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text and its windows."""

    text: str = ""
    """The training text."""
    held_out: float = 0.1
    """The fraction of the text, at its end, held out for validation."""
    length: int = 128
    """The number of bytes per window."""
    batch_size: int = 32
    """The number of windows per batch."""

    def __post_init__(self) -> None:
        at_least(1, self, "length", "batch_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruecaseConfig(TaskConfig):
    """A complete truecasing experiment."""

    task: ClassVar[str] = "truecase"

    name: str = "truecase"
    """The run's name in logs and plots."""
    model: models.EncoderConfig = models.EncoderConfig(
        256, num_layers=3, d_model=128, num_heads=4, d_ff=512, norm_position="pre", positions=choices.Rotary()
    )
    """The encoder."""
    data: DataConfig = DataConfig()
    """Text and windows."""
    optimizer: AdamConfig | MuonConfig = AdamConfig(learning_rate=2e-3, warmup_steps=50, schedule=CosineDecay())
    """Adam or Muon, and the schedule."""
    train: TrainConfig = TrainConfig(steps=500, validate_every=100, checkpoint_every=100)
    """Steps, validation, checkpoints."""


# Data: batch i is a pure function of the text, the seed and i, so a run that is stopped resumes with the same batches.

ArrayT = TypeVar("ArrayT")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch(Generic[ArrayT]):
    """B windows of T bytes."""

    tokens: F.Tokens[ArrayT]  # int32 [B, T]: bytes in lower case
    capital: ArrayT  # Bool [B, T]

    @staticmethod
    def of(text: np.ndarray, valid: np.ndarray) -> "Batch[np.ndarray]":
        """Makes a batch of bytes ``[B, T]`` in their original case, 0 at padding."""
        capital = (text >= ord("A")) & (text <= ord("Z"))
        return Batch(F.Tokens(text.astype(np.int32) + 32 * capital, valid), capital)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of a text: at random places for a `seed`, and otherwise all of them in order."""

    text: np.ndarray  # uint8
    config: DataConfig
    seed: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches that are as long as the text."""
        return -(-len(self.text) // (self.config.batch_size * self.config.length))

    def batch(self, step: int, *, rows: Rows | None = None) -> Batch[np.ndarray]:
        """Returns a batch; `rows` gives the indices of the rows to make, and those beyond the batch are empty."""
        size, length = self.config.batch_size, self.config.length
        starts = (step * size + np.arange(size)) * length
        if self.seed is not None:
            starts = np.random.default_rng((self.seed, step)).integers(len(self.text) - length + 1, size=size)
        index = np.arange(size) if rows is None else rows(size)
        places = starts[np.minimum(index, size - 1)][:, None] + np.arange(length)
        valid = (index < size)[:, None] & (places < len(self.text))
        return Batch.of(np.where(valid, self.text[np.minimum(places, len(self.text) - 1)], 0), valid)


@dataclasses.dataclass(frozen=True)
class Part:
    """The bytes of a part of the text."""

    text: np.ndarray

    @property
    def fingerprint(self) -> str:
        """A hash, by which a resumed run notices another text."""
        return hashlib.sha256(self.text.tobytes()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Bytes:
    """The vocabulary: all 256 bytes. A tokenizer would be saved with the run."""

    vocab_size: int = 256
    fingerprint: str = "bytes"


@dataclasses.dataclass(frozen=True)
class TruecaseData(PlannedData[Bytes]):
    """The windows for training and validation."""

    train: Windows
    validation: Windows
    vocabulary: Bytes = Bytes()

    @property
    def report(self) -> Sequence[str]:
        return (f"{len(self.train.text):,} bytes for training, {len(self.validation.text):,} for validation",)


# The network and its loss, as a sum and a count, so that padding and meshes change nothing.


class Truecasing(nnx.Module):
    """An encoder, and a logit for each position."""

    def __init__(self, config: models.EncoderConfig, *, attention=F.attention, rngs: nnx.Rngs):
        self.encoder = models.make_encoder(config, attention=attention, rngs=rngs)
        self.output = modules.Linear(config.d_model, 1, axes=("model", None), rngs=rngs)

    def __call__(self, tokens, *, key=None):
        """Returns the logits ``[B, T]`` of capitals for bytes in lower case; with a key, with dropout."""
        memory, _ = self.encoder(tokens, key=key)
        return self.output(memory.states)[..., 0].astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class TruecaseNetwork(Network[Batch[jax.Array]]):
    """The network with the cross entropy of the case of letters."""

    net: Pure[Truecasing, models.EncoderConfig]
    largest_batch: tuple[int, int]
    unit: ClassVar[str] = "letters"

    def loss(self, params: Params, batch: Batch[jax.Array], key: jax.Array | None):
        logits, text = self.net.apply(params, batch.tokens, key=key), batch.tokens.ids
        assert batch.tokens.valid is not None
        letters = (text >= ord("a")) & (text <= ord("z")) & batch.tokens.valid
        losses = optax.sigmoid_binary_cross_entropy(logits, batch.capital.astype(jnp.float32))
        found = (logits > 0) & letters
        sums = {"found": found, "right": found & batch.capital, "capitals": batch.capital}
        count = lambda where: where.sum(dtype=jnp.float32)
        return jnp.where(letters, losses, 0).sum(), count(letters), {name: count(sums[name]) for name in sums}

    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> Batch[jax.ShapeDtypeStruct]:
        ids, flags = (jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for dtype in (jnp.int32, jnp.bool_))
        return Batch(F.Tokens(ids, flags), flags)


# What a trained run can do; `jaxformer.load(run)` returns this object.


@dataclasses.dataclass(frozen=True)
class Truecaser:
    """A trained network that restores capitals."""

    network: TruecaseNetwork
    params: Params
    config: DataConfig
    steps: tuple[int, ...]

    def restore(self, text: str) -> str:
        """Returns a text with the capitals that the network finds; other letters become lower-case."""
        lower = np.frombuffer(text.encode().lower(), np.uint8)
        if not lower.size:
            return ""
        windows, logits = Windows(lower, self.config), jax.jit(self.network.net.apply)
        batches = [windows.batch(i) for i in range(windows.steps_per_epoch)]
        found = [logits(self.params, jax.tree.map(jnp.asarray, batch.tokens)) > 0 for batch in batches]
        capital = np.concatenate([np.ravel(x) for x in found])[: lower.size]
        letter = (lower >= ord("a")) & (lower <= ord("z"))
        return (lower - 32 * (letter & capital)).astype(np.uint8).tobytes().decode()

    def losses(self, windows: Windows) -> Iterator[tuple[jax.Array, jax.Array, dict[str, jax.Array]]]:
        """Yields the loss sums of each batch."""
        loss = jax.jit(self.network.validation_loss)
        for i in range(windows.steps_per_epoch):
            yield loss(self.params, jax.tree.map(jnp.asarray, windows.batch(i)))


def f1(sums) -> float:
    """Returns the harmonic mean of precision and recall of capitals, in percent."""
    return float(200 * sums["right"] / max(sums["found"] + sums["capitals"], 1))


class TruecaseTask(Task[TruecaseConfig, Splits[Part], Batch[jax.Array], Bytes, Truecaser]):
    """Restoring the capital letters of a text."""

    name = "truecase"
    config = TruecaseConfig
    metrics: ClassVar = {"f1": True}  # a metric of validations, and that higher is better
    default_split = "validation"

    def read(self, config: TruecaseConfig) -> Splits[Part]:
        if not config.data.text:
            raise DataError("no text: give --data.text FILE")
        try:
            text = np.frombuffer(pathlib.Path(config.data.text).read_bytes(), np.uint8)
        except OSError as error:
            raise DataError(f"{config.data.text}: {error.strerror}") from error
        end = len(text) - int(len(text) * config.data.held_out)
        if min(end, len(text) - end) < config.data.length:
            raise DataError(f"{config.data.text} has {len(text):,} bytes, too few for windows of {config.data.length}")
        return Splits(Part(text[:end]), Part(text[end:]))

    def prepare(self, config: TruecaseConfig, corpus: Splits[Part], run: pathlib.Path) -> TruecaseData:
        train = Windows(corpus.train.text, config.data, config.seed)
        return TruecaseData(train, Windows(corpus.validation.text, config.data))

    def vocabulary(self, run: pathlib.Path) -> Bytes:
        return Bytes()

    def planned_vocab_size(self, config: TruecaseConfig) -> int:
        return Bytes().vocab_size

    def network(self, config: TruecaseConfig, vocab_size: int, attention=F.attention) -> TruecaseNetwork:
        net = pure(Truecasing, config.model, attention=attention)
        return TruecaseNetwork(net, (config.data.batch_size, config.data.length))

    def predictor(self, config: TruecaseConfig, vocabulary: Bytes, trained: Trained) -> Truecaser:
        network = TruecaseNetwork(trained.net, (config.data.batch_size, config.data.length))
        return Truecaser(network, trained.params, config.data, trained.steps)

    def validation_metrics(self, config, corpus, data, predictor, sums) -> dict[str, float]:
        return {"f1": f1(sums)}

    def evaluate(self, config, corpus: Splits[Part], predictor: Truecaser, *, split, say, on_examples):
        sums = sum_losses(predictor.losses(Windows(corpus.part(split).text, config.data)))
        precision, recall = (100 * sums["right"] / max(sums[name], 1) for name in ("found", "capitals"))
        scores = {"precision": precision, "recall": recall, "F1": f1(sums)}
        return {"text": [Score(name, float(value), "percent of capital letters") for name, value in scores.items()]}


TASK = TruecaseTask()


if __name__ == "__main__":
    from jaxformer.cli.main import script
    from jaxformer.tasks import registry

    registry.TASKS["truecase"] = "own_task"  # the module that has TASK; an installed package has an entry point
    sys.exit(script())
