"""Short hashes that name data in caches and runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def short_digest(parts: Iterable[str | bytes]) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 of all parts, joined; texts are encoded as UTF-8.

    A text may be a file name that is not UTF-8, whose bytes Python represents by surrogates.

    >>> short_digest(["a", b"b"]) == short_digest(["ab"]) != short_digest(["ba"])
    True
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode(errors="surrogatepass") if isinstance(part, str) else part)
    return digest.hexdigest()[:16]


def sealed(data: bytes) -> bytes:
    """Returns the content of a file of a cache: data, then their `short_digest`, which `unsealed` compares."""
    return data + short_digest([data]).encode()


def unsealed(content: bytes) -> bytes:
    """Returns the data of `sealed` content.

    Raises:
      ValueError: the content does not end with the hash of the rest: a flipped bit, or a file of an earlier version.
    """
    data, digest = content[:-16], content[-16:]
    if short_digest([data]).encode() != digest:
        raise ValueError("it does not end with its fingerprint")
    return data
