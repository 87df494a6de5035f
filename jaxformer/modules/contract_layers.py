"""The laws of attention functions that need layers: cached steps, remat and meshes, each in a stack of two blocks."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import masks
from jaxformer.axes import placed, placing
from jaxformer.functional.cache import KeyValueCache, first_lanes, take_lanes
from jaxformer.modules.attention import Logits, SelfAttention
from jaxformer.modules.attention_function import AttentionFunction, Heads, Operand
from jaxformer.modules.blocks import Block
from jaxformer.modules.layers import LayerNorm
from jaxformer.modules.pure import Params, Pure, pure
from jaxformer.modules.stack import Stack
from jaxformer.sharding import RULES, mesh, shardings_like, with_axis_rules

Net: TypeAlias = Pure[Stack[Block], None]
State: TypeAlias = tuple[tuple[KeyValueCache, ...], Any, jax.Array]
"""The caches, lanes and positions of a stack's cached steps."""

B, K, T, PREFIX = 2, 2, 6, 3
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""``jax.jit`` for programs that run once, for microseconds."""


class BrokenLawError(Exception):
    """A law is broken; the message says how."""


def noisy(params: Params, deviation: float = 0.1) -> Params:
    """Returns parameters with some noise, because some start at 0 or 1."""
    random = np.random.default_rng(1)

    def add(x: Operand) -> Operand:
        noise = deviation * random.standard_normal(x.shape)
        return np.asarray(np.asarray(x) + noise, x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(add, params)


def check_near(what: str, got: object, expected: object, tolerance: float = 1e-4) -> None:
    """Checks that the arrays of two trees are nearly equal.

    Raises:
      BrokenLawError: they are not.
    """
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        x, y = (np.asarray(array, np.float32) for array in (one, other))
        difference = float(np.abs(x - y).max(initial=0.0))
        if not difference <= tolerance * max(1.0, float(np.abs(y).max(initial=0.0))):
            raise BrokenLawError(f"{what} by {difference:.2g}")


def check_finite(what: str, tree: object) -> None:
    """Checks that all arrays of a tree are finite.

    Raises:
      BrokenLawError: one is not; the message has its path.
    """
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if not np.isfinite(np.asarray(x, np.float32)).all():
            of = jax.tree_util.keystr(path, simple=True, separator="/")
            raise BrokenLawError(f"{what} {of}".strip() + " is not finite")


class Stacked:
    """Two blocks without cross-attention that have this attention, with parameters and random states."""

    def __init__(self, attention: AttentionFunction, heads: Heads):
        dim = heads.num_heads * heads.head_dim
        logits = Logits(heads.scale, heads.score, sinks=heads.sinks)
        sizes = {"num_kv_heads": heads.num_kv_heads, "head_dim": heads.head_dim, "logits": logits}

        def make_block(rngs: nnx.Rngs) -> Block:
            layer = SelfAttention(dim, heads.num_heads, **sizes, attention=attention, rngs=rngs)
            return Block(layer, _nothing, norm=lambda: LayerNorm(dim))

        self.nets = tuple(
            pure(lambda config, rngs, remat=remat: Stack(make_block, 2, remat=remat, rngs=rngs), None)
            for remat in (False, True)
        )
        self.params = _drawn(self.nets[0])
        self.x = np.random.default_rng(4).standard_normal((B, K, T, dim)).astype(np.float32)
        self.num_kv_heads = heads.num_kv_heads

    @functools.cached_property
    def gradients(self) -> tuple[jax.Array, tuple[Params, jax.Array]]:
        """The states, and the gradients by parameters and inputs."""
        return quick(functools.partial(_gradient, self.nets[0]))(self.params, self.x)

    def check_steps(self) -> None:
        """Checks that a prefix and steps of a beam, which is reordered before each, equal the full pass."""
        parents = np.random.default_rng(5).integers(0, K, (T - PREFIX, B, K)).astype(np.int32)
        rows, x = np.arange(B)[:, None], self.x.copy()
        x[:, :, :PREFIX] = x[:, :1, :PREFIX]  # the hypotheses of a row begin with one prefix
        history = x[:, :, :PREFIX]
        for i, of in enumerate(parents):  # of each hypothesis in the end
            history = np.concatenate([history[rows, of], x[:, :, PREFIX + i, None]], 2)
        prefix, last = quick(functools.partial(_steps, self.nets[0]))(self.params, x, parents)
        expected = np.asarray(quick(functools.partial(_full, self.nets[0]))(self.params, history))
        check_near("the states of a prefix differ from the full pass", prefix, expected[:, :, :PREFIX])
        check_near("the states of a step with a beam differ from the full pass", last, expected[:, :, -1])

    def check_remat(self) -> str:
        """Checks that gradients are finite, and equal if blocks are recomputed in the backward pass."""
        for name, of in zip(("parameter", "input"), self.gradients[1], strict=True):
            check_finite(f"in a stack, the gradient of the {name}", of)
        remat = quick(functools.partial(_gradient, self.nets[1]))(self.params, self.x)
        check_near("remat changes the gradients", remat, self.gradients)
        return "changes nothing"

    def check_mesh(self) -> str:
        """Checks that states and gradients on a mesh equal those on one device; returns which mesh was tried."""
        devices = jax.devices()
        if len(devices) < 2:
            return "not tried, because there is one device"
        text, count = "data=2", 2
        if len(devices) > 3 and self.num_kv_heads % 2 == 0:
            text, count = "data=2,tensor=2", 4
        over = mesh(text, devices[:count])
        net = self.nets[0]
        on_mesh = with_axis_rules(RULES, over)(functools.partial(_gradient, net))
        params = jax.device_put(self.params, shardings_like(net.shapes, net.axes, RULES, over))
        got = quick(on_mesh)(params, jax.device_put(self.x, NamedSharding(over, PartitionSpec("data"))))
        check_near(f"the mesh {text} changes states or gradients", got, self.gradients)
        return f"{text} changes nothing"


def _nothing(x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
    """Returns the input, in place of a feed-forward network, which would have to be compiled."""
    return x


def _drawn(net: Net) -> Params:
    """Returns random parameters; those of the attention are its initial values with some noise.

    The compiler then leaves out the other initial values, whose random numbers would take it a second.
    """

    def of_attention(params: Params) -> Params:
        return params["layers"]["attention"].get("attention", {})

    def draw(path: tuple[object, ...], x: jax.ShapeDtypeStruct) -> np.ndarray:
        return np.full(x.shape, float("scale" in jax.tree_util.keystr(path)), x.dtype)

    params = noisy(jax.tree_util.tree_map_with_path(draw, net.shapes), 0.3)
    if of_attention(params):
        drawn = quick(lambda key: of_attention(net.init(key)))(jax.random.key(0))
        params["layers"]["attention"]["attention"] = noisy(drawn)
    return params


def _full(net: Net, params: Params, x: jax.Array) -> jax.Array:
    """Returns the states of whole sequences ``[B, K, T, D]``."""
    with placing(lambda x, names: x) if not placed() else contextlib.nullcontext():  # a loop compiles faster
        return net.apply(params, x.reshape(B * K, *x.shape[2:]), mask=masks.causal()).reshape(x.shape)


def _gradient(net: Net, params: Params, x: jax.Array) -> tuple[jax.Array, tuple[Params, jax.Array]]:
    """Returns the states, and the gradients of the mean of their squares."""

    def loss(params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = _full(net, params, x)
        return jnp.square(y).mean(), y

    gradients, y = jax.grad(loss, (0, 1), has_aux=True)(params, x)
    return y, gradients


def _steps(net: Net, params: Params, x: jax.Array, parents: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the states of the prefix, and of the last step."""
    stack = net.bind(params)
    blocks = stack.blocks(stack.unstacked())
    caches = tuple(block.start(rows=B, slots=K * T, dtype=x.dtype)[1] for block in blocks)

    def advance(state: State, x: jax.Array) -> tuple[State, jax.Array]:
        caches, lanes, position = state
        lanes = take_lanes(lanes, position, x.shape[2])
        positions = position[..., None] + jnp.arange(x.shape[2])[None, None]
        y, new = x.reshape(B, -1, x.shape[-1]), []
        for block, cache in zip(blocks, caches, strict=True):
            y, cache = block.step(y, cache, None, positions=positions, lanes=lanes)
            new.append(cache)
        return (tuple(new), lanes, position + x.shape[2]), y.reshape(x.shape)

    def step(state: State, inputs: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        (caches, lanes, position), (parent, x) = state, inputs
        lanes = lanes[jnp.arange(B)[:, None], parent]
        state, y = advance((caches, lanes, position), x[:, :, None])
        return state, y[:, :, 0]

    first = caches, first_lanes(B, K, T), jnp.zeros((B, K), jnp.int32)
    state, prefix = advance(first, x[:, :, :PREFIX])
    _, states = jax.lax.scan(step, state, (parents, jnp.moveaxis(x[:, :, PREFIX:], 2, 0)))
    return prefix, states[-1]
