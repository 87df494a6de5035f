"""A task as a record: how its data are read, its network and loss, its predictor and its scores.

A task reads a corpus, prepares batches, builds a network with its loss, and makes a predictor from trained parameters.
The runner does the work that all tasks share: run directories, meshes, checkpoints, training, validation, averaging,
planning. A new task is one module with a configuration (a `TaskConfig`), a few functions, and the value ``TASK``, the
`Task` that lists them; `registry` lists its name.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import jax
import numpy as np

from jaxformer import sharding
from jaxformer.axes import AxisName
from jaxformer.data.batch import Rows
from jaxformer.data.pipeline import batches
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score
from jaxformer.functional.tokens import Tokens
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure
from jaxformer.reprs import brief
from jaxformer.sharding import Placement
from jaxformer.tasks.batched import one_behind
from jaxformer.tasks.config import TaskConfig

Say = Callable[[str], None]
"""A function that shows one line to the user."""

LossSums = tuple[jax.Array, jax.Array, dict[str, jax.Array]]
"""The loss summed over a batch, the number of its terms, and additional sums."""

Sums = Mapping[str, np.ndarray]
"""The sums of a loss over several batches: "loss", "count", and the additional ones."""


def sum_losses(results: Iterable[LossSums]) -> dict[str, np.ndarray]:
    """Adds the results of `Network.validation_sums` over batches, in float64: "loss", "count", and the additional sums.

    Each result is read only after the next one has been requested, so that the device need not wait for the host.

    >>> import jax.numpy as jnp
    >>> sums = sum_losses([(jnp.float32(3), jnp.float32(2), {"correct": jnp.float32(1)})] * 2)
    >>> {name: float(value) for name, value in sums.items()}
    {'loss': 6.0, 'count': 4.0, 'correct': 2.0}
    """
    sums: dict[str, np.ndarray] = {}
    for result in one_behind(results):
        total, count, others = jax.device_get(result)
        for name, value in {"loss": total, "count": count, **others}.items():
            sums[name] = sums.get(name, 0) + np.asarray(value, np.float64)
    return sums


class Corpus(Protocol):
    """Data as read, such as text or the paths of images. Reading it writes nothing."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """A hash of each part that must not change during a run, including `train` and `validation`."""
        ...


PartT = TypeVar("PartT", bound=Any)
"""Examples with a `fingerprint`."""


@dataclasses.dataclass(frozen=True)
class Splits(Generic[PartT]):
    """Examples for training, validation and, optionally, a test."""

    train: PartT
    validation: PartT
    test: PartT | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of training and validation."""
        return {"train": self.train.fingerprint, "validation": self.validation.fingerprint}

    def part(self, split: str, *, source: str = "FILE") -> PartT:
        """Returns the examples of a split, "test" or "validation".

        Raises:
          DataError: there are no test data; the message says how to give them, as `source`.
        """
        part = self.validation if split == "validation" else self.test
        if part is None:
            raise DataError(f"no test data: train with --data.test {source}, or use --split validation")
        return part


class Vocabulary(Protocol):
    """The meaning of a network's outputs: a tokenizer, or the names of classes. It is saved with the run."""

    @property
    def vocab_size(self) -> Any:
        """The number of outputs, or a tuple of such numbers, as `Task.network` takes them."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash; equal fingerprints mean the same outputs."""
        ...


class Predictor(Protocol):
    """A network with trained parameters and everything needed to use it."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The training steps whose parameters these are; several if they were averaged."""
        ...


class Planned(Protocol):
    """Examples with a batch plan: batch i is a pure function of the examples and of i, so that runs can resume."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in one pass over all examples."""
        ...

    def batch(self, step: int, *, rows: Rows | None = None) -> Any:
        """Returns batch number `step`, a pytree of numpy arrays.

        Args:
          rows: the rows to make: ``rows(B)`` gives the sorted indices of those that this process needs of a batch of B
            rows; by default all. Indices from B on fill up the batch for the mesh: they are empty rows, without loss.
        """
        ...


PlannedT = TypeVar("PlannedT", bound=Planned)


