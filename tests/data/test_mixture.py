"""Mixtures: every batch a pure function of the corpora, their weights, the seed and its number."""

import collections
import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.batch_plan import make_batch_plan
from jaxformer.data.mixture import BLOCK, MixedWindows, PlannedMixture, TaggedPairs, make_mixture_plan
from jaxformer.data.pipeline import TokenizedPairs
from jaxformer.data.token_cache import Ragged
from jaxformer.data.weights import Phases, WeightConfig, make_phases
from jaxformer.data.windows import RandomWindows, TokenStream
from jaxformer.errors import ConfigError
from jaxformer.tokenizers.special_tokens import SpecialTokens

SIZES = (200, 90, 500, 3)


def lengths(sizes=SIZES):
    random = np.random.default_rng(0)
    return [np.clip(random.normal(8 + 4 * i, 5, size).astype(int), 1, 40) for i, size in enumerate(sizes)]


def plan_of(phases=None, *, seed=0, mixed=True, sizes=SIZES):
    each = lengths(sizes)
    joined = np.concatenate(each)
    shapes = make_batch_plan(joined, joined, seed=seed, tokens_per_batch=400, num_shapes=3, max_length=38)
    names = [f"c{i}" for i in range(len(sizes))]
    by_size = lambda usable: make_phases(dict.fromkeys(names, WeightConfig()), sizes=usable, temperature=3)
    return make_mixture_plan(sizes, shapes, (lambda _: phases) if phases else by_size, names=names, mixed=mixed)


def constant(*weights):
    return Phases((0,), (tuple(map(float, weights)),))


def same(one, other):
    return one.shape == other.shape and all(np.array_equal(a, b) for a, b in zip(one[1:], other[1:], strict=True))


@pytest.mark.parametrize("mixed", [True, False])
def test_a_batch_is_a_function_of_its_number(mixed):
    """In any order, from any start, in a plan that has made no other batch."""
    one, other = plan_of(seed=3, mixed=mixed), plan_of(seed=3, mixed=mixed)
    for step in (BLOCK + 5, 0, 20, BLOCK - 1, 3 * BLOCK, 1):
        assert same(one.batch(step), other.batch(step))
    assert not all(same(one.batch(i), plan_of(seed=4, mixed=mixed).batch(i)) for i in range(3))
    assert all((len(set(one.batch(i).corpora.tolist())) == 1) != mixed for i in range(5))


def test_the_rows_of_hosts_join_to_the_batch():
    plan = plan_of(seed=1)
    for step in range(20):
        whole = plan.batch(step)
        parts = [plan.batch(step, rows=lambda n, host=host: np.arange(host, n + 2, 3)) for host in range(3)]
        for field in ("corpora", "pairs", "passes"):
            joined = np.zeros(whole.shape[0], int)
            for host, part in enumerate(parts):
                joined[host::3] = getattr(part, field)
            assert joined.tolist() == getattr(whole, field).tolist()


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.booleans(), st.integers(1, BLOCK + 300))
def test_other_weights_from_a_step_on_change_nothing_before_it(seed, mixed, change):
    """Also in the middle of a block."""
    plan = plan_of(constant(1, 1, 3, 1), seed=seed, mixed=mixed)
    later = Phases((0, change), ((1.0, 1.0, 3.0, 1.0), (0.0, 9.0, 1.0, 0.0)))
    other = plan_of(later, seed=seed, mixed=mixed)
    for step in {0, change // 2, change - 1}:
        assert same(plan.batch(step), other.batch(step))
    after = [other.batch(step) for step in range(change, change + 40)]
    assert {corpus for batch in after for corpus in batch.corpora.tolist()} == {1, 2}
    assert not all(same(plan.batch(change + i), batch) for i, batch in enumerate(after))


@pytest.mark.parametrize("mixed", [True, False])
def test_each_pair_of_a_corpus_comes_once_a_pass(mixed):
    plan, seen, each = plan_of(mixed=mixed), collections.Counter(), lengths()
    for step in range(120):
        batch = plan.batch(step)
        assert len(batch.pairs) == batch.shape[0]
        seen.update(zip(batch.corpora.tolist(), batch.pairs.tolist(), batch.passes.tolist(), strict=True))
        assert max(each[corpus][pair] for corpus, pair in zip(batch.corpora, batch.pairs, strict=True)) < batch.shape[1]
    assert set(seen.values()) == {1}
    assert sum(seen.values()) == plan.given(120).sum()
    for corpus, (size, left_out) in enumerate(zip(SIZES, plan.skipped, strict=True)):
        first = {pair for which, pair, number in seen if which == corpus and number == 0}
        assert first | {*left_out.tolist()} == {*range(size)}


def test_weights_by_size_count_the_pairs_that_fit():
    sizes = (9, 9, 200, 9, 9, 9, 200)
    usable = np.array([(each < 38).sum() for each in lengths(sizes)])
    assert usable[-1] < 190
    np.testing.assert_allclose(plan_of(sizes=sizes).phases.shares[0], usable ** (1 / 3) / (usable ** (1 / 3)).sum())


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (0.02, 5, 1, 0.3)])
def test_shares_are_those_of_the_weights(mixed, weights):
    """Within five standard deviations of a binomial; apart, those of whole batches."""
    plan, steps = plan_of(constant(*weights), mixed=mixed), 3 * BLOCK
    given_rows, shares = plan.given(steps), np.array(plan.phases.shares[0])
    total = given_rows.sum()
    rows = 1 if mixed else max(shape[0] for shape in plan.shapes)
    assert (abs(given_rows - total * shares) < 5 * np.sqrt(total * shares * (1 - shares) * rows)).all()


