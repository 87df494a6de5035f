"""Locks on files: of one process at a time, which is named, and whose end, even by a kill, releases the lock.

It is an operating-system lock (flock). On a network filesystem it holds for all hosts if the filesystem passes locks
on, as NFS and Lustre usually do. Without locks in the filesystem, a warning replaces the protection. Locks that hold on
one host only, as on filesystems of buckets, are noticed only if the lock file of another host is found.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import pathlib
import shlex
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

from jaxformer.errors import JaxformerError
from jaxformer.files import ending

logger = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class BusyError(JaxformerError, OSError):
    """Another process holds the lock; the message names it.

    Trying again can help: storage may keep the lock of a host that has vanished, for example until its lease ends.
    """


@contextlib.contextmanager
def held(path: pathlib.Path, *, waiting: Callable[[str], None]) -> Iterator[None]:
    """Holds the lock of a file, which is removed at the end; calls `waiting` with the name of another holder."""
    while True:
        try:
            descriptor = acquire(path)
            break
        except BusyError as error:
            waiting(str(error))
            time.sleep(0.5)
    with ending(lambda: release(descriptor, path)):
        yield


def acquire(path: pathlib.Path) -> int:
    """Returns the descriptor of the lock file, locked and with the facts about this process in it.

    Raises:
      BusyError: another process holds the lock.
      OSError: the file cannot be written.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, path):
            break
        os.close(descriptor)  # its last holder removed it in the meantime
    try:
        _warn_of_another_host(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
    except BaseException:
        release(descriptor, path)
        raise
    return descriptor


def release(descriptor: int, path: pathlib.Path) -> None:
    """Removes the lock file before releasing its lock, so that it cannot be the next holder's file."""
    with contextlib.suppress(OSError):  # already removed, or the filesystem has become read-only
        if _is_at(descriptor, path):
            path.unlink()
    os.close(descriptor)


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(descriptor), path.stat())


def _lock(descriptor: int, path: pathlib.Path) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)  # listing runs takes the lock for a moment, to see whether it is free
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BusyError(_holder(descriptor)) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("the filesystem of %s has no locks: make sure that no other process writes there", path.parent)


def _warn_of_another_host(descriptor: int, path: pathlib.Path) -> None:
    holder = _read(descriptor)
    if holder.get("host") not in (None, socket.gethostname()):
        logger.warning(
            "%s was in use by %s, which was killed, or this filesystem does not pass locks on to other hosts: make "
            "sure that it has ended",
            path.parent,
            _holder(descriptor),
        )


def _this_process() -> dict[str, str | int]:
    command = shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "since": since, "command": command}


def _holder(descriptor: int) -> str:
    holder = _read(descriptor)
    if not holder:
        return "another process"
    command = textwrap.shorten(str(holder["command"]), 200, placeholder=" ...")
    return f"process {holder['process']} on {holder['host']} since {holder['since']} ({command})"


def _read(descriptor: int) -> dict[str, str | int]:
    """Returns the facts about the holder; an empty dictionary if they are incomplete."""
    try:
        facts = json.loads(os.pread(descriptor, 1 << 20, 0))
        return {name: facts[name] for name in ("host", "process", "since", "command")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
