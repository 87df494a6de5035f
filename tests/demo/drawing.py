"""Sentences of one construction, drawn until one matches."""

import random
import re


def drawn(maker, wanted, *, tries=40_000):
    """The first sentence of a construction whose English matches."""
    pick = random.Random(0)
    for _ in range(tries):
        pair = maker(pick)
        if re.fullmatch(wanted, pair.english):
            return pair
    raise AssertionError(f"never drawn: {wanted}")
