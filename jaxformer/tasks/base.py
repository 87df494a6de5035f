"""The interface of a task: its data, its network and its predictor.

A task reads a corpus, prepares batches, builds a network with its loss, and makes a predictor from trained parameters.
The runner does the work that all tasks share: run directories, meshes, checkpoints, training, validation, averaging,
planning. A new task is one module with a configuration (a `TaskConfig`), these classes, and the value ``TASK``;
`registry` lists its name.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import jax
import numpy as np

from jaxformer import functional, sharding
from jaxformer.axes import AxisName
from jaxformer.data.batch import Rows
from jaxformer.data.pipeline import batches
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import Score
from jaxformer.modules import AttentionFunction
from jaxformer.modules.pure import Params, Pure
from jaxformer.sharding import Placement
from jaxformer.tasks.batched import one_behind
from jaxformer.tasks.config import TaskConfig

Say = Callable[[str], None]
"""A function that shows one line to the user."""

OnExamples = Callable[[str, Sequence[Mapping[str, Any]]], None]
"""A function that takes the name of a corpus and one row per example: its prediction and its scores."""


LossSums = tuple[jax.Array, jax.Array, dict[str, jax.Array]]
"""The loss summed over a batch, the number of its terms, and additional sums."""


def sum_losses(results: Iterable[LossSums]) -> dict[str, Any]:
    """Adds the results of `Network.validation_loss` over batches, in float64: "loss", "count", and the additional sums.

    Each result is read only after the next one has been requested, so that the device need not wait for the host.

    >>> import jax.numpy as jnp
    >>> sums = sum_losses([(jnp.float32(3), jnp.float32(2), {"correct": jnp.float32(1)})] * 2)
    >>> {name: float(value) for name, value in sums.items()}
    {'loss': 6.0, 'count': 4.0, 'correct': 2.0}
    """
    sums: dict[str, Any] = {}
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
        """The number of outputs, or a tuple of such numbers: the `vocab_size` of `Task.network`."""
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


ConfigT = TypeVar("ConfigT", bound=TaskConfig)
CorpusT = TypeVar("CorpusT", bound=Corpus)
VocabularyT = TypeVar("VocabularyT", bound=Vocabulary)
PredictorT = TypeVar("PredictorT", bound=Predictor)
BatchT = TypeVar("BatchT")


class Data(abc.ABC, Generic[VocabularyT]):
    """A corpus prepared for training: batches as pure functions of their number."""

    vocabulary: VocabularyT

    @property
    @abc.abstractmethod
    def report(self) -> Sequence[str]:
        """Lines that describe the data, including skipped examples."""

    @property
    def lengths(self) -> Sequence[int]:
        """The padded lengths of batches; by default empty, for data without a length."""
        return ()

    @abc.abstractmethod
    def batches(self, start: int, rows: Rows) -> Iterator[object]:
        """Yields training batches ``start, start + 1, ...`` without end, as pytrees of numpy arrays.

        Args:
          rows: the rows to make: ``rows(B)`` gives the sorted indices of those that this process needs of a batch of B
            rows. Indices from B on fill up the batch for the mesh: they are empty rows, without loss.
        """

    @abc.abstractmethod
    def validation_batches(self, rows: Rows) -> Iterator[object]:
        """Yields batches that hold each validation example once; `rows` as in `batches`."""


class Planned(Protocol):
    """Examples with a batch plan."""

    @property
    def steps_per_epoch(self) -> int: ...

    def batch(self, step: int, *, rows: Rows | None = None) -> object: ...


class PlannedData(Data[VocabularyT]):
    """Data whose training and validation examples have batch plans."""

    train: Planned
    validation: Planned

    def batches(self, start: int, rows: Rows) -> Iterator[Any]:
        return batches(functools.partial(self.train.batch, rows=rows), start=start)

    def validation_batches(self, rows: Rows) -> Iterator[Any]:
        return batches(functools.partial(self.validation.batch, rows=rows), stop=self.validation.steps_per_epoch)


class Network(abc.ABC, Generic[BatchT]):
    """A model with its loss, and the shapes of its batches."""

    net: Pure[Any, Any]
    largest_batch: tuple[int, int]
    """The number of rows and the length of the batch that needs the most memory."""
    unit: ClassVar[str] = "tokens"
    """The plural name of the terms that the loss counts, such as "tokens"."""

    @property
    def num_parameters(self) -> int:
        """The number of parameters."""
        return self.net.num_parameters

    def bound(self, params: Params, batch: BatchT) -> Any:
        """Returns the model with these parameters, for the loss of a batch: see `sharding.with_copies`."""
        return self.net.bind(sharding.with_copies(params, self.net.axes, batch, dtype=self.net.config.compute_dtype))

    @property
    def sharded_axes(self) -> tuple[AxisName, ...]:
        """The dimensions of activations that a mesh may shard, in addition to those of parameters."""
        return "batch", "length"

    @property
    def averages(self) -> Mapping[str, float]:
        """The decay of each parameter that is a moving average and not trained by Adam: see `training.averaging`."""
        return {}

    @property
    def compute_dtype(self) -> str:
        """The dtype of the matrix products' operands; by default, the model's setting of the same name."""
        return self.net.config.compute_dtype

    @abc.abstractmethod
    def loss(self, params: Params, batch: BatchT, key: jax.Array | None) -> LossSums:
        """Returns the training loss summed over a batch, the number of its terms, and additional sums for the log."""

    def validation_loss(self, params: Params, batch: BatchT) -> LossSums:
        """Returns the loss by which models are compared, as sum and number of terms, and sums for `validation_metrics`.

        By default it is `loss` without dropout.
        """
        return self.loss(params, batch, None)

    def shape(self, batch: Any) -> tuple[int, ...]:
        """Returns the number of rows of a batch, then its lengths, with the predicted sequence's length last.

        By default, it is the shape of ``batch.tokens``.
        """
        return batch.tokens.shape

    def planned_shape(self, num_rows: int, length: int) -> tuple[int, ...]:
        """Returns the `shape` of a batch of `num_rows` rows whose sequences all have this length."""
        return num_rows, length

    @abc.abstractmethod
    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> object:
        """Returns a batch of ``jax.ShapeDtypeStruct`` of this shape, placed by `rows`."""

    def describe(self, shape: tuple[int, ...]) -> str:
        """Returns the size of a batch in words; by default such as "64 x 128 tokens"."""
        return " x ".join(map(str, shape)) + " tokens"

    def num_terms(self, shape: tuple[int, ...]) -> int:
        """Returns the number of terms of a batch's loss, padding included; by default rows x last length."""
        return shape[0] * shape[-1]


