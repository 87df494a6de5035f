"""What the command line takes for a path."""

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
