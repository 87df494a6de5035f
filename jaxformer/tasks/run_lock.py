"""The lock of a run directory, on the file ``.lock``: only one training at a time may write there (`locks`)."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator

from jaxformer import locks
from jaxformer.errors import ConfigError
from jaxformer.files import TEMPORARY, ending
from jaxformer.multihost import processes
from jaxformer.tasks.rundir import LOCK

_SUFFIXES, _FOLDERS = (".json", ".jsonl", ".model"), ("checkpoints", "tensorboard", "profile")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextlib.contextmanager
def held(out: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a run directory, which is created if missing; the first process holds it for all.

    At the end, the lock file is removed, and so are folders that were created for it and are still empty.

    Raises:
      ConfigError: the directory cannot be written, or a file in it is a link.
      OSError: another process holds the lock (`locks.BusyError`), or the disk is full or broken.
    """
    here = contextlib.nullcontext()
    if processes.is_first():
        here = _held_here(out)
    with contextlib.ExitStack() as stack:
        processes.in_all(lambda: stack.enter_context(here), f"process 0 cannot use {out}: see its message")
        yield


@contextlib.contextmanager
def _held_here(out: pathlib.Path) -> Iterator[None]:
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
        _check_entries(out)
        descriptor = locks.acquire(out / LOCK)
    except locks.BusyError as error:
        remedy = f"wait for its end, or choose another directory; if its host is gone, remove {out / LOCK}"
        raise locks.BusyError(f"{out} is in use by {error}; {remedy}") from error
    except OSError as error:
        _remove_empty(missing)
        if error.errno in _NO_SPACE:
            raise OSError(error.errno, error.strerror, str(out)) from error
        reason = "it is below a file or a broken link" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"cannot write in {out}: {reason}; choose another directory") from error

    def end() -> None:
        locks.release(descriptor, out / LOCK)
        _remove_empty(missing)

    with ending(end):
        yield


def _check_entries(out: pathlib.Path) -> None:
    """Checks, before anything is written, the files and folders of a run.

    A file may not be a link: in someone else's run, it may point to any of this user's files. A folder may be a link,
    as to a larger disk, but not to a folder of another run, which has that run's checkpoints. Another command, such as
    `evaluate`, may write here: its temporary files, and any that it renames or removes meanwhile, do not count.
    """
    for path in (out, *(path for path in out.iterdir() if not path.name.startswith(TEMPORARY))):
        if path.suffix in _SUFFIXES and path != out and not path.is_file() and _is_there(path):
            raise ConfigError(f"{path} must be a file; remove it, or choose another directory")
        if path.name in _FOLDERS and not path.is_dir() and _is_there(path):
            raise ConfigError(f"{path} must be a folder; remove it, or choose another directory")
        if not path.is_symlink():
            continue
        if not path.is_dir():
            raise ConfigError(f"{path} is a link, through which training would write; put the file in its place")
        other = path.resolve().parent
        if (other / "config.json").exists() and other != out.resolve():
            raise ConfigError(f"{path} is a link to a folder of another run, {other}; remove it")


def _is_there(path: pathlib.Path) -> bool:
    """Returns True if a path still exists and is no link."""
    return os.path.lexists(path) and not path.is_symlink()


def _remove_empty(folders: list[pathlib.Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
