"""What arguments may be: names that become part of a path, a host name or a resource's name, and numbers."""

import argparse
import math
import re
from collections.abc import Callable


def name(text: str) -> str:
    """The text, if it is a DNS label: lower-case letters, digits and hyphens, at most 40, for suffixes are added."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: lower-case letters, digits and hyphens, at most 40")
    return text


def share(text: str) -> str:
    """The text, if it is the address of an NFS share, ``host:/path``."""
    if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9.]*:(/[-A-Za-z0-9._]+)+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: host:/path, such as 10.0.0.2:/runs")
    return text


def at_least(least: float, kind: type = int) -> Callable[[str], float]:
    """Reads a number, no smaller than this and finite."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return value

    return number