@dataclasses.dataclass(frozen=True)
class Trained:
    """A network with trained parameters."""

    net: Pure[Any, Any]
    params: Params = dataclasses.field(repr=False)
    placement: Placement
    """The mesh whose devices share the work."""
    steps: tuple[int, ...]
    """The training steps whose parameters these are; several if they were averaged."""


class Task(abc.ABC, Generic[ConfigT, CorpusT, BatchT, VocabularyT, PredictorT]):
    """A kind of experiment; see the docstring of this module."""

    name: ClassVar[str]
    commands: ClassVar[tuple[str, ...]] = ()
    """The subcommands that use the task's predictor, besides those of every task."""
    vocabulary_files: ClassVar[tuple[str, ...]] = ("tokenizer.model", "tokenizer.json")
    """The names that a saved vocabulary may have in a run directory."""
    metrics: ClassVar[Mapping[str, bool]] = {}
    """The validation metrics besides the loss; True if a higher value is better."""
    default_split: ClassVar[str] = "test"
    """The split that is scored by default."""
    config: type[ConfigT]

    def check(self, config: ConfigT) -> None:
        """Checks that settings are compatible with each other, before anything is read.

        Raises:
          ConfigError: two settings contradict each other; the message names both.
        """
        del config

    def check_init(self, config: ConfigT, source: TaskConfig) -> None:
        """Checks that settings are compatible with the run that `init_from` names, before anything is read.

        Raises:
          ConfigError: this run cannot start from that one.
        """
        del config, source

    def renamed(self, params: Params, source: TaskConfig, *, there: pathlib.Path, here: pathlib.Path) -> Params:
        """Returns the parameters of the run in `there`, which `init_from` names, nested as in this one, in `here`."""
        del source, there, here
        return params

    @abc.abstractmethod
    def read(self, config: ConfigT) -> CorpusT:
        """Reads or generates the corpus.

        Raises:
          DataError: a file is missing, malformed or not named.
        """

    def read_test(self, config: ConfigT, files: Sequence[str | os.PathLike[str]]) -> CorpusT:
        """Reads files as a corpus with only a test part; by default, this is not supported.

        Raises:
          ConfigError: the task does not support this, or takes another number of files.
          DataError: a file is missing or malformed.
        """
        del config, files
        raise ConfigError(f"a run of {self.name} is scored on its own data, not on other files")

    @abc.abstractmethod
    def prepare(self, config: ConfigT, corpus: CorpusT, run: pathlib.Path) -> Data[VocabularyT]:
        """Learns or loads the run's vocabulary, saves it in `run`, and plans batches.

        Raises:
          DataError: the corpus does not fit the settings.
        """

    @abc.abstractmethod
    def vocabulary(self, run: pathlib.Path) -> VocabularyT:
        """Loads the vocabulary of a run."""

    def min_vocab_size(self, config: ConfigT) -> Any:
        """Returns the smallest possible vocabulary size, to check settings before the data determine it."""
        del config
        return 1

    @abc.abstractmethod
    def planned_vocab_size(self, config: ConfigT) -> Any:
        """Returns the vocabulary size that the settings determine, for plans without data.

        Raises:
          ConfigError: the settings do not determine it.
        """

    def smaller_batch(self, config: ConfigT, num_rows: int) -> str:
        """Returns the option for batches of `num_rows` rows; an empty string by default or if training rejects it."""
        del config, num_rows
        return ""

    @abc.abstractmethod
    def network(
        self, config: ConfigT, vocab_size: Any, attention: AttentionFunction = functional.attention
    ) -> Network[BatchT]:
        """Builds the network without allocating parameters.

        Args:
          attention: the attention of its model: `functional.attention`, that of a mesh, or `planning.flops.attention`.
        """

    @abc.abstractmethod
    def predictor(self, config: ConfigT, vocabulary: VocabularyT, trained: Trained) -> PredictorT:
        """Makes a predictor from a trained network."""

    def validation_metrics(
        self, config: ConfigT, corpus: CorpusT, data: Any, predictor: PredictorT, sums: Mapping[str, Any]
    ) -> Mapping[str, float]:
        """Returns the metrics of a validation besides the loss; none by default.

        Args:
          sums: the results of `Network.validation_loss`, summed over the validation data by `sum_losses`.
        """
        del config, corpus, data, predictor, sums
        return {}

    @abc.abstractmethod
    def evaluate(
        self, config: ConfigT, corpus: CorpusT, predictor: PredictorT, *, split: str, say: Say, on_examples: OnExamples
    ) -> dict[str, list[Score]]:
        """Returns the scores of a split ("test" or "validation"), by name of the corpus.

        A task that scores single examples passes their rows to `on_examples`.

        Raises:
          DataError: there is no such split.
        """
