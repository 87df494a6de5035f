"""Checkpoints, saved atomically and verified by checksums; the most recent ones and the best one are kept.

Orbax writes them, asynchronously and atomically. It does not notice a flipped bit, so every leaf has a 64-bit
checksum of its bits, computed on the devices that hold it, saved in the same commit and computed again after
restoring, on any mesh. A step with a mismatch is skipped, and the previous one is used.

Each process reads its shards, and then all processes exchange the outcome before they continue. Otherwise, damage that
only one process finds would leave the other processes waiting.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath  # the paths of Orbax
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from jaxformer.errors import first_line
from jaxformer.multihost import processes, storage
from jaxformer.training.integrity import (
    CheckpointError,
    Json,
    OtherModelError,
    check_shapes_and_dtypes,
    checksums,
    is_intact,
    listed,
    shapes_and_dtypes,
    signed,
    silent_reads,
    wait_for_reads,
)
from jaxformer.training.state import TrainState, Tree

logger = logging.getLogger(__name__)

TreeT = TypeVar("TreeT")

ADDED = frozenset({"step", "score", "checksums", "kinds", "digest", "run_fingerprint"})
"""The names of the metadata that saves add."""


class Checkpoints:
    """The checkpoints of one run: a context manager that waits for the last save on exit.

    Reading never touches what another process is writing: leftovers of a killed save are removed at the first save.

    Args:
      directory: created if it does not exist.
      keep_last: the number of most recent steps to keep, at least 1, besides the best one and those whose score cannot
        be read.
      timeout: seconds after which a save is an error, because the run would otherwise hang when the disk fills up
        during a save; see `save_timeout`.
      fingerprint: a text that names the run; it is saved with each step, and a step with another one is not read.

    Raises:
      CheckpointError: the directory cannot be created or read.
      ValueError: `keep_last` is less than 1.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, keep_last: int = 5, timeout: int = 60, fingerprint: str = ""
    ):
        if keep_last < 1:  # every save would be removed
            raise ValueError(f"keep_last must be at least 1, got {keep_last}")
        manager_options = ocp.CheckpointManagerOptions(
            preservation_policy=_LastAndBest(keep_last, self._best_or_unread),
            async_options=ocp.AsyncOptions(timeout_secs=timeout),
            enable_background_delete=False,
        )
        self.directory, self._fingerprint = pathlib.Path(directory).absolute(), fingerprint
        handlers = {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
        self._leftovers_removed, self._scores, self._unread = False, dict[int, float | None](), set[int]()
        try:
            self._manager = ocp.CheckpointManager(self.directory, options=manager_options, item_handlers=handlers)
        except OSError as error:
            raise CheckpointError(f"cannot open {self.directory} for checkpoints: {_named(error)}") from error
        if not self.directory.is_dir():
            raise CheckpointError(f"cannot open {self.directory} for checkpoints: it is not a folder")

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Returns the saved steps in ascending order."""
        return sorted(self._manager.all_steps())

    def reload(self) -> list[int]:
        """Lists the steps again, because other processes may have saved or removed some, and returns them."""
        self._manager.reload()
        return self.steps()

    def best_step(self) -> int | None:
        """Returns the kept step with the lowest score, or None if no step has a score."""
        scored = {step: score for step in self.steps() if (score := self._score(step)) is not None}
        return min(scored, key=lambda step: (scored[step], step), default=None)

    def _score(self, step: int) -> float | None:
        """Returns the score of a step; None if it has none, or if it cannot be read, which is tried again later."""
        if step not in self._scores:
            try:
                self._scores[step] = self.about(step).get("score")
            except Exception as error:  # a damaged file may raise almost any exception
                is_there = os.path.exists(self.directory / str(step))  # otherwise a training has removed it meanwhile
                if is_there and step not in self._unread:
                    logger.warning("no score of step %d in %s: %s", step, self.directory, _named(error))
                self._unread.add(step)
        return self._scores.get(step)

    def _best_or_unread(self) -> set[int | None]:
        """Returns the best step, and those whose score cannot be read: one of them may be better."""
        return {self.best_step()} | {step for step in self.steps() if step not in self._scores}

    def about(self, step: int) -> Json:
        """Returns the metadata of a step, read without Orbax's manager, which would wait for other processes."""
        about = ocp.JsonCheckpointHandler().restore(epath.Path(self.directory / str(step) / "about"))
        if not is_intact(about):
            raise CheckpointError("damaged: wrong digest of the metadata")
        return dict(about)

    def _read(self, step: int, target: Tree, part: bool) -> tuple[Tree, Json, str]:
        """Returns the state and metadata of a step as read by this process alone, and the name of the field.

        With `part`, `target` describes one field of the state only: the moving average or the parameters.
        """
        if step not in self.steps():
            raise CheckpointError(f"it does not exist; there are {self.steps()}")
        about, path, field = self.about(step), epath.Path(self.directory / str(step) / "state"), ""
        if self._fingerprint and about.get("run_fingerprint", self._fingerprint) != self._fingerprint:
            raise OtherModelError("it belongs to another run, by its fingerprint; move its folder away")
        if part:
            averaged = any(path.startswith(".ema_params") for path in about["checksums"])
            field = "ema_" * averaged + "params"
            target = {field: target}
        wanted = shapes_and_dtypes(target)
        if "kinds" in about:
            saved = {path: (tuple(shape), name) for path, (shape, name) in about["kinds"].items()}
            check_shapes_and_dtypes(saved, wanted, field)
        try:
            check_shapes_and_dtypes(shapes_and_dtypes(self._manager.item_metadata(step)["state"]), wanted, field)
        except OtherModelError as error:
            if "kinds" not in about:
                raise
            raise CheckpointError(f"damaged: {error}") from None  # the files contradict the metadata of the save
        how = jax.tree.map(_how_to_read, target)
        items = ocp.args.PyTreeRestore(item=target, restore_args=how, partial_restore=part)
        restored = ocp.PyTreeCheckpointHandler().restore(path, args=items)
        return restored[field] if part else restored, about, field

    def save(self, step: int, state: Tree, about: Mapping[str, object], *, score: float | None = None) -> None:
        """Starts to save `state` and the JSON-serializable metadata `about`, after waiting for any earlier save.

        Args:
          about: any names except those in `ADDED`.
          score: lower is better; the step with the lowest score is kept.

        Raises:
          ValueError: `about` has one of these names, perhaps because it was restored.
          CheckpointError: this save or the earlier one failed (no space, no permission, or a timeout), or the directory
            has this step or a later one, or `state` has a typed key, a leaf that is not an array, or one of a dtype
            that JAX would narrow, such as NumPy's int64.
        """
        if taken := sorted(ADDED & about.keys()):
            raise ValueError(f"save itself writes {', '.join(taken)}: leave them out of about, or rename them")
        obstacle = later_steps(self, int(step) - 1) or self._obstacle(state)  # Orbax would only fail at its timeout
        if not processes.all_true(not obstacle):
            raise CheckpointError(f"cannot save step {step}: {obstacle or 'another process cannot write it'}")
        step, score = int(step), float(score) if score is not None and math.isfinite(score) else None
        sums, kinds = listed(checksums(state)), shapes_and_dtypes(state)
        metadata = {"step": step, "score": score, "checksums": sums, "kinds": kinds, **about}
        if self._fingerprint:
            metadata["run_fingerprint"] = self._fingerprint
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(signed(metadata)))
        self._scores[step] = score
        try:
            self._remove_leftovers()
            self._manager.save(step, args=items, force=True)
        except Exception as error:  # Orbax and tensorstore raise many types of error
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_named(error)}") from error

    def _obstacle(self, state: Tree) -> str:
        """Returns the reason why `state` cannot be written now, or an empty string."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(state):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if not hasattr(leaf, "dtype"):
                return f"{name} is a {type(leaf).__name__}; save an array, such as jnp.asarray({leaf!r})"
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return f"{name} is a typed key; save its jax.random.key_data, for jax.random.wrap_key_data"
            if (dtype := jax.dtypes.canonicalize_dtype(leaf.dtype)) != leaf.dtype:
                return f"{name} is {leaf.dtype}, and would be restored as {dtype}; save that, or set jax_enable_x64"
        if not os.access(self.directory, os.W_OK):
            return f"{self.directory} is read-only or missing"
        free, needed = shutil.disk_usage(self.directory).free, _bytes(state)
        if free < needed:
            return f"{self.directory} has {free / 2**20:,.1f} MiB free, and the save takes {needed / 2**20:,.1f}"
        return ""

    def wait(self) -> None:
        """Waits until no save is in progress.

        Raises:
          CheckpointError: the save in progress failed.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # as in save
            raise CheckpointError(f"cannot save in {self.directory}: {_named(error)}") from error

    def close(self) -> None:
        """Waits for the last save, then frees the threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def restore(self, step: int, target: TreeT) -> tuple[TreeT, Json]:
        """Returns the verified state and metadata of one step; all processes must call it, and all succeed or all fail.

        Args:
          target: a state of arrays or of ``jax.ShapeDtypeStruct``, with shardings to place it on a mesh; a leaf ``...``
            is neither read nor checked, and is returned as ``...``.

        Raises:
          CheckpointError: the step is missing or damaged.
          OtherModelError (a `CheckpointError`): it has other arrays than `target`, or is of another run.
        """
        return self._restore(step, target)

    def restore_params(self, step: int, params: TreeT) -> TreeT:
        """Returns the verified parameters of a `TrainState`, or their average if it has one, and reads nothing else.

        So the parameters can be used with another optimizer than the run's; see `best_params`.
        """
        return self._restore(step, params, part=True)[0]

    def _restore(self, step: int, target: TreeT, *, part: bool = False) -> tuple[TreeT, Json]:
        self.wait()
        step_name, restored, problem, kind = f"step {step} in {self.directory}", None, "", CheckpointError
        with silent_reads():
            try:
                restored = self._read(step, target, part)
            except CheckpointError as error:
                problem, kind = f"{step_name}: {error}", type(error)
            except Exception as error:  # a damaged file may raise almost any exception
                problem = f"{step_name} cannot be read: {_named(error)}"
                logger.debug("%s", step_name, exc_info=True)
            if restored is None:
                wait_for_reads()
        if not processes.all_true(restored is not None) or restored is None:
            kind = CheckpointError if processes.all_true(kind is not OtherModelError) else OtherModelError
            raise kind(problem or f"{step_name} cannot be read by another process")
        state, about, field = restored
        sums, saved = listed(checksums(state)), about["checksums"]
        if part:
            sums = {f".{field}{path}": value for path, value in sums.items()}
        expected = sums.keys() if part else sums.keys() | saved.keys() - _left_out(target)
        if wrong := sorted(path for path in expected if sums.get(path) != saved.get(path)):
            raise CheckpointError(f"{step_name} is damaged: wrong checksum of {', '.join(wrong[:3])}")
        return state, about

    def restore_latest(self, target: TreeT) -> tuple[TreeT, Json] | None:
        """Restores the newest intact step, and warns about newer, damaged ones; returns None if there are no steps.

        Damaged steps are renamed to ``damaged-STEP``, so that later steps can use their names. If no step is intact, or
        one belongs to another model, none is renamed, because the reader may be at fault.

        Raises:
          CheckpointError: there are steps, but none is intact; the message is about the newest.
          OtherModelError: the newest step that is not damaged is of another run or has other arrays than `target`, such
            as another moving average. An older step is not used in its place, because the newest work would be lost.
        """
        steps, errors = self.steps(), dict[int, str]()
        for step in reversed(steps):
            try:
                restored = self.restore(step, target)
            except OtherModelError:
                raise
            except CheckpointError as error:
                errors[step] = str(error)
                logger.warning("%s; trying the step before", error)
            else:
                self._rename_damaged(errors)
                return restored
        if steps:
            raise CheckpointError(f"none of the steps {steps} can be restored; {errors[steps[-1]]}")
        return None

    def _rename_damaged(self, steps: Mapping[int, object]) -> None:
        """Renames damaged steps."""
        if not steps:
            return
        for step in steps:
            self._scores.pop(step, None)
        if processes.is_first():
            for step in steps:
                renamed = self.directory / f"damaged-{step}"
                shutil.rmtree(renamed, ignore_errors=True)
                os.replace(self.directory / str(step), renamed)
        processes.barrier("damaged steps are renamed")
        storage.wait_until_same(self.directory, lambda: repr(self.reload()))  # a late list would refuse the next saves

    def _remove_leftovers(self) -> None:
        """Removes the incomplete saves of killed processes, once, before the first save."""
        if not self._leftovers_removed and processes.is_first():
            for path in self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                shutil.rmtree(path)
        self._leftovers_removed = True

    def average(self, target: TrainState, steps: Sequence[int]) -> Tree:
        """Returns the float32 mean of the parameters over the states of these steps.

        Frozen parameters, equal in all steps, keep every bit.

        Raises:
          CheckpointError: `steps` is empty, or a step cannot be restored.
        """
        if not steps:
            raise CheckpointError(f"no steps to average in {self.directory}; there are {self.steps()}")
        mean = None
        for number, step in enumerate(steps, 1):
            part = jax.tree.map(lambda x: x.astype(jnp.float32), self.restore(step, target)[0].params)
            # A sum of equal numbers may be rounded; their difference is 0.
            mean = part if mean is None else jax.tree.map(lambda a, x, n=number: a + (x - a) / n, mean, part)
        return mean


def later_steps(checkpoints: Checkpoints, step: int) -> str:
    """Returns an error about the saved steps after this one, which belong to another training; "" without any.

    They would count as the newest, so each save would remove one of them or itself.
    """
    if not (later := [saved for saved in checkpoints.steps() if saved > step]):
        return ""
    those = f"step{'s' * (len(later) > 1)} {', '.join(map(str, later))}"
    remedy = "restore the latest, move their folders away to continue from an earlier one, or name another directory"
    return f"{checkpoints.directory} already holds {those}: {remedy}"


def save_timeout(state: Tree) -> int:
    """Returns the seconds that a save of `state`, or of its shapes, may take: a minute, plus its bytes at 20 MB/s.

    >>> save_timeout({"w": jax.ShapeDtypeStruct((500, 1_000_000), jnp.float32)})
    160
    """
    return 60 + _bytes(state) // 20_000_000


def _bytes(state: Tree) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


@dataclasses.dataclass
class _LastAndBest(policy.PreservationPolicy):
    """Keeps the most recent steps, the best one, and those that may be the best.

    Orbax's own metrics are not used: it reads the metrics of all steps at once, so one damaged file would make all of
    them unreadable.
    """

    last: int
    best: Callable[[], set[int | None]]

    def should_preserve(self, checkpoints: Sequence[policy.PolicyCheckpointInfo], *, context: object) -> list[bool]:
        """Returns, for each step, oldest first, whether it is kept."""
        del context
        best, num_old = self.best(), len(checkpoints) - self.last
        return [number >= num_old or checkpoint.step in best for number, checkpoint in enumerate(checkpoints)]


def _left_out(target: Tree) -> set[str]:
    return {jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(target) if leaf is ...}


def _how_to_read(leaf: Tree) -> ocp.RestoreArgs:
    if leaf is ...:
        return ocp.RestoreArgs()
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
