"""Replays: the first steps of a run are trained again and compared with its log."""

from __future__ import annotations

import contextlib
import itertools
import math
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxformer import sharding
from jaxformer.errors import ConfigError
from jaxformer.files import ending
from jaxformer.sharding import Placement
from jaxformer.tasks import own_attention, registry, restore, rundir
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.warm_start import first_state
from jaxformer.training.logging import read_log
from jaxformer.training.loop import numbered


class Replayed(NamedTuple):
    """A step that was trained again."""

    step: int
    logged: float | None
    loss: float

    @property
    def same(self) -> bool:
        """True if the loss is the logged one, bit for bit; the log has null for one that is not finite."""
        return self.logged == (self.loss if math.isfinite(self.loss) else None)


def replay(run: pathlib.Path, *, steps: int, attention: Any = None) -> Iterator[Replayed]:
    """Trains the first steps of a run again, on its own data and mesh, and yields each with its logged loss.

    Batches that the run left out, when it went back from a loss that was not finite, are left out again. The run itself
    is not changed.

    Args:
      attention: see `restore.load`.

    Raises:
      ConfigError: `run` is not a run, its data has changed, or it has logged fewer steps.
    """
    saved = registry.read_config(run)
    config, own = own_attention.settle(saved, run, attention, saved=saved)
    rundir.check_trained(run)
    task, placement = registry.task_of(config), Placement(sharding.mesh(config.mesh))
    log = read_log(run / "log.jsonl") if (run / "log.jsonl").exists() else []
    logged = {entry["step"]: entry["loss"] for entry in log if "loss" in entry}
    most = next(number for number in itertools.count() if number + 1 not in logged)
    if not most:
        raise ConfigError(f"{run} has no steps in log.jsonl to replay" + (", only later ones" if logged else ""))
    if not 1 <= steps <= most:
        raise ConfigError(f"steps must be in [1, {most}], the steps that are logged from the first on, got {steps}")
    corpus = task.read(config)
    rundir.check_data(run, corpus.fingerprints)
    with tempfile.TemporaryDirectory() as folder, ending(lambda: shutil.rmtree(folder, ignore_errors=True)):
        out = pathlib.Path(folder)
        rundir.copy_files(run, out, task.vocabulary_files)
        data = task.prepare(config, corpus, out)
        setup = make_training_setup(task, config, data.vocabulary.vocab_size, placement, own and own.attention)
        state, step = first_state(config, setup, out, lambda text: None), setup.step()
        batches = numbered(lambda start: setup.on_devices(data.batches(start, setup.rows)), 0, _left_out(run))
        for number, (_, batch) in enumerate(itertools.islice(batches, steps), 1):
            state, metrics = step(state, batch)
            total, count = float(metrics["loss_sum"]), float(metrics["count"])
            yield Replayed(number, logged.get(number), total / (count if count > 0 else 1.0))


def _left_out(run: pathlib.Path) -> list[int]:
    """Returns the numbers of the batches that a run skipped, from the last intact checkpoint."""
    if not (run / "checkpoints").is_dir():
        return []
    with restore.open_checkpoints(run) as saved:
        for step in reversed(saved.steps()):
            with contextlib.suppress(Exception):  # a damaged file may raise almost any exception
                return saved.about(step)["progress"]["left_out"]
    return []
