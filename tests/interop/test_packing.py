"""Packings are bijections between a parameter and tensors, and agree with the projections."""

import jax
import numpy as np
import pytest

from jaxformer.interop import packing

D, K, G, H = 6, 2, 3, 4

CASES = {
    "SAME": ((D, 3), 1, [(D, 3)]),
    "ONE_ROW": ((D, 3), 1, [(1, D, 3)]),
    "ONE_TOKEN": ((D,), 1, [(1, 1, D)]),
    "TRANSPOSED": ((D, 3), 1, [(3, D)]),
    "TO_HEADS": ((D, K, H), 1, [(K * H, D)]),
    "FROM_HEADS": ((K, H, D), 1, [(D, K * H)]),
    "FROM_HEADS_PLAIN": ((K, H, D), 1, [(K * H, D)]),
    "PATCHES": ((5, 5, 3, D), 1, [(D, 3, 5, 5)]),
    "GROUPS": ((D, K, G + 2, H), 3, [(K * G * H, D), (K * H, D), (K * H, D)]),
    "SIDE_BY_SIDE": ((D, K, 3, H), 1, [(D, 3 * K * H)]),
}
BIASES = {
    "TO_HEADS": ((K, H), 1, [(K * H,)]),
    "GROUPS": ((K, 2, H), 2, [(K * H,), (K * H,)]),
    "SIDE_BY_SIDE": ((K, 3, H), 1, [(3 * K * H,)]),
}


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize(("name", "case"), [*CASES.items(), *BIASES.items()])
def test_load_inverts_save(name, case):
    shape, number, expected = case
    rule, x = getattr(packing, name), numbers(*shape)
    saved = rule.save(x, number)
    assert [y.shape for y in saved] == expected
    np.testing.assert_array_equal(rule.load(shape, *saved), x)
    source = packing.Source(("{}",) * number, rule)
    assert source.shapes(jax.ShapeDtypeStruct((7, *shape), np.float32)) == expected


def test_groups_hold_the_heads_of_three_projections():
    query, key, value = numbers(K * G * H, D), numbers(K * H, D) + 0.5, -numbers(K * H, D)
    kernel = packing.GROUPS.load((D, K, G + 2, H), query, key, value)
    for head in range(K * G):
        rows = slice(head * H, (head + 1) * H)
        np.testing.assert_array_equal(kernel[:, head // G, head % G], query[rows].T)
    for group in range(K):
        rows = slice(group * H, (group + 1) * H)
        np.testing.assert_array_equal(kernel[:, group, G], key[rows].T)
        np.testing.assert_array_equal(kernel[:, group, G + 1], value[rows].T)


def test_side_by_side_holds_all_queries_first():
    tensor = numbers(D, 3 * K * H)
    kernel = packing.SIDE_BY_SIDE.load((D, K, 3, H), tensor)
    for part in range(3):
        for head in range(K):
            begin = (part * K + head) * H
            np.testing.assert_array_equal(kernel[:, head, part], tensor[:, begin : begin + H])


def test_every_parameter_needs_a_source():
    leaves = {"one": jax.ShapeDtypeStruct((2,), np.float32), "two": {"three": jax.ShapeDtypeStruct((2,), np.float32)}}
    table = {"one": packing.array("a"), "two": {"three": packing.array("b"), "absent": packing.array("c")}}
    assert [source.names for _, source in packing.matched(table, leaves)] == [("a",), ("b",)]
    with pytest.raises(ValueError, match=r"no tensor is known for the parameter two\.three"):
        list(packing.matched({"one": packing.array("a"), "two": {}}, leaves))
    with pytest.raises(ValueError, match="no tensor is known for the parameter two"):
        list(packing.matched({"one": packing.array("a"), "two": packing.array("b")}, leaves))
