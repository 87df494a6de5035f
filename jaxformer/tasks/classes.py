"""The parts that classification tasks share: the names of the classes, the labeled data, and the scores."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer import functional
from jaxformer.data.sources import locate
from jaxformer.digests import short_digest
from jaxformer.errors import DataError, UnknownSizeError, first_few
from jaxformer.evaluation.resampling import Sample
from jaxformer.evaluation.scores import Score, accuracy, matthews, matthews_of_counts
from jaxformer.files import write_text
from jaxformer.modules.pure import Params
from jaxformer.multihost import processes, storage
from jaxformer.tasks.base import CorpusScores, LossSums, Splits, Sums
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.rundir import holds_run

if TYPE_CHECKING:
    from jaxformer.data.examples import Examples
    from jaxformer.data.images import LabeledImages
    from jaxformer.data.tagged import TaggedSentences
    from jaxformer.tasks.classification.config import DataConfig as ClassificationData
    from jaxformer.tasks.tagging.config import DataConfig as TaggingData

FILE = "classes.json"
"""The file of a run directory that holds the names of the classes."""

MOST_RESAMPLED = 100
"""The number of classes up to which the Matthews correlation has a sample: two numbers for each class and example."""

Named = Iterable[Mapping[str, object]]

LabeledT = TypeVar("LabeledT", bound="Examples | LabeledImages | TaggedSentences")
TableT = TypeVar("TableT", "Examples", "TaggedSentences")


@dataclasses.dataclass(frozen=True)
class LabeledCorpus(Splits[LabeledT]):
    """Labeled data for training, validation and, optionally, a test, and the names of the classes."""

    classes: tuple[str, ...] = ()

    def indices(self, examples: Examples | LabeledImages | TaggedSentences) -> np.ndarray:
        """Returns the class index of each example."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return np.array([numbers[label] for label in examples.labels], np.int32)

    def counts(self) -> str:
        """Returns text with the number of training examples of each class, or the range of many classes' numbers."""
        counts = np.bincount(self.indices(self.train), minlength=len(self.classes))
        if len(counts) > 20:
            return f"{len(counts):,} classes of {counts.min():,} to {counts.max():,}"
        return ", ".join(f"{name} {count:,}" for name, count in zip(self.classes, counts, strict=True))

    def warnings(self) -> list[str]:
        """Returns warnings about classes without training or validation data, or with a single example."""
        lines = []
        parts = [part for part in (self.train, self.validation, self.test) if part is not None]
        number = collections.Counter(label for part in parts for label in part.labels)
        if (lone := [name for name in self.classes if number[name] == 1]) and max(number.values()) > 1:
            lines.append(
                f"WARNING: {len(lone):,} of {len(self.classes):,} classes with a single example: {first_few(lone)}; if "
                "a label is misspelled, data.classes can list the right ones"
            )
        for what, part in (("training", self.train), ("validation", self.validation)):
            found = set(part.labels)
            if missing := [name for name in self.classes if name not in found]:
                listed = f"{len(missing):,} of {len(self.classes):,} classes without {what} data: {first_few(missing)}"
                lines.append(f"WARNING: {listed}")
        return lines


@dataclasses.dataclass(frozen=True)
class Classes:
    """The names of the classes, as the vocabulary of a task."""

    names: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        """The number of classes."""
        return len(self.names)

    @property
    def fingerprint(self) -> str:
        """A hash of the names in order."""
        return short_digest([json.dumps(self.names)])


def choose(train: Examples | LabeledImages | TaggedSentences, named: Sequence[str], place: str) -> tuple[str, ...]:
    """Returns the classes: those named in the settings, or else the labels of the training data.

    Raises:
      DataError: a named class has no example, or there are fewer than two classes.
    """
    classes = tuple(named) or train.classes
    if missing := set(classes) - set(train.labels):
        raise DataError(
            f"{place} has no example of the class {min(missing)!r}, which data.classes names; add examples or leave it "
            "out"
        )
    if len(classes) < 2:
        raise DataError(f"{place} has one class, {min(classes)!r}; a classifier needs two or more")
    return classes


def read_tables(
    data: ClassificationData | TaggingData, read: Callable[..., TableT], *, what: str
) -> LabeledCorpus[TableT]:
    """Reads tables with labels; a part of those for training is held out for validation if no other file is named.

    Args:
      read: `data.examples.read_examples` or `data.tagged.read_tagged`.
      what: the plural name of what the tables hold, for the message.
    """
    if not data.train:
        raise DataError(f"no {what}: give --data.train FILE")
    separator = {"tab": "\t", "space": " "}[data.separator]

    def read_part(name: str, known: tuple[str, ...]) -> TableT:
        path = locate(name, data.directory)
        return read(path, columns=data.columns, separator=separator, label_end=data.label_end, classes=known)

    train = read_part(data.train, data.class_names)
    names = choose(train, data.class_names, train.file)
    test = read_part(data.test, names) if data.test else None
    train, validation = (train, read_part(data.validation, names)) if data.validation else train.split(data.held_out)
    return LabeledCorpus(train.first(data.max_examples or len(train)), validation, test, names)


