"""The types of arguments that are paths or sentences."""

from __future__ import annotations

import argparse
import pathlib

PICTURES = (".png", ".svg", ".pdf")
"""The suffixes of pictures."""


def local_path(text: str) -> pathlib.Path:
    """Returns the path of a local file or folder; ``gs://bucket/run`` would become a folder named ``gs:``.

    Raises:
      argparse.ArgumentTypeError: the text is an address.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path: mount the bucket first, and name the place below it")
    return pathlib.Path(text)


def picture(text: str) -> pathlib.Path:
    """Returns the path of a picture, after checking its suffix.

    Raises:
      argparse.ArgumentTypeError: the suffix is not in `PICTURES`, or the text is an address.
    """
    path = local_path(text)
    if path.suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(f"{text}: a picture is one of {', '.join(PICTURES)}")
    return path


def sentence(text: str) -> str:
    """Returns a text, after checking that it is UTF-8.

    Raises:
      argparse.ArgumentTypeError: its bytes are not UTF-8; Python replaces them with surrogate characters.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a} is not UTF-8") from error
    return text
