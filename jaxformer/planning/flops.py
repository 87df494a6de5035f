"""The floating-point operations (FLOPs) of a model, counted in the graph of its forward pass.

A multiply-add of a matrix product counts as 2 operations; softmax, norms, activations and biases, a few percent, are
left out, as is usual for *model* FLOPs. A backward pass costs twice as much as a forward pass, so a training step of
any model takes 3 times the FLOPs of its forward pass. What a backward pass computes again comes in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from jaxformer import axes, functional, masks, targets
from jaxformer.masks import Mask
from jaxformer.modules.stack import is_unrolled
from jaxformer.planning.graph import array_of, flops, inner, times


class _Accelerator(NamedTuple):
    platform: str = "counted"
    device_kind: str = ""


def attention(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask | jax.Array | None = None, **_: object):
    """Computes no attention, but an array of the same shape by the products that count; a model is traced with it.

    Each query counts as many keys as the one that sees most: W with a window of W tokens, as in kernels that skip the
    others, and all of them under the causal mask and for padding. The products of queries with position vectors (Shaw,
    Transformer-XL), which are in a bias, are left out.

    >>> x = jnp.ones((1, 64, 2, 8))
    >>> [flops(forward(attention, x, x, x, mask=mask)) for mask in (masks.causal(), masks.window(7))]
    [262144, 32768]
    """
    num_keys = key.shape[1]
    if mask is not None:
        ranges = [masks.as_mask(mask).key_range(t, t + 1) for t in range(query.shape[1])]
        num_keys = max((min(stop, num_keys) - start for start, stop in ranges), default=0)
    num_keys = max(num_keys, 0)
    return functional.attention(query, key[:, :num_keys], value[:, :num_keys], implementation="reference")


def forward(function: Callable[..., object], *args: object, **kwargs: object) -> Jaxpr:
    """Returns the graph of a forward pass, a function of arrays or of their shapes, on a single accelerator.

    `graph.flops` counts its products. Attention counts if the model was made with `attention`; blockwise attention does
    not, because its loops run until a condition holds.

    >>> from jaxformer import models, pure
    >>> config = models.LanguageModelConfig(100, d_model=16, num_heads=2, d_ff=32, num_layers=3)
    >>> net, tokens = pure(models.LanguageModel, config, attention=attention), jnp.ones((1, 5), int)
    >>> flops(forward(net.apply, net.shapes, tokens)) == 5 * (3 * (8 * 16**2 + 4 * 16 * 32 + 4 * 5 * 16) + 2 * 16 * 100)
    True
    """
    # There, a loss is computed in a few large chunks, and a table that may be sharded is not padded.
    with axes.placing(lambda x, names: x), targets.compiling_for([_Accelerator()]):
        return jax.make_jaxpr(function)(*args, **kwargs).jaxpr


def repeated(graph: Jaxpr, layers: int = 1) -> int:
    """Returns the operations of a forward pass that its backward pass repeats, on the devices of `targets.devices`.

    `modules.Stack` recomputes the two products of attention and all products of experts or, with `remat`, each full
    block, except the last product of a pre-norm block without experts, which no gradient needs. Both products of
    attention are counted for fused attention too, although its results are saved and its backward pass recomputes only
    one of them. A few layers without `remat` on one device recompute nothing: see `modules.stack.UNROLLED`.

    Args:
      graph: the result of `forward`.
      layers: the number of iterations of the loop around it.
    """
    total = 0
    for equation in graph.eqns:
        if "prevent_cse" in equation.params:  # jax.checkpoint
            kept = is_unrolled(layers, remat=equation.params["policy"] is None)
            if not kept:
                total += _recomputed(equation)
        else:
            count = times(equation)
            total += count * sum(repeated(part, count) for part in inner(equation))
    return total


def _recomputed(equation: JaxprEqn) -> int:
    """Returns the products that the gradient of a checkpointed function has beyond those without the checkpoint."""
    params = equation.params
    function = jaxpr_as_fun(ClosedJaxpr(params["jaxpr"], ()))
    checkpointed = jax.checkpoint(function, policy=params["policy"], prevent_cse=params["prevent_cse"])
    args = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in map(array_of, equation.invars)]
    learned = [i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]

    def count(run: Callable[..., Sequence[jax.Array]]) -> int:
        total = lambda *args: sum(y.sum() for y in run(*args) if jnp.issubdtype(y.dtype, jnp.floating))
        return flops(jax.make_jaxpr(jax.grad(total, learned))(*args).jaxpr)

    return count(checkpointed) - count(function)
