"""Files that must look the same to all processes of a run, as on storage that they share.

A network file system may show a host an old state for a moment, because it caches attributes. A folder that is not
shared never looks the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import time
from collections.abc import Callable, Iterable

from jaxformer.multihost import cluster, processes

SECONDS = 65.0
"""The time after which all processes must see the same; the Linux client of NFS caches a folder for up to 60 s."""


def wait_for_file(path: pathlib.Path) -> None:
    """Waits until all processes see the same file at a path, or none.

    Raises:
      DistributedError: in every process, because they still see different ones after `SECONDS`.
    """
    wait_until_same(path, lambda: _digest(path))


def is_shared(folder: pathlib.Path | None, *, seconds: float = 5.0) -> bool:
    """Returns True if all processes see the files that the first one makes in a folder; all must call it.

    Args:
      seconds: the time after which a file that is not seen counts as in another folder.
    """
    name = hashlib.sha256(cluster.random_bytes()).hexdigest()[:16]
    if not processes.all_true(folder is not None):
        return False
    assert folder is not None
    path = folder / f".tmp-{name[:8]}-shared"
    try:
        if processes.is_first():
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                path.touch()
        processes.barrier(f"shared {name}")
        deadline = time.monotonic() + seconds
        while not (found := path.exists()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return processes.all_true(found)
    finally:
        if processes.is_first():
            path.unlink(missing_ok=True)


def wait_for_run(out: pathlib.Path, files: Iterable[str], *, seconds: float = SECONDS) -> None:
    """Waits until all processes see the same run, or none, in a run directory: its files, log and checkpoints.

    An empty log is that of a run that ended before its first step: it starts over instead of resuming.

    Args:
      files: the names of the files that are read from it.

    Raises:
      DistributedError: in every process, because they still see different ones after `seconds`.
    """
    names = list(files)

    def seen() -> str:
        has_entries, log = out.is_dir() and any(out.iterdir()), out / "log.jsonl"
        has_lines = log.exists() and log.stat().st_size > 0
        steps = sorted(path.name for path in (out / "checkpoints").glob("[0-9]*") if path.name.isdigit())
        digests = [_digest(out / name) for name in names]
        return "\n".join([str(has_entries), str(has_lines), *steps, *digests])

    wait_until_same(out, seen, seconds=seconds)


def wait_until_same(path: pathlib.Path, seen: Callable[[], str], *, seconds: float = SECONDS) -> None:
    """Waits until all processes see the same at a path; all must call it.

    Args:
      seen: a function that looks again, and returns what this process sees.

    Raises:
      DistributedError: in every process, because they still see different things after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while unlike := cluster.unequal_processes(seen()):
        if processes.broadcast(time.monotonic() >= deadline):
            raise cluster.DistributedError(
                f"{path} still looks different to {', '.join(unlike)} than to process 0 after {seconds:.0f} s; "
                "it must be on storage that all hosts share"
            )
        time.sleep(0.2)


def _digest(path: pathlib.Path) -> str:
    """Returns a digest of a file's contents; an empty text if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
