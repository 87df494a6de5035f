"""Logs of a run: every step once as JSON lines, and some steps for TensorBoard."""

from __future__ import annotations

import errno
import json
import math
import os
import pathlib
from typing import Any

from jaxformer import files


class JsonLog:
    """A log with one JSON object per line; opening it at a step removes the lines of later steps.

    Args:
      path: the file; created if it does not exist.
      step: the step from which training continues; later lines, and a line truncated by a crash, are removed.
    """

    def __init__(self, path: str | os.PathLike[str], *, step: int = 0):
        self._path = pathlib.Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open(step)

    def _open(self, step: int) -> None:
        if self._path.exists():
            kept = [json.dumps(entry) for entry in read_log(self._path) if entry["step"] <= step]
            files.write_text(self._path, "".join(f"{line}\n" for line in kept))
        self._file = self._path.open("a", encoding="utf-8")

    def rewind(self, step: int) -> None:
        """Removes the lines after this step."""
        self._file.close()
        self._open(step)

    def write(self, step: int, **values: Any) -> None:
        """Appends ``{"step": step, **values}``, which survives a kill only after `flush`.

        NaN and infinity, which JSON lacks, become null.
        """
        plain = {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
        self._file.write(json.dumps({"step": step, **plain}, allow_nan=False) + "\n")

    def flush(self) -> None:
        """Passes all lines to the operating system, so that none is lost if this process is killed.

        Raises:
          OSError: the disk is full; the error names the log.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        """Flushes and closes the file."""
        try:
            self.flush()
        finally:
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


class TensorBoard:
    """TensorBoard events, through tensorboardX.

    Args:
      directory: the folder of the event files.
      step: TensorBoard drops events of earlier processes after this step.
    """

    def __init__(self, directory: str | os.PathLike[str], *, step: int = 0):
        self._directory, self._num_files = str(directory), 0
        self._open(step)

    def _open(self, step: int) -> None:
        from tensorboardX import SummaryWriter  # importing it takes half a second

        # Files created within one second would have the same name.
        suffix = f".{self._num_files}" if self._num_files else ""
        self._writer = SummaryWriter(self._directory, purge_step=step + 1, filename_suffix=suffix)
        self._num_files += 1

    def rewind(self, step: int) -> None:
        """Goes back to the end of a step: TensorBoard drops later events."""
        self._writer.close()
        self._open(step)

    def write(self, step: int, **values: float) -> None:
        """Adds scalars at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Writes buffered events; by default, tensorboardX writes every two minutes."""
        self._writer.flush()

    def close(self) -> None:
        """Writes buffered events, and closes the file."""
        self._writer.close()
