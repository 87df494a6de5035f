"""Low-rank adapters: the same function at first, merged back exactly, on the matrices that patterns name."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxformer import models, modules, pure
from tests.modules.small import drawn, quick

CONFIG = models.LanguageModelConfig(
    20, d_model=8, num_heads=2, d_ff=12, num_layers=3, attention_bias=True, max_positions=6, dropout=0.0
)
NET = pure(models.LanguageModel, CONFIG)
TARGETS = ("*/attention/*", "*/up/kernel")
ADAPTED = modules.lora(NET, rank=2, targets=TARGETS, alpha=6.0)
TOKENS = jnp.asarray([[1, 5, 6, 7], [3, 2, 9, 4]], jnp.int32)


def test_adapters_of_the_named_matrices():
    """Of each layer; vectors that match are left out, and all heads of a kernel are one matrix."""
    layers = ADAPTED.shapes["lora"]["decoder"]["stack"]["layers"]
    sizes = jax.tree.map(lambda x: x.shape, layers)
    assert sizes == {
        "attention": {
            "kernel": {"a": (3, 8, 2), "b": (3, 2, 24)},
            "output": {"kernel": {"a": (3, 8, 2), "b": (3, 2, 8)}},
        },
        "feed_forward": {"up": {"kernel": {"a": (3, 8, 2), "b": (3, 2, 12)}}},
    }
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(ADAPTED.shapes["lora"])) == 3 * 2 * (8 + 24 + 8 + 8 + 8 + 12)
    axes = jax.tree.leaves(ADAPTED.axes["lora"], is_leaf=lambda x: isinstance(x, tuple))
    assert set(axes) == {("layers", None, None)}


@pytest.mark.full
def test_a_new_adapter_changes_nothing():
    params, plain = quick(lambda key: (ADAPTED.init(key), NET.init(key)))(jax.random.key(0))
    base = {name: value for name, value in params.items() if name != "lora"}
    chex.assert_trees_all_equal(base, plain)
    np.testing.assert_array_equal(quick(ADAPTED.apply)(params, TOKENS), quick(NET.apply)(base, TOKENS))
    a = params["lora"]["decoder"]["stack"]["layers"]["attention"]["kernel"]["a"]
    assert len({float(x) for x in a[:, 0, 0]}) == 3  # layers differ
    assert 0.5 < float(a.std() * 8**0.5) < 1.5


def test_adapters_are_float32_under_x64():
    """As `shapes` says, so that merging leaves the parameters float32; B was float64."""
    with jax.enable_x64(True):
        params = jax.eval_shape(ADAPTED.init, jax.random.key(0))
        merged = jax.eval_shape(ADAPTED.merged, params)
    for tree in (params, merged):
        assert {x.dtype for x in jax.tree.leaves(tree)} == {jnp.dtype("float32")}


def test_merged_exactly():
    """The merged parameters are those of the plain network, ``W + alpha / rank A B``, and give the same bits."""
    params = drawn(ADAPTED.shapes)
    merged = ADAPTED.merged(params)
    np.testing.assert_array_equal(quick(ADAPTED.apply)(params, TOKENS), quick(NET.apply)(merged, TOKENS))
    kernel, plain = (tree["decoder"]["stack"]["layers"]["attention"]["output"]["kernel"] for tree in (merged, params))
    adapter = params["lora"]["decoder"]["stack"]["layers"]["attention"]["output"]["kernel"]
    delta = 3.0 * np.einsum("lir,lro->lio", adapter["a"], adapter["b"])
    np.testing.assert_allclose(np.asarray(kernel - plain).reshape(3, 8, 8), delta, atol=1e-5)
    table = lambda tree: tree["decoder"]["embeddings"]["tokens"]["table"]
    np.testing.assert_array_equal(table(merged), table(params))


@pytest.mark.full
def test_gradients_reach_the_adapters():
    """First B, because A is multiplied by it; then both."""
    loss = lambda params: (ADAPTED.apply(params, TOKENS) ** 2).sum()
    start = quick(ADAPTED.init)(jax.random.key(0))
    for params, none in ((start, True), (drawn(ADAPTED.shapes), False)):
        adapter = quick(jax.grad(loss))(params)["lora"]["decoder"]["stack"]["layers"]["attention"]["kernel"]
        assert np.asarray(adapter["b"]).any()
        assert bool(np.asarray(adapter["a"]).any()) != none


def test_the_model_is_traced_once_for_all_binds():
    linear = chex.assert_max_traces(lambda config, *, rngs: modules.Linear(*config, rngs=rngs), n=1)
    adapted = modules.lora(pure(linear, (3, 4)), rank=1, targets=["kernel"])
    params = drawn(adapted.shapes)
    for _ in range(2):
        adapted.bind(params)
    assert adapted.axes["kernel"] == adapted.base.axes["kernel"]


def test_matching_of_the_state_of_nnx():
    """`nnx.Optimizer` asks for the mask of a state when it is created, and of one without variables at each update."""
    layer = modules.Linear(3, 4, bias=True, rngs=nnx.Rngs(0))
    decayed = optax.add_decayed_weights(-1.0, mask=lambda params: modules.matching(params, ["*kernel"]))
    before = np.asarray(layer.kernel[...])
    layer.bias[...] = jnp.ones(4)
    optimizer = nnx.Optimizer(layer, decayed, wrt=nnx.Param)
    optimizer.update(layer, jax.tree.map(jnp.zeros_like, nnx.state(layer, nnx.Param)))
    np.testing.assert_array_equal(layer.kernel[...], 0 * before)
    np.testing.assert_array_equal(layer.bias[...], 1.0)
    with pytest.raises(ValueError, match=r"the parameters are bias, kernel$"):
        modules.matching(nnx.state(layer, nnx.Param), ["*/value"])


def test_copies_of_a_table_are_adapted_alike():
    """As a mesh has them: see `sharding.with_copies`."""
    adapted = modules.lora(NET, rank=2, targets=["*/tokens/table"])
    params = drawn(adapted.shapes)
    copied = jax.tree.map(lambda x: x, params)
    table = copied["decoder"]["embeddings"]["tokens"]
    table["table"] = jnp.broadcast_to(table["table"], (2, 1, *table["table"].shape))
    run = quick(adapted.apply)
    np.testing.assert_allclose(run(copied, TOKENS), run(params, TOKENS), atol=1e-5)


class Flax(nnx.Module):
    """A feed-forward network of Flax, whose parameters have no `axes`."""

    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(16))

    def __call__(self, x, key=None):
        return self.down(jax.nn.relu(self.up(x) * self.gain[...]))

    @classmethod
    def make(cls, config, *, rngs):
        return cls(rngs)


def test_layers_of_parameters_without_axes_have_adapters_of_their_own():
    """All layers of a kernel shared one, and vectors had some."""
    config = dataclasses.replace(CONFIG, feed_forward=Flax)
    adapted = modules.lora(pure(models.LanguageModel, config), rank=2, targets=["*/feed_forward/*"])
    sizes = jax.tree.map(lambda x: x.shape, adapted.shapes["lora"]["decoder"]["stack"]["layers"]["feed_forward"])
    assert sizes == {
        "up": {"kernel": {"a": (3, 8, 2), "b": (3, 2, 16)}},
        "down": {"kernel": {"a": (3, 16, 2), "b": (3, 2, 8)}},
    }
