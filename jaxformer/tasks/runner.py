"""Training and scoring, for every task."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

from jaxformer import lazy, sharding, training
from jaxformer.config import changed, comparable, fingerprint, flat
from jaxformer.digests import short_digest
from jaxformer.errors import ConfigError, JaxformerError, UnknownSizeError, did_you_mean
from jaxformer.evaluation.scores import Score
from jaxformer.files import local_path
from jaxformer.modules import AttentionFunction
from jaxformer.multihost import cluster, processes, storage
from jaxformer.sharding import Placement
from jaxformer.tasks import own_attention, registry, restore, run_lock, rundir
from jaxformer.tasks.base import Corpus, Data, InTurn, Predictor, Say, Trained, sum_losses
from jaxformer.tasks.config import TaskConfig
from jaxformer.tasks.own_attention import Own
from jaxformer.tasks.registry import AnyTask
from jaxformer.tasks.restore import Path
from jaxformer.tasks.training_setup import TrainingSetup, batch_flops, check_memory, make_training_setup
from jaxformer.tasks.warm_start import first_state
from jaxformer.training.logging import JsonLog, TensorBoard
from jaxformer.training.phase_timer import described
from jaxformer.training.profile import profiled_steps
from jaxformer.training.progress import Display, StderrConsole, peak_flops, print_line
from jaxformer.training.tracking import tracker

OnExamples = Callable[[str, Sequence[Mapping[str, object]]], None]
"""A function that takes the name of a corpus and one row per example: its prediction and its scores."""


def train(
    config: TaskConfig,
    out: Path,
    *,
    console: Console | None = None,
    hooks: Sequence[training.Hook] = (),
    attention: AttentionFunction | str | None = None,
    profile: str = "",
    began: float | None = None,
) -> training.Result:
    """Trains into the run directory `out`, or resumes the run in it.

    If a run has several processes, all call this with the same arguments and the same `out` on shared storage.

    Args:
      console: the console that shows progress; by default standard error.
      hooks: objects that are called after steps, validations and checkpoints, and at the end; see `training.Hook`.
      attention: a function, a module or `modules.per_layer` of your own, or ``FILE.py:NAME``, as `config.attention`.
      profile: the steps to trace to ``out/profile``: FIRST:LAST, or a number of steps after the tenth of this start.
      began: the `time.monotonic()` at which the work began; by default now.

    Raises:
      ConfigError: settings contradict each other, the mesh or the model; your attention cannot be used; or `out` has a
        run of another configuration or other data.
      OSError: `out` is in use by another process.
      DataError: the data is missing or malformed.
      CheckpointError: a checkpoint cannot be written or read.
      DistributedError: the processes see different files in `out`, perhaps because they do not share its storage.
      NonFiniteError: a loss or gradient was not finite: see `TrainConfig.nonfinite`.
      OutOfMemoryError: a step needs more memory than is available.
    """
    out, console = local_path(out), console or StderrConsole(quiet=not processes.is_first())
    task, placement = registry.task_of(config), Placement(sharding.mesh(config.mesh))
    # All settings are checked before `out` is claimed, so that a mistake leaves no files.
    training.make_schedule(config.optimizer, steps=config.train.steps)
    metric, metrics = config.train.metric, ("loss", *task.metrics)
    if metric not in metrics:
        raise ConfigError(f"unknown train.metric {metric!r}{did_you_mean(metric, metrics)}")
    if tracked := config.train.log_to:
        lazy.require(tracked, what=f"train.log_to {tracked} needs", extra=tracked)
    if profile:
        profiled_steps(profile, start=0, steps=config.train.steps)
    config.check()
    storage.wait_for_run(out, _files(task))
    # Refuses a folder of other files before anything is written there.
    saved = registry.read_config(out) if rundir.holds_run(out) else None
    settled = functools.partial(own_attention.settle, config, out, attention, saved=saved)
    config, own = processes.in_all(settled, "another process cannot load the attention: see its message")
    _check_memory(task, config, placement, own)
    with run_lock.held(out):
        storage.wait_for_run(out, _files(task))  # otherwise one process would resume the run that another begins
        timer = training.PhaseTimer(out / "time.json" if processes.is_first() else None, began=began)
        return _Start(task, config, own, out, placement, console, timer, hooks, profile).train()


@dataclasses.dataclass(frozen=True)
class _Start:
    """A start of training in a run directory whose lock is held."""

    task: AnyTask
    config: TaskConfig
    own: Own | None
    out: pathlib.Path
    placement: Placement
    console: Console
    timer: training.PhaseTimer
    hooks: Sequence[training.Hook]
    profile: str

    def train(self) -> training.Result:
        """Checks that the run directory fits, claims a new one, and trains."""
        task, config, out = self.task, self.config, self.out
        saved, earlier = None, None
        if (out / "config.json").exists():
            earlier = (out / "config.json").read_bytes()
        if rundir.holds_run(out):
            saved = registry.read_config(out)
        if config.init_from and saved is None:
            _check_init(config)
        if saved is not None:
            rundir.check_config(out, saved, config)
        read = functools.partial(task.read, config)
        corpus = processes.in_all(read, "another process cannot read the data: see its message")
        found = {f"{part} data": text for part, text in corpus.fingerprints.items()}
        cluster.check_equal(found | {"attention": config.attention})  # before one of them writes
        if saved is not None:
            rundir.check_data(out, corpus.fingerprints)  # after agreeing, so that all processes refuse together
        try:
            if saved is None:
                _claim(out, task, config)
                storage.wait_for_run(out, _files(task))
            return self._fit(corpus, saved)
        except (JaxformerError, OSError):
            if processes.is_first():
                rundir.release(out, task.vocabulary_files, earlier)  # only the data or the other run could show it
            raise

    def _fit(self, corpus: Corpus, saved: TaskConfig | None) -> training.Result:
        """Trains in a run directory that has this configuration or, if resumed, a compatible one: `saved`."""
        task, config, out = self.task, self.config, self.out
        say = functools.partial(print_line, self.console)
        data = _prepare(task, config, corpus, out, say)
        if saved is not None:
            rundir.check_vocabulary(out, data.vocabulary.fingerprint)
        own = self.own and self.own.attention
        setup = make_training_setup(task, config, data.vocabulary.vocab_size, self.placement, own)
        timeout = training.save_timeout(abstract := setup.abstract_state())  # refuses a mesh that does not fit
        _report_shapes(config, data, self.placement, say)
        facts = {"config": fingerprint(config), "tokenizer": data.vocabulary.fingerprint}
        if saved is None:  # what a run is trained with, by which its checkpoints differ from those of other runs
            name = short_digest([json.dumps({**corpus.fingerprints, **facts}, sort_keys=True)])
        else:
            name = rundir.run_fingerprint(out)
        options = {"keep_last": config.train.keep_last, "timeout": timeout, "fingerprint": name}
        with training.Checkpoints(out / "checkpoints", **options) as checkpoints:
            restored = None if saved is None else checkpoints.restore_latest(abstract)
            if restored is None:
                state, progress = first_state(config, setup, out, say), training.Progress()
            else:
                state, progress = restored[0], training.Progress(**restored[1]["progress"])
                say(f"resumed from step {int(state.step):,}")
            peak, source = peak_flops()
            say(f"{setup.size} on {self.placement.summary()}; peak {peak / 1e12:.2f} TFLOP/s ({source})")
            done = int(state.step)
            change_settings(out, saved or config, config, done, say)
            if processes.is_first():
                if self.own is not None:
                    own_attention.write_record(out, self.own)
                start = {**processes.facts(), "mesh": dict(self.placement.mesh.shape)}
                rundir.write_provenance(out, start=start, run=name, data=dict(corpus.fingerprints), **facts)
            make_hooks = functools.partial(self._hooks, setup, done, peak)
            hooks = processes.in_all(make_hooks, "process 0 cannot begin its logs or the tracker: see its message")
            result = training.fit(
                setup.step(),
                state,
                lambda start: setup.on_devices(data.batches(start, setup.rows)),
                config=config.train,
                validate=Validation(task, config, corpus, data, setup),
                maximize=task.metrics.get(config.train.metric, False),
                flops=batch_flops(setup, say),
                checkpoints=checkpoints,
                progress=progress,
                hooks=hooks,
            )
        say(f"{described(result.reason, int(result.state.step))}; compiled training programs: {result.programs}")
        say(self.timer.report())
        return result

    def _hooks(self, setup: TrainingSetup, done: int, peak: float) -> list[training.Hook]:
        """Returns the hooks of a run that has `done` steps: those of every process and, in the first one, all others.

        Args:
          peak: the peak FLOP/s of all devices.
        """
        train, out, say = self.config.train, self.out, functools.partial(print_line, self.console)
        hooks: list[training.Hook] = [self.timer]
        if self.profile:
            hooks.append(training.Profile(out / "profile", self.profile))
        if not processes.is_first():
            return hooks
        smoothing = setup.label_smoothing
        hooks.append(JsonLog(out / "log.jsonl", label_smoothing=smoothing))
        if train.tensorboard:
            hooks.append(TensorBoard(out / "tensorboard"))
        hooks.append(Display(self.console, unit=setup.network.unit, label_smoothing=smoothing, peak_flops=peak))
        hooks += self.hooks
        if train.log_to:
            hooks += tracker(train.log_to, out, resumed=done > 0)
        return [*hooks, rundir.Curves(out, say)]


def _check_memory(task: AnyTask, config: TaskConfig, placement: Placement, own: Own | None) -> None:
    """Checks that a model and a batch of these settings fit into memory, before data are read."""
    try:
        vocab_size = task.vocab_size(config)
    except UnknownSizeError as error:  # only the data determine it
        vocab_size = error.smallest
    check_memory(make_training_setup(task, config, vocab_size, placement, own and own.attention))


def _files(task: AnyTask) -> tuple[str, ...]:
    """Returns the names of the files of a run that are read when it is resumed."""
    return "config.json", "provenance.json", *task.vocabulary_files


def _claim(out: pathlib.Path, task: AnyTask, config: TaskConfig) -> None:
    """Makes `out` the run of this configuration; with `init_from`, copies the other run's vocabulary."""
    if processes.is_first():
        rundir.claim(out, task.name, config, task.vocabulary_files)
        if config.init_from:
            source, _ = registry.split_init(config.init_from)
            rundir.copy_files(source, out, (*task.vocabulary_files, rundir.GENERATION))