@dataclasses.dataclass(frozen=True)
class InTurn(Generic[PlannedT]):
    """The batches of several corpora, one corpus after another."""

    parts: Mapping[str, PlannedT]

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in one pass over all corpora."""
        return sum(part.steps_per_epoch for part in self.parts.values())

    def batch(self, step: int, *, rows: Rows | None = None) -> Any:
        """Returns batch number `step`, from 0 to ``steps_per_epoch - 1``; see `Planned.batch`."""
        for part in self.parts.values():
            if step < part.steps_per_epoch:
                return part.batch(step, rows=rows)
            step -= part.steps_per_epoch
        raise IndexError("there is no such batch")


@dataclasses.dataclass(frozen=True)
class Data(Generic[PlannedT]):
    """A corpus prepared for training."""

    train: PlannedT
    validation: PlannedT | InTurn[PlannedT]
    """The held-out examples, of one corpus or of several, for which validations are by corpus, with the mean."""
    vocabulary: Vocabulary
    report: Sequence[str] = ()
    """Lines that describe the data, including skipped examples."""
    lengths: Sequence[int] = ()
    """The padded lengths of batches; empty for data without a length."""

    def batches(self, start: int, rows: Rows) -> Iterator[Any]:
        """Yields training batches ``start, start + 1, ...`` without end; for `rows`, see `Planned.batch`."""
        return batches(functools.partial(self.train.batch, rows=rows), start=start)

    def validation_batches(self, rows: Rows, name: str = "") -> Iterator[Any]:
        """Yields batches that hold each validation example once; of the corpus of this name, if there are several."""
        part = self.validation.parts[name] if name and isinstance(self.validation, InTurn) else self.validation
        return batches(functools.partial(part.batch, rows=rows), stop=part.steps_per_epoch)


AnyNet = Pure[Any, Any]
"""Any model as pure functions."""

ModelT = TypeVar("ModelT", bound=Callable[..., Any])
BatchT = TypeVar("BatchT")


@dataclasses.dataclass(frozen=True)
class Network(Generic[ModelT, BatchT]):
    """A model with its loss. Shapes, costs and abstract batches follow from one row of a batch."""

    net: Pure[ModelT, Any]
    loss: Callable[[ModelT, BatchT, jax.Array | None], LossSums]
    """Function from the model, a batch and the key of dropout to the training loss, summed over the batch, the number
    of its terms, and additional sums for the log. Without a key, there is no dropout."""
    row: Callable[[int], Any]
    """Function from a length to a batch of one row; only shapes and dtypes are read, and rows are the first dimension
    of all arrays."""
    largest_batch: tuple[int, int]
    """The number of rows and the length of the batch that needs the most memory."""
    validation_loss: Callable[[ModelT, BatchT], LossSums] | None = None
    """The loss by which models are compared, with sums for `Task.measure`; by default `loss` without dropout."""
    unit: str = "tokens"
    """The plural name of the terms that the loss counts."""
    has_term_per_row: bool = False
    """True if the loss has a term for each row, not for each position."""
    sharded_axes: tuple[AxisName, ...] = ("batch", "length")
    """The dimensions of activations that a mesh may shard, in addition to those of parameters."""
    averages: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The decay of each parameter that is a moving average and not trained by Adam: see `training.averaging`."""

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return self.net.num_parameters

    @property
    def compute_dtype(self) -> str:
        """The dtype of the matrix products' operands, the model's setting of the same name."""
        return self.net.config.compute_dtype

    def sums(self, params: Params, batch: BatchT, key: jax.Array | None) -> LossSums:
        """Returns the `loss` of these parameters."""
        return self.loss(self._bound(params, batch), batch, key)

    def validation_sums(self, params: Params, batch: BatchT) -> LossSums:
        """Returns the `validation_loss` of these parameters."""
        if self.validation_loss is None:
            return self.sums(params, batch, None)
        return self.validation_loss(self._bound(params, batch), batch)

    def _bound(self, params: Params, batch: BatchT) -> ModelT:
        """Returns the model with these parameters, for the loss of a batch: see `sharding.with_copies`."""
        return self.net.bind(sharding.with_copies(params, self.net.axes, batch, dtype=self.compute_dtype))

    def abstract_batch(self, num_rows: int, length: int, place: jax.sharding.Sharding) -> BatchT:
        """Returns a batch of ``jax.ShapeDtypeStruct``, placed by `place`, whose sequences all have this length."""
        make = lambda x: jax.ShapeDtypeStruct((num_rows, *x.shape[1:]), x.dtype, sharding=place)
        return jax.tree.map(make, self.row(length))

    def num_terms(self, batch: BatchT) -> int:
        """Returns the number of terms of a batch's loss, padding included."""
        num_rows, *lengths = batch_shape(batch)
        return num_rows if self.has_term_per_row else num_rows * lengths[-1]


def batch_shape(batch: object) -> tuple[int, ...]:
    """Returns the number of rows of a batch and the lengths of its sequences in order; 1 if it has none.

    >>> batch_shape({"source": Tokens(np.zeros((64, 48))), "target": Tokens(np.zeros((64, 32)))})
    (64, 48, 32)
    """
    leaves = jax.tree.leaves(batch, is_leaf=_is_tokens)
    return leaves[0].shape[0], *([x.shape[1] for x in leaves if isinstance(x, Tokens)] or [1])


