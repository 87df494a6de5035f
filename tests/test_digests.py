"""Digests depend on every byte and on their order."""

import hashlib

from jaxformer.digests import short_digest


def test_short_digest():
    assert short_digest(["zw", "ei é"]) == short_digest(["zwei é".encode()]) == _expected("zwei é")
    assert short_digest(["ei é", "zw"]) == _expected("ei ézw")
    assert short_digest([]) == _expected("")


def test_names_of_files_need_not_be_utf8():
    """As of a test set, or a file of configurations."""
    assert short_digest(["caf\udce9"]) != short_digest(["caf\udcea"])


def _expected(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