def _prepare(task: AnyTask, config: TaskConfig, corpus: Corpus, out: pathlib.Path, say: Say) -> Data:
    """Returns the prepared data of the task, and reports it."""
    began = time.perf_counter()
    data = task.prepare(config, corpus, out)
    for line in data.report:
        say(line)
    if corpus.fingerprints["validation"] == corpus.fingerprints["train"]:
        say("WARNING: the validation data are the training data: validations and `best` say nothing about new data")
    say(f"data prepared in {time.perf_counter() - began:.1f} s")
    return data


def _report_shapes(config: TaskConfig, data: Data, placement: Placement, say: Say) -> None:
    """Reports how many programs the batch shapes need, and the batch lengths that the mesh does not divide."""
    settings = vars(getattr(config, "data", placement))
    if (count := len(set(data.lengths))) > 1:
        fewer = "; fewer: --data.num-shapes" * ("num_shapes" in settings)
        say(f"{count} training programs are compiled, one for each batch shape, at its first batch{fewer}")
    num_shards = placement.num_length_shards
    if uneven := [length for length in data.lengths if length % num_shards]:
        remedy = f"; with --data.length-multiple {num_shards} it does" * ("length_multiple" in settings)
        say(
            f"outside attention, batches of lengths {', '.join(map(str, uneven))} are not sharded, because "
            f"{num_shards} does not divide them{remedy}"
        )


