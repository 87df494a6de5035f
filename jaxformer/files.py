"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, which takes its place when the block ends without an error.

    A symbolic link is followed, so that it remains a link. A path that is not a regular file, such as ``/dev/stdout``
    or a named pipe, is written to and not replaced. Missing folders are made; after an error no temporary file is left.
    """
    path = pathlib.Path(path).resolve()
    regular = path.is_file() or not path.exists()
    if regular:
        path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent if regular else pathlib.Path(tempfile.gettempdir())
    temporary = folder / f".{os.getpid()}.{path.name}"  # matplotlib chooses a format by the suffix
    try:
        yield temporary
        if regular:
            os.replace(temporary, path)
        else:
            with temporary.open("rb") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes a file whole or not at all; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a UTF-8 file whole or not at all; see `replacing`."""
    write_bytes(path, text.encode())


@contextlib.contextmanager
def creating_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary folder beside `path`, which gets its name when the block ends without an error.

    If another process has created `path` in the meantime, its folder stays and this one is removed.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Removes a folder. It is renamed first, so that no other process finds half of it, or its name taken."""
    path = pathlib.Path(path)
    renamed = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    with contextlib.suppress(FileNotFoundError):  # another process was first
        path.rename(renamed)
    shutil.rmtree(renamed)