def save(run: pathlib.Path, names: Sequence[str]) -> None:
    """Writes the names of a run's classes, unless it was started with others; all processes of the run call this."""
    path = run / FILE
    has_begun = (run / "config.json").exists() and holds_run(run)
    # The run that this one starts from may have been a classifier with other classes.
    if processes.is_first() and (not path.exists() or (load(run) != tuple(names) and not has_begun)):
        write_text(path, json.dumps({"classes": list(names)}, indent=1, ensure_ascii=False) + "\n")
    storage.wait_for_file(path)


def load(run: pathlib.Path) -> tuple[str, ...]:
    """Reads the names of a run's classes."""
    path = run / FILE
    try:
        return tuple(map(str, json.loads(path.read_text(encoding="utf-8"))["classes"]))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, RecursionError, TypeError) as error:
        raise DataError(f"{path} is damaged: it holds no names of classes") from error


def renamed(params: Params, source: TaskConfig, there: pathlib.Path, here: pathlib.Path) -> Params:
    """Returns the parameters of the run `there`, its output layer under another name if `here` has other classes.

    Two runs may have equally many classes: other ones, or the same ones in another order.
    """
    if not (there / FILE).exists() or load(there) == load(here):
        return params
    return {"output_of_other_classes" if name == "output" else name: value for name, value in params.items()}


def losses(logits: Float[Array, "B C"], labels: Int[Array, " B"], where: Bool[Array, " B"]) -> LossSums:
    """Returns the cross entropy of the correct classes as (sum, count), and sums for `measure`.

    Args:
      where: True for examples to count; other rows only fill up a batch.
    """
    total, count = functional.cross_entropy(logits[:, None], labels[:, None], where=where[:, None])
    predictions, num_classes = logits.argmax(-1), logits.shape[-1]
    number = lambda chosen: jnp.where(where[:, None], jax.nn.one_hot(chosen, num_classes), 0.0).sum(0)
    correct = (where & (predictions == labels)).astype(jnp.float32).sum()
    return total, count, {"correct": correct, "labels": number(labels), "predictions": number(predictions)}


METRICS = {"accuracy": True, "matthews": True}
"""The metrics of a validation; True if a higher value is better."""


def measure(config: TaskConfig, corpus: object, data: object, predictor: object, sums: Sums) -> dict[str, float]:
    """Returns accuracy and Matthews correlation from the sums of `losses`."""
    correct, count = float(sums["correct"]), float(sums["labels"].sum())
    correlation = matthews_of_counts(correct, sums["labels"], sums["predictions"])
    return {"accuracy": accuracy(correct, count).value, "matthews": correlation.value}


def scores(labels: np.ndarray, probabilities: np.ndarray) -> list[Score]:
    """Returns accuracy and Matthews correlation, from class probabilities ``[examples, classes]``."""
    guesses, number = probabilities.argmax(1), probabilities.shape[1]
    correct = labels == guesses
    found = accuracy(float(correct.sum()), len(labels)), matthews(labels, guesses)
    samples = [Sample.mean(correct), None]
    if number <= MOST_RESAMPLED:
        one_hot = np.eye(number)
        make = lambda: np.concatenate([correct[:, None], one_hot[labels], one_hot[guesses]], 1)
        samples[1] = Sample(make, lambda sums: matthews_of_counts(sums[0], *np.split(sums[1:], 2)).value)
    return [dataclasses.replace(score, sample=sample) for score, sample in zip(found, samples, strict=True)]


def corpus_scores(
    split: str, corpus: LabeledCorpus, labels: np.ndarray, probabilities: np.ndarray, whats: Named
) -> CorpusScores:
    """Returns accuracy and Matthews correlation of a split, and the guess for each of its examples.

    Args:
      labels: the class index of each example.
      probabilities: ``[examples, classes]``.
      whats: what each example is, such as ``{"text": "..."}``.
    """
    examples = [
        {
            **what,
            "label": corpus.classes[label],
            "guess": corpus.classes[guess],
            "probability": round(float(by_class[label]), 4),
        }
        for what, label, guess, by_class in zip(whats, labels, probabilities.argmax(1), probabilities, strict=True)
    ]
    return CorpusScores(split, scores(labels, probabilities), examples)


def num_classes(setting: int, names: Sequence[str], smallest: int | tuple[int, ...]) -> int:
    """Returns the number of classes that settings determine: `model.num_classes`, or that of the names in `data`."""
    if not setting and not names:
        message = "the number of classes is not known without the data: give --model.num_classes N"
        raise UnknownSizeError(message, smallest)
    return setting or len(names)
