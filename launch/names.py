"""What may become part of a path, a host name or a resource's name."""

import argparse
import re


def name(text: str) -> str:
    """The text, if it is a DNS label: lower-case letters, digits and hyphens, at most 40, for suffixes are added."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: lower-case letters, digits and hyphens, at most 40")
    return text
