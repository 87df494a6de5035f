"""The searches, with the fields of `decoding.Limits` among their keyword arguments."""

import dataclasses
import functools

from jaxformer import decoding

LIMITS = {field.name for field in dataclasses.fields(decoding.Limits)}


def with_limits(search):
    @functools.wraps(search)
    def run(step, state, **options):
        limits = decoding.Limits(**{name: options.pop(name) for name in LIMITS & {*options}})
        return search(step, state, limits, **options)

    return run


greedy, sample, beam_search = map(with_limits, (decoding.greedy, decoding.sample, decoding.beam_search))