def describe_batch(batch: object) -> str:
    """Returns the size of a batch in words: those of its sequences and images.

    >>> describe_batch({"source": Tokens(np.zeros((64, 48))), "target": Tokens(np.zeros((64, 32)))})
    '64 x 48 source tokens and 64 x 32 target tokens'
    """
    words = []
    for path, x in jax.tree_util.tree_leaves_with_path(batch, is_leaf=_is_tokens):
        if isinstance(x, Tokens):
            name = jax.tree_util.keystr(path[-1:], simple=True)
            words.append(" x ".join(map(str, x.shape)) + f" {name} tokens".replace(" tokens tokens", " tokens"))
        elif len(x.shape) == 4:
            words.append("{} images of {} x {} pixels".format(*x.shape))
    return " and ".join(words)


def _is_tokens(x: object) -> bool:
    return isinstance(x, Tokens)


AnyNetwork = Network[Any, Any]
"""The network of any task."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network with trained parameters."""

    net: AnyNet
    params: Params = dataclasses.field(repr=False)
    placement: Placement
    """The mesh whose devices share the work."""
    steps: tuple[int, ...]
    """The training steps whose parameters these are; several if they were averaged."""


@dataclasses.dataclass(frozen=True)
class CorpusScores:
    """The scores of a corpus and, for a task that scores single examples, a row of each: its prediction and scores."""

    corpus: str
    """The name of the corpus."""
    scores: list[Score]
    examples: Sequence[Mapping[str, object]] | None = None


def _refuse_files(config: TaskConfig, files: Sequence[str | os.PathLike[str]]) -> Any:
    raise ConfigError(f"a run of {config.task} is scored on its own data, not on other files")


ConfigT = TypeVar("ConfigT", bound=TaskConfig)
CorpusT = TypeVar("CorpusT", bound=Corpus)
PredictorT = TypeVar("PredictorT", bound=Predictor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Generic[ConfigT, CorpusT, PredictorT]):
    """A kind of experiment; see the docstring of this module."""

    config: type[ConfigT]
    """The class of its settings, whose `task` is the task's name."""
    read: Callable[[ConfigT], CorpusT]
    """Reads or generates the corpus; raises a DataError if a file is missing, malformed or not named."""
    prepare: Callable[[ConfigT, CorpusT, pathlib.Path], Data[Any]]
    """Learns or loads the vocabulary of the run in a folder, saves it there, and plans batches; raises a DataError if
    the corpus does not fit the settings."""
    vocabulary: Callable[[pathlib.Path], Vocabulary]
    """Loads the vocabulary of a run."""
    vocab_size: Callable[[ConfigT], Any]
    """Returns the `Vocabulary.vocab_size` that the settings determine, for plans without data; raises an
    UnknownSizeError if only the data do."""
    network: Callable[[ConfigT, Any, AttentionFunction], AnyNetwork]
    """Builds the network for a vocabulary size, with the attention function of its model: `functional.attention`, that
    of a mesh, or `planning.flops.attention`. Nothing is allocated."""
    predictor: Callable[[ConfigT, Any, Trained], PredictorT]
    """Makes a predictor from the vocabulary and a trained network."""
    score: Callable[[ConfigT, CorpusT, PredictorT, str, Say], Iterable[CorpusScores]]
    """Scores a split, "test" or "validation"; raises a DataError if there is no such split."""
    metrics: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """The validation metrics besides the loss; True if a higher value is better."""
    measure: Callable[[ConfigT, CorpusT, Data[Any], PredictorT, Sums], Mapping[str, float]] = lambda *args: {}
    """Returns the `metrics` of a validation, from the results of `sum_losses` over the validation data."""
    default_split: str = "test"
    """The split that is scored by default."""
    read_test: Callable[[ConfigT, Sequence[str | os.PathLike[str]]], CorpusT] = _refuse_files
    """Reads files as a corpus with only a test part; by default, this is not supported (a ConfigError)."""
    renamed: Callable[[Params, TaskConfig, pathlib.Path, pathlib.Path], Params] = lambda params, *runs: params
    """Returns the parameters of the run that `init_from` names, nested as in this one; from its configuration, its
    folder, and the folder of this run."""
    commands: tuple[str, ...] = ()
    """The subcommands that use the task's predictor, besides those of every task."""
    vocabulary_files: tuple[str, ...] = ("tokenizer.model", "tokenizer.json")
    """The names that a saved vocabulary may have in a run directory."""

    __repr__ = brief

    @property
    def name(self) -> str:
        """The name of the task, which is saved in a run's config.json."""
        return self.config.task