def test_a_late_batch_comes_soon():
    """A run that resumes at a late step draws the numbers of all batches before it: 0.3 seconds for a million."""
    plan, began = plan_of(), time.process_time()
    late = plan.batch(250_000)
    assert time.process_time() - began < 2
    assert late.passes.max() > 1000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan_of(constant(1, 1, 1), sizes=(20, 30, 0)), "c2 has no usable pair"),
        (lambda: plan_of(constant(1, 1, 1, 1e-12)), "the weight of c3 is too small to have an effect"),
    ],
)
def test_corpora_without_an_effect_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def tagged(corpus, number, **options):
    """A corpus whose tokens tell the corpus and the pair, in two segmentations that differ in their first token."""
    rows = [[np.array([10 * corpus + s, *[100 + i] * (1 + i % 7)], np.int32) for i in range(number)] for s in (0, 1)]
    sides = tuple(Ragged.join(one) for one in rows)
    return TaggedPairs(TokenizedPairs(sides, sides, SpecialTokens()), **options)


def test_batches_of_several_corpora_begin_with_their_tags():
    parts = (tagged(1, 60, target_start=(7,)), tagged(2, 30, source_start=(8, 9)))
    each = [np.maximum(*part.lengths()) for part in parts]
    shapes = make_batch_plan(np.concatenate(each), np.concatenate(each), tokens_per_batch=160, num_shapes=2)
    planned = PlannedMixture(parts, make_mixture_plan((60, 30), shapes, lambda _: constant(1, 1), names="ab"))
    variants = set()
    for step in range(8):
        batch, picked = planned.batch(step), planned.plan.batch(step)
        assert batch.corpora.tolist() == picked.corpora.tolist()
        for row, (corpus, pair) in enumerate(zip(picked.corpora.tolist(), picked.pairs.tolist(), strict=True)):
            source, target = batch.source.ids[row][batch.source.valid[row]], batch.labels[row][batch.target.valid[row]]
            source, target = (x[:-1].tolist() for x in (source, target))  # without eos
            assert (source[: 2 * corpus], target[: 1 - corpus]) == ([8, 9] * corpus, [7] * (1 - corpus))
            for text in (source[2 * corpus :], target[1 - corpus :]):
                variants.add(text[0])
                assert text[1:] == [100 + pair] * (1 + pair % 7)
                assert text[0] // 10 == corpus + 1
        few = planned.batch(step, rows=lambda n: np.arange(1, n + 3, 2))
        assert few.source.ids[: len(batch.labels) // 2].tolist() == batch.source.ids[1::2].tolist()
        assert not few.source.valid[len(batch.labels) // 2 :].any()
    assert variants == {10, 11, 20, 21}


def test_windows_of_several_texts():
    """None spans two texts, shares are those of the weights, and the rows of hosts join to the batch."""
    streams = [TokenStream(np.arange(size) + start, SpecialTokens()) for size, start in ((100, 1000), (40, 2000))]
    parts = tuple(RandomWindows(stream, length=8, batch_size=10, seed=i) for i, stream in enumerate(streams))
    mixed = MixedWindows(parts, Phases((0, 50), ((1.0, 3.0), (1.0, 0.0))), seed=0)
    assert mixed.steps_per_epoch == 2
    rows = 0
    for step in range(60):
        batch = mixed.batch(step)
        assert ((batch.tokens.ids // 1000 == 1 + batch.corpora[:, None]) & batch.tokens.valid).all()
        assert (batch.labels == batch.tokens.ids + 1).all()
        own = mixed.batch(step, rows=lambda n: np.arange(1, n + 2, 2))
        assert own.tokens.ids[:5].tolist() == batch.tokens.ids[1::2].tolist()
        assert not own.tokens.valid[5:].any()
        rows += batch.corpora.sum()
    assert 50 * 7 <= rows <= 50 * 8
    assert dataclasses.replace(mixed).batch(7).labels.tolist() == mixed.batch(7).labels.tolist()
