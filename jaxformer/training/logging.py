"""Logs of a run: every step once as JSON lines, and some steps for TensorBoard."""

from __future__ import annotations

import errno
import json
import os
import pathlib
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from jaxformer import files
from jaxformer.training.hooks import Hook, Means, Start

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class _Log(Hook):
    """A log that is opened after a step: at the start, and when training goes back."""

    def open(self, step: int) -> None:
        """Opens the log, without what it holds of later steps."""

    def close(self) -> None:
        """Closes the log, if it is open."""

    def started(self, start: Start) -> None:
        self.open(start.step)

    def went_back(self, step: int, problem: str) -> None:
        self.close()
        self.open(step)

    def ended(self, step: int, reason: str) -> None:
        self.close()


class JsonLog(_Log):
    """A log with one JSON object per line: each step once, and validations.

    At the start of a training, it loses the lines of later steps, and a line truncated by a crash.

    Args:
      path: the file; created if it does not exist.
      label_smoothing: that of the training loss, which the line of each step then repeats; validations have none.
    """

    def __init__(self, path: str | os.PathLike[str], *, label_smoothing: float = 0.0):
        self._path, self._label_smoothing = pathlib.Path(path), label_smoothing
        self._file: IO[str] | None = None

    def open(self, step: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            kept = [json.dumps(entry) for entry in read_log(self._path) if entry["step"] <= step]
            files.write_text(self._path, "".join(f"{line}\n" for line in kept))
        self._file = self._path.open("a", encoding="utf-8")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._label_smoothing:
            metrics = {**metrics, "label_smoothing": self._label_smoothing}
        self._write(step, metrics)

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        self._write(step, {f"validation_{name}": value for name, value in metrics.items()})

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends ``{"step": step, **values}``, which a kill of this process does not lose.

        NaN and infinity, which JSON lacks, become null.
        """
        assert self._file is not None
        line = json.dumps(files.plain({"step": step, **values}), allow_nan=False)
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        if self._file:
            self._file.close()


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the entries of a log, without lines that a crash truncated or damaged."""
    path, entries = pathlib.Path(path), []
    if path.is_fifo():  # reading it would block
        raise OSError(errno.EINVAL, "it is a named pipe", str(path))
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries


class TensorBoard(_Log):
    """TensorBoard events in a folder, through tensorboardX: reports and validations.

    At the start of a training, TensorBoard drops the events of later steps.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self._directory, self._num_files = str(directory), 0
        self._writer: SummaryWriter | None = None

    def open(self, step: int) -> None:
        from tensorboardX import SummaryWriter  # importing it takes half a second

        # Files created within one second would have the same name.
        suffix = f".{self._num_files}" * (self._num_files > 0)
        # Events wait for a second, not two minutes: a kill after a checkpoint must not lose those that led to it.
        self._writer = SummaryWriter(self._directory, purge_step=step + 1, flush_secs=1, filename_suffix=suffix)
        self._num_files += 1

    def reported(self, step: int, metrics: Mapping[str, float], means: Means) -> None:
        others = {name: value for name, value in metrics.items() if name not in ("loss", "tokens")}
        rate = means.tokens_per_second
        self._write(step, {**others, "train/loss": means.loss, "train/tokens_per_second": rate})

    def validated(self, step: int, metrics: Mapping[str, float], better: bool) -> None:
        self._write(step, {f"validation/{name}": value for name, value in metrics.items()})

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        assert self._writer is not None
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
