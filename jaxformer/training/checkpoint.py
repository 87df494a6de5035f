"""Checkpoints that are complete, checked and few.

Orbax writes them, asynchronously and atomically.  What it does not do is notice a flipped bit, so every leaf
carries a 64-bit checksum of its bits, computed on the devices that hold it, saved in the same commit and computed
again after restoring, on whatever mesh.  A step that does not check out is passed over for the one before.
"""

from __future__ import annotations

import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """No usable checkpoint, or one that cannot be written."""


class Checkpoints:
    """The checkpoints of one run; use it as a context manager, so that the last save is finished.

    Args:
      directory: made if missing.
      keep_last: steps kept, besides the best one.
      timeout: seconds after which a save that does not end is an error; a full disk would otherwise hang the run.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep_last: int = 5, timeout: int = 60):
        policy = preservation_policy.AnyPreservationPolicy(
            [
                preservation_policy.LatestN(n=keep_last),
                preservation_policy.BestN(
                    get_metric_fn=lambda m: -m["score"], n=1, keep_checkpoints_without_metrics=False
                ),
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            best_fn=lambda metrics: -metrics["score"],  # without it the scores would not be written
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(timeout_secs=timeout),
            enable_background_delete=False,
        )
        self.directory = pathlib.Path(directory).absolute()
        handlers = {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """The steps there are, in order."""
        return sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the lowest score among those kept, or None."""
        scored = {}
        for step in self.steps():
            metrics = self._manager.metrics(step)
            if metrics is not None:
                scored[step] = metrics["score"]
        return min(scored, key=lambda step: (scored[step], step)) if scored else None

    def delete(self, step: int) -> None:
        """Removes a step."""
        self._manager.delete(step)

    def save(self, step: int, state: Any, about: Mapping[str, Any], *, score: float | None = None) -> None:
        """Starts to save `state` and the JSON-able `about`; waits first for an earlier save.

        Args:
          score: lower is better; the step with the lowest is kept.

        Raises:
          CheckpointError: this or the earlier save failed: no space, no permission, no end.
        """
        sums = {path: value.tolist() for path, value in jax.device_get(checksums(state)).items()}
        about = {"step": step, "checksums": sums, **about}
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
        try:
            self._manager.save(step, args=items, metrics=None if score is None else {"score": float(score)}, force=True)
        except Exception as error:  # Orbax and tensorstore raise many types for one cause
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_first_line(error)}") from error

    def wait(self) -> None:
        """Returns when nothing is being saved.

        Raises:
          CheckpointError: the save under way failed.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # as in save
            raise CheckpointError(f"cannot save in {self.directory}: {_first_line(error)}") from error

    def close(self) -> None:
        """Waits, then frees the threads."""
        try:
            self.wait()
        finally:
            self._manager.close()

    def restore(self, step: int, target: Any) -> tuple[Any, dict[str, Any]]:
        """The state and `about` of one step, checked.

        Args:
          target: a state of ``jax.ShapeDtypeStruct``, with shardings to place it on a mesh.

        Raises:
          CheckpointError: the step is missing, damaged, or that of another model.
        """
        items = ocp.args.Composite(state=ocp.args.StandardRestore(target), about=ocp.args.JsonRestore())
        try:
            about = self._manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
            saved = self._manager.item_metadata(step)["state"]
            _check_kind(saved, target)
            state = self._manager.restore(step, args=items)["state"]
        except CheckpointError:
            raise
        except Exception as error:  # a damaged file shows as almost any exception
            raise CheckpointError(f"step {step} in {self.directory} cannot be read: {_first_line(error)}") from error
        found = {path: value.tolist() for path, value in jax.device_get(checksums(state)).items()}
        wrong = sorted(
            path for path in found.keys() | about["checksums"].keys() if found.get(path) != about["checksums"].get(path)
        )
        if wrong:
            raise CheckpointError(
                f"step {step} in {self.directory} is damaged: wrong checksum of {', '.join(wrong[:3])}"
            )
        return state, about

    def restore_latest(self, target: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest step that is sound, with a warning for each that is not; None where there is none at all.

        Raises:
          CheckpointError: there are steps, and none is sound.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.restore(step, target)
            except CheckpointError as error:
                logger.warning("%s; trying the step before", error)
                self.delete(step)
        if steps:
            raise CheckpointError(f"none of the steps {steps} in {self.directory} can be restored")
        return None

    def average(self, target: Any, steps: Sequence[int], pick: Any = lambda state: state.params) -> Any:
        """The mean, in float32, of what `pick` takes from the states of these steps (their parameters)."""
        if not steps:
            raise CheckpointError(f"no steps to average in {self.directory}; there are {self.steps()}")
        total = None
        for step in steps:
            part = pick(self.restore(step, target)[0])
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return jax.tree.map(lambda x: x / len(steps), total)


@jax.jit
def checksums(tree: Any) -> dict[str, jax.Array]:
    """For each leaf, 64 bits as two uint32: its bits times a hash of their index, summed with wrap-around.

    The order of the sum does not matter, so any mesh computes the same; a single flipped bit always shows, since
    the factors are odd.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        bits = _words(leaf)
        index = jax.lax.iota(jnp.uint32, bits.size).reshape(bits.shape)
        lanes = [
            jnp.sum(bits * (_mix(index + jnp.uint32(salt)) | jnp.uint32(1)), dtype=jnp.uint32)
            for salt in (0, 0x51ED270B)
        ]
        found[jax.tree_util.keystr(path)] = jnp.stack(lanes)
    return found


def _words(leaf: jax.Array) -> jax.Array:
    """The leaf's bits, one uint32 an element."""
    if leaf.dtype == bool:
        return leaf.astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _check_kind(saved: Any, target: Any) -> None:
    """Paths, shapes and dtypes: Orbax would cast a dtype without a word."""
    got = {
        _path(path): (tuple(x.shape), np.dtype(x.dtype).name) for path, x in jax.tree_util.tree_leaves_with_path(saved)
    }
    want = {
        _path(path): (tuple(x.shape), np.dtype(x.dtype).name) for path, x in jax.tree_util.tree_leaves_with_path(target)
    }
    for path in sorted(got.keys() | want.keys()):
        if got.get(path) != want.get(path):
            raise CheckpointError(
                f"the checkpoint is that of another model: {path} is {got.get(path, 'missing')} there, "
                f"{want.get(path, 'missing')} here"
            )


def _path(path: Any) -> str:
    """A path without the difference between attributes, keys and indices, which saving forgets."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"
