"""Argument types: names that become part of a path, a host name or a resource name, and numbers."""

import argparse
import math
import re
from collections.abc import Callable


def name(text: str) -> str:
    """Returns the text if it is a DNS label of at most 40 characters, which leaves room for suffixes."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            "a name must be at most 40 lower-case letters, digits and hyphens, begin with a letter and not end with a "
            f"hyphen, got {text!r}"
        )
    return text


def share(text: str) -> str:
    """Returns the text if it is the address of an NFS share, ``host:/path``."""
    if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9.]*:(/[-A-Za-z0-9._]+)+", text):
        raise argparse.ArgumentTypeError(f"a share must be host:/path, such as 10.0.0.2:/runs, got {text!r}")
    return text


def at_least(minimum: float, kind: type = int) -> Callable[[str], float]:
    """Returns an argument type: a finite number that is not below the minimum."""

    def number(text: str) -> float:
        value = kind(text)
        if not minimum <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}, got {text}")
        return value

    return number