def change_settings(out: pathlib.Path, saved: TaskConfig, config: TaskConfig, done: int, say: Say) -> None:
    """Applies the settings of `config` to a run with `done` steps: reports the changes, and saves config.json.

    Raises:
      ConfigError: a completed step would have had another learning rate or other weights of corpora, or fewer steps are
        wanted than are done.
    """
    if config.train.steps < done:
        raise ConfigError(f"{out} has done {done:,} steps, more than the {config.train.steps:,} of train.steps")
    old, new = (
        np.asarray(training.make_schedule(c.optimizer, steps=c.train.steps)(np.arange(done))) for c in (saved, config)
    )
    if (differs := np.flatnonzero(old != new)).size:
        first = differs[0]
        raise ConfigError(
            f"{out} has done {done:,} steps, but with these settings the learning rate of step {first + 1:,} would "
            f"have been {new[first]:.3g}, not {old[first]:.3g}"
        )
    config.check_resumed(saved, done)
    before, after = flat(comparable(saved)), flat(comparable(config))
    changes = [f"{name} is now {after[name]}, was {before[name]}" for name in after if after[name] != before[name]]
    for change in changes:
        say(change)
    if saved != config and processes.is_first():  # settings of the place, which are not reported, are saved too
        rundir.write_config(out, config.task, config)


