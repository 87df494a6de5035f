"""The corpora of a translation experiment, from its data configuration."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence

from jaxformer import demo
from jaxformer.caches import data_cache
from jaxformer.data.distinct import DistinctSentences
from jaxformer.data.pairs import PairFiles, Pairs, Parallel, read_pairs, read_parallel, read_table
from jaxformer.data.reading import read_split, read_without
from jaxformer.data.sources import locate_all
from jaxformer.digests import sealed, short_digest, unsealed
from jaxformer.errors import ConfigError, DataError
from jaxformer.files import local_path, write_bytes
from jaxformer.tasks.translation.config import DataConfig

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Corpora:
    """Sentence pairs for training, validation and tests; some corpora have more than one test."""

    train: Pairs
    validation: Pairs
    tests: Mapping[str, Pairs]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and the validation data."""
        return {"train": self.train.fingerprint, "validation": self.validation.fingerprint}

    def part(self, split: str) -> Mapping[str, Pairs]:
        """Returns the pairs of a split, "test" or "validation", by name.

        Raises:
          DataError: it is empty.
        """
        found = {"validation": self.validation} if split == "validation" else self.tests
        if not all(map(len, found.values())):
            raise DataError(f"no {split} data: the run's data.held_out is 0, and it names no files for them")
        return found


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

    def part(self, split: str) -> dict[str, Mapping[str, Pairs]]:
        """Returns `Corpora.part` of each."""
        return {name: part.part(split) for name, part in self.parts.items()}

    @property
    def num_lines(self) -> int:
        """The number of training sentences of all corpora, on both sides."""
        return sum(part.train.num_lines for part in self.parts.values())

    def sentences(self, most: int) -> DistinctSentences:
        """Returns at most this number of different training sentences, to learn a vocabulary from."""
        return DistinctSentences(tuple(part.train for part in self.parts.values()), most)


def load_mixture(config: DataConfig) -> Mixture:
    """Reads all corpora of an experiment with several.

    No sentence that one of them translates in a held-out pair is in a training pair of any of them, on either side:
    otherwise the corpora of both directions would train on each other's held-out pairs.

    Raises:
      DataError: see `load_corpora`, with the name of the corpus; or a corpus has no other pairs to train on.
    """
    parts, held_out, cache = dict[str, Corpora](), set[str](), data_cache(config.cache)
    for name in config.corpora:
        only = config.only(name)
        try:
            part = parts[name] = load_corpora(only)
        except DataError as error:
            raise DataError(f"data.corpora.{name}: {error}") from error
        if not only.validation_source:
            held_out.update(part.validation.load().source)
        if not only.test_source:
            held_out.update(text for test in part.tests.values() for text in test.load().source)
    left_out = dict[str, int]()
    for name, part in parts.items():
        train = read_without(part.train, held_out, cache=cache)
        left_out[name] = len(part.train) - len(train)
        if not len(train):
            raise DataError(f"data.corpora.{name}: all pairs hold a sentence that another corpus holds out")
        parts[name] = Corpora(train, part.validation, part.tests)
    return Mixture(parts, left_out)


def load_corpora(config: DataConfig) -> Corpora:
    """Reads or generates every corpus of an experiment; the same pairs are held out for every seed of a run.

    Raises:
      DataError: a file is missing, malformed or not named.
    """
    if config.corpus == "grammar":
        return _grammar(config.grammar_pairs, data_cache(config.cache))
    if not config.source:
        raise DataError(
            "no training data: give --data.source FILE and --data.target FILE (or a table as --data.source)"
        )
    files = _files(config, config.source, config.target)
    named = {
        "validation": (config.validation_source, config.validation_target),
        "test": (config.test_source, config.test_target),
    }
    for part, (source, target) in named.items():
        if target and not source:
            raise DataError(f"--data.{part}-target {target} is given, but no --data.{part}-source")
    parts: dict[str, Pairs] = {part: read_pairs(_files(config, *names)) for part, names in named.items() if names[0]}
    missing = [part for part in named if part not in parts]
    if "validation" in missing and not config.held_out:
        raise DataError("no validation data: give --data.validation-source FILE, or --data.held-out more than 0")
    cache = data_cache(config.cache) if files.are_large else None
    train, *held_out = read_split(files, held_out=config.held_out, parts=len(missing), cache=cache)
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


def _files(config: DataConfig, source: str, target: str) -> PairFiles:
    """Returns the files of sources and those of targets, in pairs, or tables.

    Raises:
      DataError: a file is missing or malformed, or there are more files on one side.
    """
    sides = [locate_all(names, config.directory) for names in (source, target) if names]
    if len({len(side) for side in sides}) > 1:
        raise DataError(f"{source} names {len(sides[0])} files, but {target} names {len(sides[1])}: they go in pairs")
    return PairFiles(tuple(zip(*sides, strict=True)), config.columns)


def _grammar(num_pairs: int, cache: pathlib.Path | None) -> Corpora:
    """Returns the sentences of the grammar, which the cache keeps, for they take some seconds to draw."""
    path = cache and cache / f"grammar-{num_pairs}-{demo.version()}.json"
    sides = path and _kept(path)
    if not sides:
        splits = demo.splits(num_train=num_pairs)
        parts = (splits.train, splits.validation, splits.seen, splits.unseen)
        sides = [[[pair.english for pair in part], [pair.french for pair in part]] for part in parts]
        if path:
            _keep(path, json.dumps(sides, ensure_ascii=False).encode())
    train, validation, seen, unseen = (Parallel(tuple(english), tuple(french)) for english, french in sides)
    return Corpora(train, validation, {"unseen sentences": seen, "unseen combinations": unseen})


def _kept(path: pathlib.Path) -> list[list[list[str]]] | None:
    """Returns the sentences that `_keep` wrote; None without a sound file."""
    try:
        return json.loads(unsealed(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _keep(path: pathlib.Path, text: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, sealed(text))
    except OSError as error:
        logger.warning("the sentences of the grammar are not kept for later runs: %s", error)
