"""What a task is: everything that the runner needs to know of it, and nothing that is the same for every task.

A task reads a corpus, prepares batches, builds a network with its loss, and makes a predictor of trained parameters.
The runner does the rest: run directories, meshes, checkpoints, training, validation, averaging, planning. A new task is
one module with a configuration (a `TaskConfig`), these classes, and the value ``TASK``; `registry` lists its name.
"""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import jax

from jaxformer import functional
from jaxformer.config import PLACE, at_least
from jaxformer.evaluation.scores import Score
from jaxformer.modules.pure import Params, Pure
from jaxformer.planning.forecast import Costs
from jaxformer.sharding import Placement
from jaxformer.training.config import TrainConfig
from jaxformer.training.optimizers import OptimizerConfig

Say = Callable[[str], None]
"""Takes one line for the person who watches."""

Rows = Callable[[int], Any]
"""From the number of rows of a whole batch to the indices, in order, of the rows that this process reads."""

AttentionFunction = Callable[..., jax.Array]
"""A function with the signature of `functional.attention`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The settings that every task has; a task adds `model`, `data` and, where something is searched, `decode`."""

    name: str = "run"
    """The run's name in logs and pictures."""
    seed: int = 0
    """Parameters, dropout and the order of the data follow from it."""
    init_from: str = ""
    """Start from the parameters of another run: RUN or RUN:CHECKPOINT. Its tokenizer is used, too."""
    mesh: str = dataclasses.field(default="", metadata=PLACE)
    """Axes of the device mesh, such as "data=8,tensor=4"; by default all devices are `data`."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Adam and its schedule."""
    train: TrainConfig = TrainConfig()
    """Steps, validation, checkpoints."""

    def __post_init__(self) -> None:
        at_least(0, self, "seed")
        if self.seed >= 2**32:  # JAX's keys would be those of a smaller seed
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")


class Corpus(Protocol):
    """Data as read: text, or the places of images. Reading it writes nothing."""

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """A hash of each part that training must not see changed; `train` and `validation` at least."""
        ...


class Vocabulary(Protocol):
    """The meaning of a network's outputs: a tokenizer, or the names of classes. It is saved with the run."""

    @property
    def vocab_size(self) -> int:
        """The number of outputs."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash: equal fingerprints, equal meaning."""
        ...


class Predictor(Protocol):
    """A network with trained parameters and everything needed to use it."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The training steps whose parameters these are; several when they were averaged."""
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
        """Lines that say what there is and what was left out."""

    @property
    @abc.abstractmethod
    def lengths(self) -> Sequence[int]:
        """The padded lengths of batches, for the mesh to check; empty where nothing has a length."""

    @abc.abstractmethod
    def batches(self, start: int, rows: Rows) -> Iterator[object]:
        """Yields training batches ``start, start + 1, ...`` without end, as pytrees of numpy arrays."""

    @abc.abstractmethod
    def validation_batches(self, rows: Rows) -> Iterator[object]:
        """Yields batches that hold each validation example once."""


