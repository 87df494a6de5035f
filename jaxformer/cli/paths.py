"""What the command line takes for a path, and for a sentence."""

from __future__ import annotations

import argparse
import pathlib


def local_path(text: str) -> pathlib.Path:
    """A path of this machine; ``gs://bucket/run`` is none, and would be taken for a folder named ``gs:``.

    Raises:
      argparse.ArgumentTypeError: the text is an address.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path: mount the bucket first, and name the place below it")
    return pathlib.Path(text)


def sentence(text: str) -> str:
    """Text that is to be translated or drawn.

    Raises:
      argparse.ArgumentTypeError: its bytes are not UTF-8, for which Python puts characters that no text holds.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{text!a} is not UTF-8") from error
    return text
