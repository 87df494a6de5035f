"""All combinations of implementations, masks, biases, heads, dtypes, dropout, scores and lengths.

The product has 20,736 cases. `make test` runs cases on one device in which blockwise and xla meet each value of every
other choice. `make test-full` also runs cases that cover every pair of values that can meet, those of the ring
among them, whose programs take longest to compile, cases that cover every triple, and every implementation with every
mask, bias and number of key heads. Output and all gradients of each case are compared with
NumPy in float64, where each mask and bias is computed from its formula. `refusals` has the rules for the requests that
an implementation refuses.

The full product takes hours. It can be run in any number of parts; this is the third of two hundred::

    JAXFORMER_PRODUCT=3/200 python -m pytest -m full tests/contracts/test_product.py -k by_hand
"""

import collections
import functools
import itertools
import math
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxformer import functional, masks, sharding
from jaxformer.conformance import oracle
from jaxformer.functional.attention import blockwise
from jaxformer.functional.attention.base import make_request
from tests.contracts import biases, numpy_dropout
from tests.contracts.attention import B, H
from tests.selection import first

N, J = biases.N, 3
AXES = {
    "implementation": ("reference", "blockwise", "xla", "ring"),
    "mask": (
        "everything",
        "causal",
        "causal, offset",
        "window",
        "padding",
        "segments",
        "heads",
        "causal & padding",
        "block-sparse",
    ),
    "bias": ("no bias", "array [B, 1, 1, S]", "array [1, N, T, 1]", "alibi", "t5", "relative keys"),
    "key_heads": (4, 2, 1),
    "dtype": ("float32", "bfloat16"),
    "rate": (0.0, 0.3),
    "cap": (None, 2.0),
    "lengths": ((5, 5), (3, 7), (6, 4), (1, 6)),
}
ALONE = ("reference", "blockwise", "xla")  # on one device
Case = collections.namedtuple("Case", AXES)
PARTS = 48
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.05}


def refusals(case):
    """Returns the possible error messages of a case that an implementation refuses; none if it accepts the case."""
    xla, ring = "'xla' cannot do this: ", "ring attention cannot do this: "
    return [
        reason
        for refused, reason in (
            (case.implementation == "xla" and case.rate, xla + "it cannot drop weights by the hash of this library"),
            (case.implementation == "xla" and case.cap, xla + "it has no function of the logits"),
            (case.implementation == "ring" and "array" in case.bias, ring + "a bias must be a Bias"),
        )
        if refused
    ]


def every(**chosen):
    """Returns all cases, or those with these values only."""
    return list(itertools.starmap(Case, itertools.product(*(AXES | chosen).values())))


@functools.cache
def cover(strength, *, refused=False, ring=True):
    """Returns cases, refused or not, that cover every `strength` values that meet in any of these cases.

    The choice is greedy: the next case adds the most combinations; of equals it is the one least like those before.
    """
    chosen = AXES["implementation"] if ring else ALONE
    cases = [case for case in every(implementation=chosen) if refused == bool(refusals(case))]
    numbers = np.array([[values.index(x) for values, x in zip(AXES.values(), case, strict=True)] for case in cases])
    sizes, meetings, count = [len(values) for values in AXES.values()], [], 0
    for chosen in itertools.combinations(range(len(sizes)), strength):
        shape = [sizes[i] for i in chosen]
        meetings.append(count + np.ravel_multi_index(tuple(numbers[:, i] for i in chosen), shape))
        count += math.prod(shape)
    meetings, results = np.stack(meetings, 1), []
    new, similarity = np.zeros(count, int), np.zeros(len(cases), int)
    new[meetings] = 1
    while new.any():
        best = (new[meetings].sum(1) * 10_000 - similarity).argmax()
        new[meetings[best]] = 0
        similarity += (numbers == numbers[best]).sum(1)
        results.append(cases[best])
    return results


def few_pairs():
    """Returns cases of the cover, chosen greedily, in which blockwise and xla meet each value of every axis.

    The reference meets most of them in the contract of all implementations.
    """
    some = [case for case in cover(2, ring=False) if case.implementation != "reference"]
    meets = {case: {(case.implementation, *pair) for pair in enumerate(case)} for case in some}
    missing, results = set().union(*meets.values()), []
    while missing:
        results.append(max(meets, key=lambda case: len(meets[case] & missing)))
        missing -= meets[results[-1]]
    return results


def pairs_of_the_ring():
    """Returns the cases of the cover with the ring; the cover without it has all other pairs."""
    return [case for case in cover(2) if case.implementation not in ALONE]


