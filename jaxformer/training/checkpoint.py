"""Checkpoints that are complete, checked and few.

Orbax writes them, asynchronously and atomically.  What it does not do is notice a flipped bit, so every leaf
carries a 64-bit checksum of its bits, computed on the devices that hold it, saved in the same commit and computed
again after restoring, on whatever mesh.  A step that does not check out is passed over for the one before.

Processes read each its part, alone, and say how it went before they go on together: what only one of them finds
damaged would otherwise leave the others waiting for it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from jaxformer.multihost import processes

logger = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """No usable checkpoint, or one that cannot be written."""


class Checkpoints:
    """The checkpoints of one run; use it as a context manager, so that the last save is finished.

    Reading never changes what another process is writing: leftovers of a killed save are removed by the first save.

    Args:
      directory: made if missing.
      keep_last: steps kept, besides the best one.
      timeout: seconds after which a save that does not end is an error, for a disk that fills up under it would hang
        the run; of the order of `save_seconds`.

    Raises:
      CheckpointError: the directory cannot be made or read.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep_last: int = 5, timeout: int = 60):
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_LastAndBest(keep_last, self.best_step),
            async_options=ocp.AsyncOptions(timeout_secs=timeout),
            enable_background_delete=False,
        )
        self.directory = pathlib.Path(directory).absolute()
        handlers = {"state": ocp.StandardCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
        self._tidy, self._scores = False, dict[int, float | None]()
        try:
            self._manager = ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)
        except OSError as error:
            raise CheckpointError(f"cannot open {self.directory} for checkpoints: {_first_line(error)}") from error

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def steps(self) -> list[int]:
        """The steps there are, in order."""
        return sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the lowest score among those kept, or None."""
        scored = {step: score for step in self.steps() if (score := self._score(step)) is not None}
        return min(scored, key=lambda step: (scored[step], step)) if scored else None

    def _score(self, step: int) -> float | None:
        """The score of a step; None where it has none, or cannot be read."""
        if step not in self._scores:
            try:
                self._scores[step] = self._about(step).get("score")
            except Exception as error:  # a damaged file shows as almost any exception
                logger.warning("no score of step %d in %s: %s", step, self.directory, _first_line(error))
                self._scores[step] = None
        return self._scores[step]

    def _about(self, step: int) -> dict[str, Any]:
        """What was saved with the state; like `_read` past Orbax's manager, which would wait for other processes."""
        about = ocp.JsonCheckpointHandler().restore(self.directory / str(step) / "about")
        _check_signature(about)
        return about

    def _read(self, step: int, target: Any) -> tuple[Any, dict[str, Any]]:
        """The state and `about` of a step as this process reads them, without a word to the others.

        Raises:
          Exception: almost any, of a damaged file.
        """
        if step not in self.steps():
            raise CheckpointError(f"it does not exist; there are {self.steps()}")
        about, path = self._about(step), self.directory / str(step) / "state"
        _check_kind(self._manager.item_metadata(step)["state"], target)
        items = ocp.args.PyTreeRestore(item=target, restore_args=jax.tree.map(_how_to_read, target))
        return ocp.PyTreeCheckpointHandler().restore(path, args=items), about

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
        obstacle = self._obstacle(state)  # for which Orbax would wait until its timeout
        if not processes.everywhere(not obstacle):
            raise CheckpointError(f"cannot save step {step}: {obstacle or 'another process cannot write it'}")
        score = score if score is not None and math.isfinite(score) else None
        about = _sign({"step": step, "score": score, "checksums": _listed(checksums(state)), **about})
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
        self._scores[step] = score
        try:
            self._remove_leftovers()
            self._manager.save(step, args=items, force=True)
        except Exception as error:  # Orbax and tensorstore raise many types for one cause
            raise CheckpointError(f"cannot save step {step} in {self.directory}: {_first_line(error)}") from error

    def _obstacle(self, state: Any) -> str:
        """Why `state` cannot be written now, or nothing."""
        if not os.access(self.directory, os.W_OK):
            return f"{self.directory} is read-only or missing"
        free, needed = shutil.disk_usage(self.directory).free, _bytes(state)
        if free < needed:
            return f"{self.directory} has {free / 2**20:,.1f} MiB free, and it takes {needed / 2**20:,.1f}"
        return ""

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
        """The state and `about` of one step, checked; to be called by all processes, of which all succeed or none.

        Args:
          target: a state of ``jax.ShapeDtypeStruct``, with shardings to place it on a mesh; leaves that are ``...`` are
            neither read nor checked, and stay so.

        Raises:
          CheckpointError: the step is missing, damaged, or that of another model.
        """
        _hush()
        self.wait()
        where, found, problem = f"step {step} in {self.directory}", None, ""
        try:
            found = self._read(step, target)
        except CheckpointError as error:
            problem = f"{where}: {error}"
        except Exception as error:  # a damaged file shows as almost any exception
            problem = f"{where} cannot be read: {_first_line(error)}"
            logger.debug("%s", where, exc_info=True)
        if not processes.everywhere(found is not None) or found is None:
            raise CheckpointError(problem or f"{where} cannot be read by another process")
        state, about = found
        sums, saved = _listed(checksums(state)), about["checksums"]
        expected = sums.keys() | saved.keys() - _left_out(target)
        if wrong := sorted(path for path in expected if sums.get(path) != saved.get(path)):
            raise CheckpointError(f"{where} is damaged: wrong checksum of {', '.join(wrong[:3])}")
        return state, about

    def restore_latest(self, target: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest step that is sound, with a warning for each that is not; None where there is none at all.

        Steps that were passed over are set aside as ``damaged-STEP``, out of the way of the steps to come.  Where no
        step is sound nothing is touched: the fault may be the reader's.

        Raises:
          CheckpointError: there are steps, and none is sound; the message is that of the newest.
        """
        steps, errors = self.steps(), dict[int, str]()
        for step in reversed(steps):
            try:
                found = self.restore(step, target)
            except CheckpointError as error:
                errors[step] = str(error)
                logger.warning("%s; trying the step before", error)
            else:
                self._set_aside(errors)
                return found
        if steps:
            raise CheckpointError(f"none of the steps {steps} can be restored; {errors[steps[-1]]}")
        return None

    def _set_aside(self, steps: Mapping[int, object]) -> None:
        """Renames steps that are not sound, once a sound one is found."""
        if not steps:
            return
        for step in steps:
            self._scores.pop(step, None)
        if processes.first():
            for step in steps:
                aside = self.directory / f"damaged-{step}"
                shutil.rmtree(aside, ignore_errors=True)
                os.replace(self.directory / str(step), aside)
        processes.wait("damaged steps are set aside")
        self._manager.reload()

    def _remove_leftovers(self) -> None:
        """Removes what a killed process was saving; once, and never while only reading."""
        if not self._tidy and processes.first():
            for path in self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*"):
                shutil.rmtree(path)
        self._tidy = True

    def average(self, target: Any, steps: Sequence[int], pick: Any = lambda state: state.params) -> Any:
        """The mean, in float32, of what `pick` takes from the states of these steps (their parameters)."""
        if not steps:
            raise CheckpointError(f"no steps to average in {self.directory}; there are {self.steps()}")
        total = None
        for step in steps:
            part = jax.tree.map(lambda x: x.astype(jnp.float32), pick(self.restore(step, target)[0]))
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return jax.tree.map(lambda x: x / len(steps), total)


def save_seconds(state: Any) -> int:
    """How long a save of `state`, or of its ``jax.ShapeDtypeStruct``, may take: a minute, and 20 MB/s if one must.

    >>> save_seconds({"w": jax.ShapeDtypeStruct((500, 1_000_000), jnp.float32)})
    160
    """
    return 60 + _bytes(state) // 20_000_000


def _bytes(state: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


@dataclasses.dataclass
class _LastAndBest(preservation_policy.PreservationPolicy):
    """The last steps and the best one.

    Not by Orbax's own metrics: it reads those of all steps at once, so that one damaged file would bar all of them.
    """

    last: int
    best: Callable[[], int | None]

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        """One answer for each step, oldest first."""
        del context
        best, old = self.best(), len(checkpoints) - self.last
        return [number >= old or found.step == best for number, found in enumerate(checkpoints)]


def checksums(tree: Any) -> dict[str, jax.Array]:
    """For each leaf, 64 bits as two uint32: its bits times a hash of their index, summed with wrap-around.

    The order of the sum does not matter, so any mesh computes the same; a single flipped bit always shows, since
    the factors are odd.
    """
    # One small program for each kind of leaf compiles much faster than one for the whole tree.
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): _checksum(leaf) for path, leaf in leaves if leaf is not ...}


def _left_out(target: Any) -> set[str]:
    return {jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(target) if leaf is ...}


def _how_to_read(leaf: Any) -> ocp.RestoreArgs:
    if leaf is ...:
        return ocp.RestoreArgs()
    place = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return ocp.ArrayRestoreArgs(sharding=place, global_shape=leaf.shape, dtype=leaf.dtype)


@jax.jit
def _checksum(leaf: jax.Array) -> jax.Array:
    bits = _words(leaf)
    index, stride = jnp.zeros(bits.shape, jnp.uint32), 1
    for dim in reversed(range(bits.ndim)):  # not a flat iota reshaped, which a mesh would hold whole on every device
        index += jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dim) * jnp.uint32(stride % 2**32)
        stride *= bits.shape[dim]
    lanes = [
        jnp.sum(bits * (_mix(index + jnp.uint32(salt)) | jnp.uint32(1)), dtype=jnp.uint32) for salt in (0, 0x51ED270B)
    ]
    return jnp.stack(lanes)


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


def _listed(sums: Mapping[str, jax.Array]) -> dict[str, list[int]]:
    return {path: value.tolist() for path, value in jax.device_get(dict(sums)).items()}


def _sign(about: Mapping[str, Any]) -> dict[str, Any]:
    """`about` as JSON gives it back, with a digest of itself: a flipped bit in it would go unnoticed otherwise."""
    plain = json.loads(json.dumps(about))
    return {**plain, "digest": _digest(plain)}


def _check_signature(about: Mapping[str, Any]) -> None:
    signed = about.get("digest")
    if signed is not None and signed != _digest({name: value for name, value in about.items() if name != "digest"}):
        raise CheckpointError("damaged: wrong digest of what is known about it")


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _check_kind(saved: Any, target: Any) -> None:
    """Paths, shapes and dtypes: Orbax would cast a dtype without a word."""
    got, want = ({_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(x)} for x in (saved, target))
    for path in sorted(got.keys() | want.keys()):
        there, here = _kind(got.get(path)), _kind(want.get(path))
        if there != here and not (want.get(path) is ... and path in got):
            raise CheckpointError(f"that of another model: {path} is {there} there, {here} here")


def _kind(leaf: Any) -> Any:
    return "missing" if leaf is None else leaf if leaf is ... else (tuple(leaf.shape), np.dtype(leaf.dtype).name)


def _path(path: Any) -> str:
    """A path without the difference between attributes, keys and indices, which saving forgets."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def _hush() -> None:
    """From now on, the reads that a failed one leaves under way end without a traceback each.

    Orbax closes its event loop with them in it; what becomes of them is printed by the interpreter, at any time later.
    """
    before = sys.unraisablehook
    if getattr(before, "passes_over_reads", False):
        return

    def hook(found: sys.UnraisableHookArgs, /) -> None:
        late = found.object is None and str(found.exc_value) == "Event loop is closed"
        code = getattr(found.object, "cr_code", None)
        if late or (code is not None and "orbax" in pathlib.Path(code.co_filename).parts):
            logger.debug("left over from a failed read: %s", found.exc_value)
        else:
            before(found)

    hook.passes_over_reads = True  # pyright: ignore[reportFunctionMemberAccess]
    sys.unraisablehook = hook


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"
