"""Digests depend on every byte and on their order."""

import hashlib

from jaxformer.digests import short_digest


def test_short_digest():
    assert short_digest(["zw", "ei é"]) == short_digest(["zwei é".encode()]) == _expected("zwei é")
    assert short_digest(["ei é", "zw"]) == _expected("ei ézw")
    assert short_digest([]) == _expected("")


def _expected(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]