def masked(name, num_queries, num_keys):
    """Returns the library's mask, and its array ``[1 | B, 1 | N, T, S]`` from the formula."""
    t, s = np.arange(num_queries)[:, None], np.arange(num_keys)
    offset = max(0, num_keys - num_queries) - 2  # without more keys than queries, the first two queries see none
    real = s < np.array([[num_keys - 1], [num_keys // 2]])
    segments = np.tile(t[:, 0] // 2, (B, 1)), np.stack([s // 3, s // 2 + 1])  # the second example has no key segment 0
    heads = np.random.default_rng(num_keys).random((B, N, num_queries, num_keys)) > 0.4
    rows, columns = np.arange(-(-num_queries // 2))[:, None], np.arange(-(-num_keys // 2))
    layout = (rows + columns) % 3 != 1
    return {
        "everything": (None, np.ones((1, 1, num_queries, num_keys), bool)),
        "causal": (masks.causal(), (s <= t)[None, None]),
        "causal, offset": (masks.causal(offset), (s <= t + offset)[None, None]),
        "window": (masks.window(2), ((t - 2 <= s) & (s <= t))[None, None]),
        "padding": (masks.padding(real), np.broadcast_to(real[:, None, None], (B, 1, num_queries, num_keys))),
        "segments": (masks.segments(*segments), (segments[0][:, :, None] == segments[1][:, None])[:, None]),
        "heads": (masks.dense(heads), heads),
        "causal & padding": (masks.causal() & masks.padding(real), (s <= t) & real[:, None, None]),
        "block-sparse": (masks.block_sparse(layout, 2), layout[t // 2, s // 2][None, None]),
    }[name]


def learned(case):
    """Returns the learned arrays of the bias of a case; only these get a gradient."""
    if case.bias.startswith("array"):
        num_queries, num_keys = case.lengths
        shape = {"array [B, 1, 1, S]": (B, 1, 1, num_keys), "array [1, N, T, 1]": (1, N, num_queries, 1)}[case.bias]
        return {"array": jnp.asarray(np.random.default_rng(7).standard_normal(shape), jnp.float32)}
    name = {"t5": "t5", "relative keys": "keys"}.get(case.bias)
    return {name: biases.LEARNED[name]} if name else {}


def added(case, learned):
    """Returns the library's bias."""
    return (
        None if case.bias == "no bias" else learned["array"] if "array" in learned else biases.made(case.bias, learned)
    )


def attend(case, query, key, value, **options):
    """Computes attention in blocks of three by four, so that all lengths have partial blocks, or on a ring of four."""
    if case.implementation == "blockwise":
        return blockwise.attention(make_request(query, key, value, **options), query_block=3, key_block=4)
    if case.implementation == "ring":
        ring = Mesh(np.array(jax.devices()[:4]), ("context",))
        return sharding.ring_attention(ring, "context")(query, key, value, **options)
    return functional.attention(query, key, value, implementation=case.implementation, **options)


# Programs this small take a second to compile and no time to run.
@functools.partial(jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})
def pulled(case, query, key, value, upstream, learned, mask, dropout_key):
    """Returns the output and the gradients of query, key, value and the learned arrays of the bias."""
    score = None if case.cap is None else functional.soft_cap(case.cap)
    options = {"mask": mask, "score": score, "dropout": functional.Dropout(case.rate, dropout_key)}
    call = lambda q, k, v, learned: attend(case, q, k, v, bias=added(case, learned), **options)
    output, pull = jax.vjp(call, query, key, value, learned)
    return output, *pull(upstream)


def drawn(case):
    """Returns query, key, value and the upstream gradient."""
    num_queries, num_keys = case.lengths
    shapes = (num_queries, N, H), (num_keys, case.key_heads, H), (num_keys, case.key_heads, J), (num_queries, N, J)
    draw = np.random.default_rng(sum(case.lengths) + case.key_heads).standard_normal
    return [jnp.asarray(draw((B, *shape)), case.dtype) for shape in shapes]


def by_numpy(case, inputs, dropout_key):
    """Returns the result of `pulled`, computed from formulas."""
    query, key, value, upstream = (np.asarray(x, np.float64) for x in inputs)
    (num_queries, num_keys), scale, parameters = case.lengths, H**-0.5, learned(case)
    dims = B, N, num_queries, num_keys
    options = {"allowed": masked(case.mask, *case.lengths)[1]}
    if case.bias != "no bias":
        array = parameters.get("array")
        options["bias"] = biases.dense(case.bias, query * scale, num_keys) if array is None else array
    if case.cap is not None:
        options["score"] = lambda x: case.cap * np.tanh(x / case.cap), lambda x: 1 - np.tanh(x / case.cap) ** 2
    if case.rate:
        kept = numpy_dropout.kept(jax.random.key_data(dropout_key), case.rate, dims)
        options |= {"rate": case.rate, "kept": kept}
    output, _ = oracle.attention(query, key, value, **options)
    d_query, d_key, d_value, d_bias = oracle.gradients(query, key, value, upstream, **options)
    ahead = np.arange(num_keys) - np.arange(num_queries)[:, None]
    slopes = {}
    for name, x in parameters.items():
        if name == "array":
            slopes[name] = d_bias.sum(tuple(dim for dim, size in enumerate(x.shape) if size == 1), keepdims=True)
        elif name == "t5":
            row = np.vectorize(lambda distance: biases.bucket(distance, 8, 6))(ahead)
            slopes[name] = np.einsum("bnts,tsr->rn", d_bias, np.eye(8)[row])
        else:
            of = np.eye(5)[ahead.clip(-2, 2) + 2]
            slopes[name] = np.einsum("bnts,tsr,btnh->rh", d_bias, of, scale * query)
            d_query += scale * np.einsum("bnts,tsr,rh->btnh", d_bias, of, biases.KEYS)
    return output, d_query, d_key, d_value, slopes


def worst(case):
    """Returns the largest error of the output and of any gradient, relative to values above 1."""
    inputs, dropout_key = drawn(case), jax.random.key(5)
    # The gradient of `jax.nn` in bfloat16 multiplies two dtypes.
    with jax.numpy_dtype_promotion("standard" if case.implementation == "xla" else "strict"):
        results = pulled(case, *inputs, learned(case), masked(case.mask, *case.lengths)[0], dropout_key)
    assert [x.dtype for x in results[:4]] == [case.dtype] * 4
    errors = []
    for got, want in zip(*(jax.tree.leaves(x) for x in (results, by_numpy(case, inputs, dropout_key))), strict=True):
        assert got.shape == want.shape
        errors.append(np.abs(np.asarray(got, np.float64) - want).max() / max(1, np.abs(want).max()))
    return max(errors)


def label(case):
    return ", ".join(str(x) for x in case)


def refused(case):
    """Checks that a case is refused with the right message before anything is computed."""
    with pytest.raises(ValueError, match="|".join(map(re.escape, refusals(case)))):
        worst(case)


def check(cases):
    """Checks that each case is within its tolerance, or is refused."""
    assert cases
    results = {}
    for case in cases:
        if refusals(case):
            refused(case)
        else:
            results[case] = worst(case)
    pulled.clear_cache()
    assert {label(case): x for case, x in results.items() if not x < TOLERANCE[case.dtype]} == {}


@pytest.mark.parametrize("case", first([*cover(2, ring=False), *pairs_of_the_ring()], *few_pairs()), ids=label)
def test_pairs(case):
    """Every pair of choices that can be combined."""
    assert worst(case) < TOLERANCE[case.dtype]


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_triples(part):
    """Every triple of choices; the cover is computed here because it takes half a second."""
    check(cover(3)[part::PARTS])


@pytest.mark.full
@pytest.mark.parametrize("mask", AXES["mask"])
@pytest.mark.parametrize("implementation", AXES["implementation"])
def test_principal_choices(implementation, mask):
    """Each bias and number of key heads: all 648 of the choices that meet in the arithmetic of a tile.

    The remaining choices have one place each in the code, the same for every mask: dtypes are cast, weights dropped and
    logits capped. The lengths are five, so that blocks and the shards of the ring are partial.
    """
    chosen = {"implementation": (implementation,), "mask": (mask,), "dtype": ("float32",), "rate": (0.0,)}
    check(every(**chosen, cap=(None,), lengths=((5, 5),)))


def by_hand():
    """Returns the cases of the part that the environment names, twelve at a time."""
    named = re.fullmatch(r"(\d+)/(\d+)", os.environ.get("JAXFORMER_PRODUCT", "0/1"))
    assert named, "JAXFORMER_PRODUCT is PART/PARTS, such as 3/200"
    part, parts = map(int, named.groups())
    cases = every()[part - 1 :: parts] if part else []
    return [cases[i : i + 12] for i in range(0, len(cases), 12)]


@pytest.mark.full
@pytest.mark.parametrize("cases", by_hand(), ids=lambda cases: label(cases[0]))
def test_by_hand(cases):
    """A part of the whole product."""
    check(cases)


def test_refusals():
    """Every pair of choices that includes a refused one; each of the three reasons is met, and met alone."""
    cases = cover(2, refused=True)
    alone = {refusals(case)[0] for case in cases if len(refusals(case)) == 1}
    assert len(alone) == 3
    for case in cases:
        refused(case)


@pytest.mark.parametrize("strength", first([2, 3], 2))
def test_nothing_is_left_out(strength):
    """Every combination that can meet in a case that runs, or in a refused one, is in the cover."""
    subsets = list(itertools.combinations(range(len(AXES)), strength))
    meet = lambda cases: {(where, tuple(case[i] for i in where)) for case in cases for where in subsets}
    for refused, ring in itertools.product((False, True), repeat=2):
        chosen = every() if ring else every(implementation=ALONE)
        possible = meet(case for case in chosen if refused == bool(refusals(case)))
        assert meet(cover(strength, refused=refused, ring=ring)) == possible
