"""The weights of several corpora in one training, step by step: settings, and the phases that follow from them."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxformer.config import LARGEST_FLOAT, LATER, at_least
from jaxformer.errors import ConfigError
from jaxformer.reprs import brief


class Phases(NamedTuple):
    """The weights of C corpora in P phases; phase p has the batches from ``starts[p]`` to the next phase."""

    starts: tuple[int, ...]  # rising from 0
    weights: tuple[tuple[float, ...], ...]  # P rows of C, each with a positive sum

    @property
    def shares(self) -> tuple[tuple[float, ...], ...]:
        """The weights, with a sum of 1 in each phase."""
        return tuple(tuple(weight / sum(row) for weight in row) for row in self.weights)

    def at(self, step: int) -> int:
        """Returns the number of the phase of a batch."""
        return bisect.bisect_right(self.starts, step) - 1

    def before(self, stop: int) -> Phases:
        """Returns the phases of the batches before `stop`."""
        number = bisect.bisect_left(self.starts, stop)
        return Phases(self.starts[:number], self.weights[:number])


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightConfig:
    """The weight of a corpus among others, and the steps that use it."""

    weight: float | None = dataclasses.field(default=None, metadata=LATER)
    """The share of the corpus, relative to the weights of the others; by default its size to the power of
    1 / data.temperature."""
    reweighted: str = dataclasses.field(default="", metadata=LATER)
    """Other weights from later steps on, as STEP=WEIGHT with commas between: "1001=2,5001=0.5". Nothing before the
    first of them changes, so a run may be resumed with it."""
    first_step: int = dataclasses.field(default=1, metadata=LATER)
    """The first training step that may use the corpus, counted from 1."""
    last_step: int = dataclasses.field(default=0, metadata=LATER)
    """The last training step that may use the corpus; 0 for no last one."""

    __repr__ = brief

    def __post_init__(self) -> None:
        at_least(1, self, "first_step")
        at_least(0, self, "last_step")
        if self.last_step and self.last_step < self.first_step:
            raise ValueError(f"last_step must be at least first_step {self.first_step}, got {self.last_step}")
        if self.weight is None and self.reweighted:
            raise ValueError(f"reweighted {self.reweighted} needs a weight before it: set weight, for every corpus")
        changes = self._changes()
        for step, weight in changes:
            if not 0 <= weight <= LARGEST_FLOAT:  # so that a sum of weights is finite
                raise ValueError(f"weight must be from 0 and finite in float32, got {weight}")
            if not self.first_step <= step <= (self.last_step or math.inf):
                last = f" to {self.last_step}" if self.last_step else ""
                raise ValueError(
                    f"reweighted has no effect at step {step}: steps {self.first_step}{last} use the corpus"
                )
        if any(step >= later for (step, _), (later, _) in itertools.pairwise(changes)):
            raise ValueError(f"reweighted must have rising steps after first_step, got {self.reweighted}")
        if not any(weight for _, weight in changes):
            raise ValueError("weight 0 leaves the corpus unused at every step: leave the corpus out")

    def _changes(self) -> list[tuple[int, float]]:
        """Returns steps, each with the weight from it on: the first step, and those of `reweighted`."""
        changes = [(self.first_step, 1.0 if self.weight is None else self.weight)]
        for text in filter(None, self.reweighted.split(",")):
            match = re.fullmatch(r"\s*(\d{1,18})\s*=\s*([-+.\w]+)\s*", text)
            try:
                changes.append((int(match[1]), float(match[2])) if match else (0, math.nan))
            except ValueError:
                match = None
            if match is None:
                raise ValueError(f"reweighted must be STEP=WEIGHT with commas between, got {self.reweighted!r}")
        return changes

    def changes(self, size: float) -> list[tuple[int, float]]:
        """Returns numbers of batches, from 0, each with the weight from it on.

        Args:
          size: the weight if the settings have none.
        """
        unused = [(0, 0.0)] * (self.first_step > 1)
        changes = [(step - 1, size if self.weight is None else weight) for step, weight in self._changes()]
        return unused + changes + [(self.last_step, 0.0)] * bool(self.last_step)


def make_phases(
    corpora: Mapping[str, WeightConfig], *, sizes: Sequence[float] | None = None, temperature: float = 1.0
) -> Phases:
    """Returns the weights of named corpora as phases: those in the settings, or ``size ** (1 / temperature)``.

    Only their ratios have a meaning.

    Args:
      sizes: the size of each corpus; by default 1, as to compare or to check settings.

    Raises:
      ConfigError: some corpora have a weight and others none; a weight or the temperature has no effect; or no corpus
        has a weight at some step.

    >>> settings = {"small": WeightConfig(), "large": WeightConfig(first_step=11)}
    >>> make_phases(settings, sizes=[100, 10_000], temperature=2).weights
    ((0.1, 0.0), (0.1, 1.0))
    """
    given = [name for name, settings in corpora.items() if settings.weight is not None]
    others = [name for name in corpora if name not in given]
    if given and others:
        raise ConfigError(f"{given[0]} has a weight and {others[0]} has none: give one to every corpus, or to none")
    if not temperature > 0:
        raise ConfigError(f"temperature must be more than 0, got {temperature}")
    if temperature != 1 and (given or len(corpora) < 2):
        reason = "the corpora have weights" if given else "there are not several corpora"
        raise ConfigError(f"temperature {temperature} has no effect: {reason}")
    if len(corpora) == 1 and given:
        raise ConfigError(f"the weight of {given[0]} has no effect: it is the only corpus")
    sizes = [1.0] * len(corpora) if sizes is None else sizes
    scaled = [(size / max(sizes)) ** (1 / temperature) for size in sizes]
    changes = [settings.changes(size) for settings, size in zip(corpora.values(), scaled, strict=True)]
    starts = sorted({start for one in changes for start, _ in one})
    weights = [tuple(next(w for start, w in reversed(one) if start <= at) for one in changes) for at in starts]
    for phase, at in enumerate(starts):
        if not sum(weights[phase]) > 0:
            last = f"to {starts[phase + 1]}" if phase + 1 < len(starts) else "and later"
            raise ConfigError(f"no corpus has a weight at steps {at + 1} {last}")
    return Phases(tuple(starts), tuple(weights))


def check_weights(
    saved: Mapping[str, WeightConfig], corpora: Mapping[str, WeightConfig], done: int, temperature: float = 1.0
) -> None:
    """Checks that a run with the weights `saved` had the same shares in its first `done` batches.

    Raises:
      ConfigError: they were others.
    """
    if not corpora or saved == corpora:
        return
    old, new = (make_phases(settings, temperature=temperature) for settings in (saved, corpora))
    has_weights = [[settings.weight is not None for settings in each.values()] for each in (saved, corpora)]
    for batch in sorted({0, *old.starts, *new.starts}):
        shares = zip(old.shares[old.at(batch)], new.shares[new.at(batch)], strict=True)
        is_same = has_weights[0] == has_weights[1] and all(abs(a - b) <= 1e-12 for a, b in shares)
        if batch < done and not is_same:
            raise ConfigError(
                f"the run has done {done:,} steps, but with these settings the weights of the corpora at step "
                f"{batch + 1:,} would have been others; change them from step {done + 1:,} on, with reweighted "
                f"{done + 1}=WEIGHT"
            )


def check_used(corpora: Mapping[str, WeightConfig], steps: int) -> None:
    """Checks that each corpus may be used in a training of `steps` steps.

    Raises:
      ConfigError: one begins later.
    """
    for name, settings in corpora.items():
        if settings.first_step > steps:
            raise ConfigError(
                f"data.corpora.{name}.first_step {settings.first_step} is after the last step, train.steps {steps}: "
                "the corpus is never used"
            )
