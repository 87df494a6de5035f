"""The batch plan: every pair once per epoch, in few shapes, as a pure function of the step."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import batch_plan, token_cache
from jaxformer.data.batch_plan import make_batch_plan, replan
from jaxformer.data.pipeline import TokenizedPairs
from jaxformer.data.token_cache import Ragged
from jaxformer.errors import ConfigError
from jaxformer.tokenizers.special_tokens import SpecialTokens


def lengths(seed, count):
    random = np.random.default_rng(seed)
    source = random.integers(1, 40, count)
    return source, np.clip(source + random.integers(-3, 4, count), 1, None)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(20, 400), st.integers(1, 6), st.sampled_from([1, 8]), st.sampled_from([1, 4]))
def test_every_pair_once_per_epoch(seed, count, num_shapes, multiple, length_multiple):
    source, target = lengths(seed, count)
    options = {"max_length": 36, "multiple_of": multiple, "length_multiple": length_multiple}
    plan = make_batch_plan(source, target, seed=seed, tokens_per_batch=600, num_shapes=num_shapes, **options)
    assert len(plan.shapes) <= num_shapes
    assert [length % length_multiple for shape in plan.shapes for length in shape[1:]] == [0, 0] * len(plan.shapes)
    for epoch in range(2):
        seen = []
        for step in range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch):
            (rows, most, _), pairs, of_epoch = plan.batch(step)
            assert of_epoch == epoch
            assert rows % multiple == 0
            assert 0 < len(pairs) <= rows
            assert (np.maximum(source[pairs], target[pairs]) + 1 <= most).all()
            seen += pairs.tolist()
        assert sorted(seen + plan.skipped.tolist()) == list(range(count))


def test_a_batch_is_a_function_of_the_step():
    source, target = lengths(0, 500)
    first, second = (make_batch_plan(source, target, seed=3, tokens_per_batch=400, num_shapes=3) for _ in range(2))
    for step in (0, 700, 13, 0, 99):  # any order, any start
        assert first.batch(step)[1].tolist() == second.batch(step)[1].tolist()
    other = make_batch_plan(source, target, seed=4, tokens_per_batch=400, num_shapes=3)
    assert any(first.batch(i)[1].tolist() != other.batch(i)[1].tolist() for i in range(5))


def test_epochs_differ():
    """In the order of batches, and in the pairs that share one."""
    plan = make_batch_plan(*lengths(0, 500), seed=3, tokens_per_batch=400, num_shapes=3)
    assert plan.batch(0)[1].tolist() != plan.batch(plan.steps_per_epoch)[1].tolist()
    size = plan.steps_per_epoch
    together = [{frozenset(plan.batch(step)[1].tolist()) for step in range(i * size, i * size + size)} for i in (0, 1)]
    assert together[0] != together[1]


def test_more_shapes_waste_less():
    source, target = lengths(1, 3000)
    fills = [
        make_batch_plan(source, target, num_shapes=n, tokens_per_batch=2000).fill(source, target) for n in (1, 2, 4, 8)
    ]
    assert fills == sorted(fills)
    assert fills[-1] > 0.8


def test_validation_uses_the_shapes_of_training():
    plan = make_batch_plan(*lengths(0, 500), tokens_per_batch=400, num_shapes=3)
    source, target = lengths(9, 100)
    held = replan(plan, source, target)
    assert held.shapes == plan.shapes
    seen = [i for step in range(held.steps_per_epoch) for i in held.batch(step)[1]]
    assert sorted(seen + held.skipped.tolist()) == list(range(100))


def test_pairs_that_are_all_too_long_are_refused():
    with pytest.raises(ConfigError, match="at most 5 tokens"):
        make_batch_plan(np.array([10]), np.array([10]), max_length=5)
    with pytest.raises(ConfigError, match="tokens_per_batch is 64, too few for 8 rows"):
        make_batch_plan(np.array([100]), np.array([100]), tokens_per_batch=64)


def test_orders_of_large_corpora_need_no_array(monkeypatch):
    """Every pair once per epoch, in another order each time, as a function of the step; validation stays in order."""
    source, target = lengths(1, 700)
    plan = make_batch_plan(source, target, seed=3, tokens_per_batch=400, num_shapes=3)
    small = [plan.batch(step)[1].tolist() for step in range(plan.steps_per_epoch)]
    monkeypatch.setattr(batch_plan, "LARGEST_SHUFFLE", 699)
    epochs = [[plan.batch(epoch * plan.steps_per_epoch + i) for i in range(plan.steps_per_epoch)] for epoch in range(2)]
    orders = [[pair for _, pairs, _ in epoch for pair in pairs.tolist()] for epoch in epochs]
    for order, epoch in zip(orders, epochs, strict=True):
        assert sorted(order) == list(range(700))
        for shape, pairs, _ in epoch:
            assert (np.maximum(source[pairs], target[pairs]) + 1 <= shape[1]).all()
    assert orders[0] != orders[1]
    assert [pair for batch in small for pair in batch] not in orders
    shape, pairs, _ = plan.batch(5, rows=lambda number: np.arange(1, number, 2))
    assert pairs.tolist() == plan.batch(5)[1][1::2].tolist()
    ordered = replan(plan, source, target)
    assert ordered.batch(0)[1].tolist() == ordered.buckets[0][: plan.shapes[0][0]].tolist()


def test_planning_takes_eight_bytes_a_pair(monkeypatch):
    """Four for the lengths and four for the plan, which is that of lengths of any type and of one chunk."""
    random, number = np.random.default_rng(0), 400_000
    sides = [Ragged(np.zeros(0), np.append(0, np.cumsum(random.integers(1, 300, number)))) for _ in range(2)]
    tokens = TokenizedPairs((sides[0],), (sides[1],), SpecialTokens())
    expected = make_batch_plan(*(side.lengths for side in sides), max_length=250)
    for module in (batch_plan, token_cache):
        monkeypatch.setattr(module, "CHUNK", 1 << 12)
    tracemalloc.start()
    try:
        plan = make_batch_plan(*tokens.lengths(), max_length=250)
        fill = plan.fill(*tokens.lengths())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8.7 * number
    assert plan.shapes == expected.shapes
    for bucket, other in zip((*plan.buckets, plan.skipped), (*expected.buckets, expected.skipped), strict=True):
        np.testing.assert_array_equal(bucket, other)
    assert fill == expected.fill(*(side.lengths for side in sides))