class Network(abc.ABC, Generic[BatchT]):
    """A model with its loss, and what a step on a batch costs."""

    net: Pure[Any, Any]
    largest_batch: tuple[int, int]
    """Rows and length of the batch that needs most memory."""

    @property
    @abc.abstractmethod
    def num_parameters(self) -> int:
        """The number of parameters."""

    @property
    def compute_dtype(self) -> str:
        """The dtype of the matrix products' operands; by default the model's setting of this name."""
        return self.net.config.compute_dtype

    @abc.abstractmethod
    def loss(
        self, params: Params, batch: BatchT, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        """Returns the training loss summed over a batch, the number of its terms, and further figures."""

    @abc.abstractmethod
    def validation_loss(self, params: Params, batch: BatchT) -> tuple[jax.Array, jax.Array]:
        """Returns the loss by which models are compared, without dropout or smoothing, as (sum, count)."""

    @abc.abstractmethod
    def shape(self, batch: BatchT) -> tuple[int, ...]:
        """Returns the rows of a batch, then its lengths; the last is that of what is predicted."""

    def planned_shape(self, num_rows: int, length: int) -> tuple[int, ...]:
        """Returns the `shape` of a batch of so many rows whose sequences all have this length; one a row by default."""
        return num_rows, length

    @abc.abstractmethod
    def abstract_batch(self, shape: tuple[int, ...], rows: jax.sharding.Sharding) -> object:
        """Returns a batch of ``jax.ShapeDtypeStruct`` of this shape, placed by `rows`."""

    @abc.abstractmethod
    def describe(self, shape: tuple[int, ...]) -> str:
        """Returns the size of a batch in words, such as "64 x 128 tokens"."""

    @abc.abstractmethod
    def training_flops(self, shape: tuple[int, ...]) -> float:
        """Returns the model's floating-point operations in a training step; padded places count."""

    @abc.abstractmethod
    def computed_flops(self, shape: tuple[int, ...]) -> float:
        """Returns the operations that the devices perform, with what the backward pass computes again."""

    def costs(self, shape: tuple[int, ...]) -> Costs:
        """Returns the size and arithmetic of a training step on a batch of this shape."""
        return Costs(
            batch=shape,
            description=self.describe(shape),
            tokens=shape[0] * shape[-1],
            parameters=self.num_parameters,
            flops=self.training_flops(shape),
            computed_flops=self.computed_flops(shape),
            compute_dtype=self.compute_dtype,
        )


class Task(abc.ABC, Generic[ConfigT, CorpusT, BatchT, VocabularyT, PredictorT]):
    """A kind of experiment; see the module."""

    name: ClassVar[str]
    commands: ClassVar[tuple[str, ...]] = ()
    """The commands of the command line that use its predictor, besides those that every task has."""
    vocabulary_files: ClassVar[tuple[str, ...]] = ("tokenizer.model", "tokenizer.json")
    """The names that a saved vocabulary may have in a run directory."""
    figures: ClassVar[Mapping[str, bool]] = {}
    """The validation figures besides the loss; True where a figure grows as a model improves."""
    default_split: ClassVar[str] = "test"
    """The split that is scored when none is named."""
    config: type[ConfigT]

    def check(self, config: ConfigT) -> None:
        """Refuses settings that contradict each other, before anything is read.

        Raises:
          ConfigError: with both settings.
        """
        del config

    @abc.abstractmethod
    def read(self, config: ConfigT) -> CorpusT:
        """Reads or generates the corpus.

        Raises:
          DataError: files that are missing, malformed or not named.
        """

    @abc.abstractmethod
    def prepare(self, config: ConfigT, corpus: CorpusT, run: pathlib.Path) -> Data[VocabularyT]:
        """Learns or loads the run's vocabulary, which it saves in `run`, and plans batches.

        Raises:
          DataError: the corpus does not fit the settings.
        """

    @abc.abstractmethod
    def vocabulary(self, run: pathlib.Path) -> VocabularyT:
        """Loads the vocabulary of a run."""

    @abc.abstractmethod
    def planned_vocab_size(self, config: ConfigT) -> int:
        """Returns the vocabulary size that settings promise, for plans without data.

        Raises:
          ConfigError: they leave it open.
        """

    def smaller_batch(self, config: ConfigT, num_rows: int) -> str:
        """Returns the option for batches of so many rows; empty where training would refuse them, as by default."""
        del config, num_rows
        return ""

    @abc.abstractmethod
    def network(
        self, config: ConfigT, vocab_size: int, attention: AttentionFunction = functional.attention
    ) -> Network[BatchT]:
        """Builds the network; allocates nothing."""

    @abc.abstractmethod
    def predictor(
        self,
        config: ConfigT,
        vocabulary: VocabularyT,
        net: Pure[Any, Any],
        params: Params,
        placement: Placement,
        steps: tuple[int, ...],
    ) -> PredictorT:
        """Makes the predictor of trained parameters; `placement` is the mesh whose devices share the work."""

    def validation_figures(
        self, config: ConfigT, corpus: CorpusT, data: Any, predictor: PredictorT
    ) -> Mapping[str, float]:
        """Returns figures besides the loss, for each validation; none by default."""
        del config, corpus, data, predictor
        return {}

    @abc.abstractmethod
    def evaluate(
        self, config: ConfigT, corpus: CorpusT, predictor: PredictorT, *, split: str, say: Say
    ) -> dict[str, list[Score]]:
        """Scores a split ("test" or "validation"), by the name of the corpus.

        Raises:
          DataError: there is no such data.
        """
