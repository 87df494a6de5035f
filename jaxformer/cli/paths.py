"""Argument types for paths and sentences, and saving of results that are also printed."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable

from jaxformer import files
from jaxformer.errors import ConfigError

PICTURES = (".png", ".svg", ".pdf")
"""The suffixes of pictures."""


def local_path(text: str) -> pathlib.Path:
    """Returns the path of a local file or folder.

    Raises:
      ConfigError: the text is a URL, or empty, as from an unset shell variable.
    """
    if not text:
        raise ConfigError("the path is empty")
    return files.local_path(text)


def output_file(text: str) -> pathlib.Path:
    """Returns the path of a file to write, after checking that it can be written, before any work is done.

    Raises:
      ConfigError: the path is a URL or a folder, or it may not be written.
    """
    path = local_path(text)
    if os.path.basename(text) in ("", ".", "..") and not path.is_dir():  # a path drops the slash at its end
        raise ConfigError(f"cannot write {text!r}: it names a folder")
    try:
        files.check_writable(path)
    except OSError as error:
        raise ConfigError(f"cannot write {text!r}: {error.strerror}") from error
    return path


def output_folder(text: str) -> pathlib.Path:
    """Returns the path of a folder to write files in, after checking that it is one or can be made.

    Raises:
      ConfigError: the path is a URL or a file, or files cannot be written there.
    """
    path = local_path(text)
    try:
        files.check_writable(path / "file")
    except OSError as error:
        raise ConfigError(f"cannot write in {text!r}: {error.strerror}; name a folder") from error
    return path


def save_besides(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> bool:
    """Saves a result that was already printed; if it cannot be written, there is a warning instead of an error.

    A symbolic link is replaced, not followed: in someone else's run it may point to any of this user's files. Returns
    True if it was saved.
    """
    try:
        if path.is_symlink():
            path.unlink()
        write(path)
    except OSError as error:
        print(f"warning: {path} is not saved: {error.strerror or error}", file=sys.stderr)
        return False
    return True


def picture(text: str) -> pathlib.Path:
    """Returns the path of a picture, after checking its suffix and that it can be written.

    Raises:
      ConfigError: the suffix is not in `PICTURES`, or see `output_file`.
    """
    if local_path(text).suffix.lower() not in PICTURES:
        raise ConfigError(f"{text}: a picture is one of {', '.join(PICTURES)}")
    return output_file(text)


def sentence(text: str) -> str:
    """Returns a text, after checking that it is UTF-8.

    Raises:
      ConfigError: its bytes are not UTF-8; Python replaces them with surrogate characters.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!a} is not UTF-8") from error
    return text
