"""A stack of identical blocks: parameters are stacked along a leading dimension and applied by one ``lax.scan``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import Primitive
from jaxtyping import Array, Float

from jaxformer import targets
from jaxformer.axes import placed
from jaxformer.functional.attention.base import RESIDUAL
from jaxformer.modules.captured import Intermediates
from jaxformer.modules.layers import normalized
from jaxformer.modules.per_layer import building
from jaxformer.modules.pure import ModelT_co, Params, split_params

T = TypeVar("T")

UNROLLED = {"cpu": 4, "gpu": 12}
"""The largest number of layers whose loop is unrolled, on a single CPU or GPU and without `remat`.

XLA then keeps what the backward pass would recompute, and stacks no results. On a CPU, a training step of 4 or 4 + 4
layers takes 9 to 14 % less time, 1.6 to 1.9 times the memory, and 40 to 50 % more time to compile. On an H200, a step
of 6 + 6 layers (D = 1024, 16,384 tokens) takes 57 ms instead of 67, 12.8 GB instead of 10.6, and 25 s to compile
instead of 16. TPUs have not been measured, and on a mesh the loop lets XLA prefetch the parameters of the next layer.
"""

FUSED = ("dot_product_attention_fwd_wrapper",)
"""The primitives of attention kernels whose results have no checkpoint name: cuDNN's in `jax.nn`."""

_products_or_named = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable, jax.checkpoint_policies.save_only_these_names(RESIDUAL)
)


def _is_kept(primitive: Primitive, *args: object, **params: object) -> bool:
    """Decides, as a policy of `jax.checkpoint`, whether a result is saved for the backward pass or recomputed."""
    return primitive.name in FUSED or _products_or_named(primitive, *args, **params)


def is_unrolled(num_layers: int, *, remat: bool) -> bool:
    """Returns True if the loop over this many layers is unrolled on the devices that a program is traced for.

    >>> is_unrolled(2, remat=True)
    False
    """
    few = 0 if placed() or remat else UNROLLED.get(targets.devices()[0].platform, 0)
    return num_layers <= few


def _named(block: T) -> T:
    """Returns a block whose parameters all have `axes`, so that another dimension, once stacked, is that of layers."""
    unnamed = lambda x: isinstance(x, nnx.Param) and x.get_metadata().get("axes") is None
    if any(unnamed(x) for _, x in nnx.iter_graph(block)):
        block = nnx.clone(block)  # a module that a user gives to all blocks stays as it is
        for _, x in nnx.iter_graph(block):
            if unnamed(x):
                x.set_metadata(axes=(None,) * x[...].ndim)
    return block


class Stack(nnx.Module, Generic[ModelT_co]):
    """`num_layers` blocks made by one call of ``make_block(rngs)``, so they differ only in the values of arrays.

    These are parameters and, by `modules.per_layer`, constants of the attention of each layer.

    The block is traced once, so compile time does not grow with `num_layers` beyond `UNROLLED`. The backward pass
    recomputes the operations between products with parameters, except fused attention, and the products of experts;
    with `remat`, it recomputes each block from its input.

    >>> from jaxformer import masks, modules
    >>> make_block = lambda rngs: modules.Block(
    ...     modules.SelfAttention(8, num_heads=2, rngs=rngs),
    ...     modules.FeedForward(8, rngs=rngs),
    ...     norm=lambda: modules.LayerNorm(8),
    ... )
    >>> stack = Stack(make_block, num_layers=3, norm=modules.LayerNorm(8), rngs=nnx.Rngs(0))
    >>> stack(jax.numpy.ones((1, 5, 8)), mask=masks.causal()).shape
    (1, 5, 8)
    """

    def __init__(
        self,
        make_block: Callable[[nnx.Rngs], ModelT_co],
        num_layers: int,
        *,
        norm: Callable[[Array], Array] | None = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        """Builds a stack.

        Args:
          norm: a module that is applied to the result, such as ``LayerNorm(dim)``. Pre-norm blocks, which
            `Block` has by default, need one, because they add to x and never normalize it. To a `models.Encoder` or
            `models.Decoder`, give the norm itself.
          remat: recompute each block in the backward pass.
        """
        if num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {num_layers}")
        graphs: list[nnx.GraphDef[ModelT_co]] = []

        keys = jax.random.split(rngs.params(), num_layers)

        def build(key: jax.Array, layer: jax.Array) -> tuple[Params, ...]:
            with building(keys, layer):
                graph, *states = split_params(_named(make_block(nnx.Rngs(params=key))))
            graphs.append(graph)
            return tuple(map(nnx.to_pure_dict, states))

        stacked = jax.vmap(build)(keys, jnp.arange(num_layers))
        self.layers = nnx.merge(graphs[0], *stacked)
        self.num_layers = num_layers
        self.norm = norm
        self.remat = remat

    def __call__(
        self, x: Float[Array, "B T D"], *args: object, key: jax.Array | None = None, **shared: Any
    ) -> Float[Array, "B T D"]:
        """Applies the blocks one after another; all receive `args` and `shared`, and `key` is split among them.

        Raises:
          TypeError: `capture` is given, which `run` takes.
        """
        if "capture" in shared:
            raise TypeError("a stack returns only its result; run(..., capture=...) returns what is captured, too")
        return self.run(x, *args, key=key, **shared)[0]

    def run(
        self,
        x: Float[Array, "B T D"],
        *args: object,
        key: jax.Array | None = None,
        capture: Collection[str] = (),
        **shared: Any,
    ) -> tuple[Float[Array, "B T D"], Intermediates]:
        """Returns the result of a call, and the intermediates named in `capture` ("self", "cross", "experts").

        Arrays of intermediates have a leading dimension of layers.
        """
        graph, stacked = nnx.split(self.layers)

        def body(x: Array, layer: tuple[Params, jax.Array | None]) -> tuple[Array, Intermediates]:
            params, layer_key = layer
            intermediates: Intermediates | None = {} if capture else None
            x = nnx.merge(graph, params)(x, *args, key=layer_key, intermediates=intermediates, **shared)
            return x, {name: value for name, value in (intermediates or {}).items() if name in capture}

        keys = None if key is None else jax.random.split(key, self.num_layers)
        # Only products with parameters and fused attention are saved for the backward pass: recomputing the operations
        # between them is faster than reading their results (by 10 % on a CPU). XLA cannot merge scan iterations, so
        # prevent_cse is not needed; in an unrolled loop it may keep what it would recompute, which is faster still.
        policy = None if self.remat else _is_kept
        body = jax.checkpoint(body, prevent_cse=False, policy=policy)
        unroll = is_unrolled(self.num_layers, remat=self.remat)
        x, intermediates = jax.lax.scan(body, x, (nnx.to_pure_dict(stacked), keys), unroll=unroll)
        return normalized(x, self.norm), intermediates

    def unstacked(self) -> tuple[Params, ...]:
        """Returns the parameters of each block, for loops that need them before they start (see `blocks`)."""
        stacked = nnx.to_pure_dict(nnx.state(self.layers, nnx.Param))
        return tuple(jax.tree.map(operator.itemgetter(i), stacked) for i in range(self.num_layers))

    def blocks(self, layers: Sequence[Params]) -> tuple[ModelT_co, ...]:
        """Returns the blocks with these parameters, and their constants."""
        graph, _, constants = split_params(self.layers)
        constants = nnx.to_pure_dict(constants)
        pick = lambda i: jax.tree.map(lambda x: x[i, ...], constants)  # arrays of NumPy stay arrays
        return tuple(nnx.merge(graph, params, pick(i)) for i, params in enumerate(layers))