class Validation:
    """The validation loss of a state, and the other metrics of its task.

    With several corpora, the loss is the mean of theirs, which are metrics, too.
    """

    def __init__(self, task: AnyTask, config: TaskConfig, corpus: Corpus, data: Data[Any], setup: TrainingSetup):
        self._task, self._config, self._corpus, self._data, self._setup = task, config, corpus, data, setup
        placement = setup.placement
        self._loss = jax.jit(
            placement.with_axis_rules(setup.network.validation_sums), out_shardings=placement.replicated
        )

    def __call__(self, state: training.TrainState) -> Mapping[str, float]:
        params, setup = training.best_params(state), self._setup
        several = self._data.validation.parts if isinstance(self._data.validation, InTurn) else {}
        losses, sums = dict[str, float](), dict[str, Any]()
        for name in several or [""]:
            batches = setup.on_devices(self._data.validation_batches(setup.rows, name))
            sums = sum_losses(self._loss(params, batch) for batch in batches)
            losses[f"loss/{name}"] = float(sums["loss"] / sums["count"])
        trained = Trained(setup.network.net, params, setup.placement, (int(state.step),))
        predictor = self._task.predictor(self._config, self._data.vocabulary, trained)
        metrics = self._task.measure(self._config, self._corpus, self._data, predictor, sums)
        loss = sum(losses.values()) / len(losses)
        by_corpus = losses if several else {}
        return {name: float(value) for name, value in {"loss": loss, **by_corpus, **metrics}.items()}


def _check_init(config: TaskConfig) -> None:
    """Checks that the run, checkpoint and vocabulary of `init_from` exist, and that the task can start from them."""
    run, checkpoint = registry.split_init(config.init_from)
    config.check_init(source := registry.read_config(run))
    restore.check(run, checkpoint)
    registry.task_of(source).vocabulary(run)  # checked here, because an error would remove its copy


def evaluate(
    run: Path,
    predictor: Predictor | None = None,
    *,
    split: str = "",
    files: Sequence[Path] = (),
    data_dir: Path = "",
    say: Say | None = None,
    on_examples: OnExamples = lambda corpus, examples: None,
) -> dict[str, list[Score]]:
    """Returns the scores of a run on a split of its data, by name of the corpus.

    Args:
      predictor: the result of `restore.load`; by default for the best checkpoint.
      split: "test" or "validation"; by default the task's `default_split`.
      files: other test data instead: for a translator, the file of sentences and the file of their translations.
      data_dir: the folder of the corpora, if they have moved since training.
      on_examples: called with the name of a corpus, and a row for each example: its prediction and its own scores.

    Raises:
      ConfigError: the run was trained on other data, which may contain the held-out part of this data.
      DataError: the data is missing or malformed.
    """
    config = registry.read_config(run := local_path(run))
    task = registry.task_of(config)
    if files:
        corpus, split = task.read_test(config, files), "test"
    else:
        rundir.check_trained(run)
        if data_dir:
            config = changed(config, {"data": {"directory": data_dir}})
        corpus, split = task.read(config), split or task.default_split
        rundir.check_data(run, corpus.fingerprints)
    scores = {}
    for scored in task.score(config, corpus, predictor or restore.load(run), split, say or print):
        if scored.examples is not None:
            on_examples(scored.corpus, scored.examples)
        scores[scored.corpus] = scored.scores
    return scores
