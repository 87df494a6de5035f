"""The corpora of a translation experiment, from its data configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from jaxformer import demo
from jaxformer.data.sources import Parallel, locate, num_held_out, read_parallel, read_table, split_by_source
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import local_path
from jaxformer.tasks.translation.config import DataConfig


@dataclasses.dataclass(frozen=True)
class Corpora:
    """Sentence pairs for training, validation and tests; some corpora have more than one test."""

    train: Parallel
    validation: Parallel
    tests: dict[str, Parallel]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and the validation data."""
        return {"train": self.train.fingerprint, "validation": self.validation.fingerprint}


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several corpora by name."""

    parts: dict[str, Corpora]
    left_out: dict[str, int]
    """The number of training pairs of each that are left out because another one holds out one of their sentences."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and the validation data of all corpora."""
        found = [(name, part.fingerprints) for name, part in self.parts.items()]
        return {key: short_digest(f"{name} {each[key]}\n" for name, each in found) for key in ("train", "validation")}

    def sentences(self) -> Parallel:
        """Returns each training sentence once, to learn a vocabulary from: sources, and targets that are no sources."""
        sources = dict.fromkeys(text for part in self.parts.values() for text in part.train.source)
        targets = dict.fromkeys(text for part in self.parts.values() for text in part.train.target)
        return Parallel(tuple(sources), tuple(text for text in targets if text not in sources))


def load_mixture(config: DataConfig) -> Mixture:
    """Reads all corpora of an experiment with several.

    No sentence that one of them translates in a held-out pair is in a training pair of any of them, on either side:
    otherwise the corpora of both directions would train on each other's held-out pairs.

    Raises:
      DataError: see `load_corpora`, with the name of the corpus; or a corpus has no other pairs to train on.
    """
    parts, held_out = dict[str, Corpora](), set[str]()
    for name in config.corpora:
        only = config.only(name)
        try:
            part = parts[name] = load_corpora(only)
        except DataError as error:
            raise DataError(f"data.corpora.{name}: {error}") from error
        if not only.validation_source:
            held_out.update(part.validation.source)
        if not only.test_source:
            held_out.update(text for test in part.tests.values() for text in test.source)
    left_out = dict[str, int]()
    for name, part in parts.items():
        train = part.train
        kept = [pair for pair in zip(train.source, train.target, strict=True) if held_out.isdisjoint(pair)]
        left_out[name] = len(train) - len(kept)
        if not kept:
            raise DataError(f"data.corpora.{name}: all pairs hold a sentence that another corpus holds out")
        if left_out[name]:
            sources, targets = zip(*kept, strict=True)
            train = Parallel(sources, targets, train.empty, train.overlong)
        parts[name] = Corpora(train, part.validation, part.tests)
    return Mixture(parts, left_out)


def load_corpora(config: DataConfig) -> Corpora:
    """Reads or generates every corpus of an experiment; the same pairs are held out for every seed of a run.

    Raises:
      DataError: a file is missing, malformed or not named.
    """
    if config.corpus == "grammar":
        return _grammar(config.grammar_pairs)
    if not config.source:
        raise DataError(
            "no training data: give --data.source FILE and --data.target FILE (or a table as --data.source)"
        )
    train = _read(config, config.source, config.target)
    named = {
        "validation": (config.validation_source, config.validation_target),
        "test": (config.test_source, config.test_target),
    }
    for part, (source, target) in named.items():
        if target and not source:
            raise DataError(f"--data.{part}-target {target} is given, but no --data.{part}-source")
    parts = {part: _read(config, *files) for part, files in named.items() if files[0]}
    missing = [part for part in named if part not in parts]
    if "validation" in missing and not config.held_out:
        raise DataError("no validation data: give --data.validation-source FILE, or --data.held-out more than 0")
    if missing:
        number = num_held_out(config.held_out, len(train)) if config.held_out else 0
        train, *held_out = split_by_source(train, held_out=[number] * len(missing), seed=0)
        parts.update(zip(missing, held_out, strict=True))
    return Corpora(train, parts["validation"], {"test": parts["test"]})


def load_test(config: DataConfig, files: Sequence[str | os.PathLike[str]]) -> Corpora:
    """Reads only test data, named after its first file: two aligned files, or a table with the run's columns.

    Raises:
      ConfigError: there are more than two files, or one is a URL.
      DataError: a file is missing or malformed.
    """
    if len(files) > 2:
        raise ConfigError(
            f"a translator is scored on a file of sentences and one of translations, got {len(files)} files"
        )
    paths = [local_path(file) for file in files]
    pairs = read_parallel(*paths) if len(paths) == 2 else read_table(*paths, columns=config.columns)
    nothing = Parallel((), ())
    return Corpora(nothing, nothing, {paths[0].name: pairs})


def _read(config: DataConfig, source: str, target: str) -> Parallel:
    if target:
        return read_parallel(locate(source, config.directory), locate(target, config.directory))
    return read_table(locate(source, config.directory), columns=config.columns)


def _grammar(num_pairs: int) -> Corpora:
    splits = demo.splits(num_train=num_pairs)
    tests = {"unseen sentences": _parallel(splits.seen), "unseen combinations": _parallel(splits.unseen)}
    return Corpora(_parallel(splits.train), _parallel(splits.validation), tests)


def _parallel(pairs: Sequence[demo.Pair]) -> Parallel:
    return Parallel(tuple(p.english for p in pairs), tuple(p.french for p in pairs))
