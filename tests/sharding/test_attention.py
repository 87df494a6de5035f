"""`sharded_attention` keeps the contract of every implementation on a mesh, and devices tell each other nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import functional, masks, sharding
from jaxformer.functional.attention import api
from tests.contracts.attention import FOUR_ROWS, arrays, coin

GRID = "data=4,tensor=2"
MASKS = {
    "none": None,
    "causal": masks.causal(),
    "lengths": masks.lengths([1, 7, 0, 4]),
    "causal & padding | prefix": (masks.causal() & masks.padding(FOUR_ROWS)) | masks.prefix([1, 2, 0, 3]),
    "not segments": ~masks.segments(np.arange(20).reshape(4, 5) % 3, np.arange(28).reshape(4, 7) % 2),
    "heads": masks.dense(coin(4, 4, 5, 7)),
    "one row for all": masks.dense(coin(1, 4, 5, 7)) & masks.window(2, 2),
}


def both(mask, dropout, bias, *, implementation):
    """Output and gradients on the mesh, and alone."""
    query, key, value, upstream = arrays(batch=4)
    options = {"mask": mask, "bias": bias}
    if dropout:
        options["dropout"] = functional.Dropout(dropout, jax.random.key(3))
    grid = sharding.mesh(GRID)
    cut = NamedSharding(grid, PartitionSpec("data", None, "tensor"))

    def pulled(attend, *given):
        output, pull = jax.vjp(functools.partial(attend, **options), *given[:3])
        return output, *pull(given[3])

    there = jax.jit(functools.partial(pulled, sharding.sharded_attention(grid, implementation=implementation)))
    placed = jax.device_put((query, key, value, upstream), cut)
    here = pulled(functional.attention, query, key, value, upstream)
    return there, placed, here


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.full), 0.3], ids=["", "dropout"])
@pytest.mark.parametrize("name", MASKS)
def test_blockwise(name, dropout):
    """Rows, heads and what dropout keeps are those of the whole; the mask's arrays come cut."""
    bias = jnp.asarray(np.random.default_rng(1).standard_normal((1, 4, 1, 7)), jnp.float32) if "not" in name else None
    there, placed, here = both(MASKS[name], dropout, bias, implementation="blockwise")
    for got, want in zip(there(*placed), here, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("implementation", ["reference", "blockwise", "xla"])
def test_nothing_is_gathered(implementation):
    """No collective at all, forward or backward, with queries, keys and values cut by rows and heads."""
    there, placed, here = both(MASKS["lengths"], 0.0, None, implementation=implementation)
    program = there.lower(*placed).compile()
    text = program.as_text()
    for told in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert told not in text
    for got, want in zip(program(*placed), here, strict=True):
        assert got.sharding.is_equivalent_to(placed[0].sharding, got.ndim)
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_biases_by_head():
    alibi = functional.alibi(4)
    there, placed, here = both(MASKS["causal"], 0.0, alibi, implementation="blockwise")
    for got, want in zip(there(*placed), here, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_what_does_not_divide_is_not_cut():
    """Three rows and three heads: the same result, everywhere."""
    query, key, value, _ = (x[:3, :, :2] if i else x[:3, :, :4] for i, x in enumerate(arrays(6, 2, batch=4)))
    on_mesh = jax.jit(sharding.sharded_attention(sharding.mesh(GRID), implementation="blockwise"))
    np.testing.assert_allclose(on_mesh(query, key, value), functional.attention(query, key, value), atol=1e-5)


def test_lengths_go_around_a_ring():
    """Where the table cuts lengths; a single query, as in decoding, does not."""
    grid = sharding.mesh("data=2,context=4")
    query, key, value, _ = arrays(batch=4)
    on_mesh = jax.jit(sharding.sharded_attention(grid))
    for rows, ring in ((query, True), (query[:, :1], False)):
        assert ("collective-permute" in on_mesh.lower(rows, key, value).compile().as_text()) is ring
        np.testing.assert_allclose(on_mesh(rows, key, value), functional.attention(rows, key, value), atol=1e-5)


def test_chosen_as_alone(monkeypatch):
    monkeypatch.setattr(api, "LONG_ON_CPU", 1)
    query, key, value, _ = arrays(batch=4)
    text = jax.jit(sharding.sharded_attention(sharding.mesh(GRID))).lower(query, key, value).as_text()
    assert "while" in text


def test_refusals():
    query, key, value, _ = arrays(batch=4)
    call = sharding.sharded_attention(sharding.mesh(GRID), implementation="splash")
    with pytest.raises(ValueError, match="'splash' cannot do this"):
        call(query, key, value)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class First(masks.Mask):
    """The first keys of each row, as `masks.lengths`, but a mask that nobody knows: its arrays come whole."""

    length: jax.Array

    def tile(self, query_index, key_index):
        return masks.lengths(self.length).tile(query_index, key_index)

    def ranges(self, query_start, query_stop):
        return masks.lengths(self.length).ranges(query_start, query_stop)


def test_a_mask_of_your_own():
    there, placed, here = both(First(jnp.array([1, 7, 0, 4])), 0.0, None, implementation="blockwise")
    for got, want in zip(there(*placed), here, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
