"""Training steps that know nothing of jaxformer, to plan: plain JAX, Flax NNX and Equinox, the same network in each.

    jaxformer plan --function examples/plan_any.py:plain_jax --topology v5p:2x2x2 --mesh data=8
    jaxformer plan --function examples/plan_any.py:flax_nnx --topology h100:1x8 --mesh data=2,fsdp=4
    jaxformer plan --function examples/plan_any.py:equinox --topology v5e:2x4 --mesh data=8     # pip install equinox

Nothing is computed, and no array is made: shapes are enough.
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec

from jaxformer.planning.program import Program

ROWS, WIDTH, INNER = 4096, 1024, 4096
OPTIMIZER = optax.adam(1e-3)


def plain_jax(mesh: Mesh) -> Program:
    """A step of plain functions over a dict of arrays."""

    def init():
        params = {"in": jnp.zeros((WIDTH, INNER)), "out": jnp.zeros((INNER, WIDTH))}
        return params, OPTIMIZER.init(params)

    return _program(lambda params, x: jax.nn.relu(x @ params["in"]) @ params["out"], init, mesh)


def flax_nnx(mesh: Mesh) -> Program:
    """A step of a Flax NNX module, split into its graph and its state."""
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.inner, self.outer = nnx.Linear(WIDTH, INNER, rngs=rngs), nnx.Linear(INNER, WIDTH, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.outer(jax.nn.relu(self.inner(x)))

    graph, _ = nnx.split(nnx.eval_shape(lambda: Network(nnx.Rngs(0))))

    def init():
        params = nnx.split(Network(nnx.Rngs(0)))[1]
        return params, OPTIMIZER.init(params)

    return _program(lambda params, x: nnx.merge(graph, params)(x), init, mesh)


def equinox(mesh: Mesh) -> Program:
    """A step of an Equinox module, which is a tree itself."""
    import equinox as eqx  # pyright: ignore[reportMissingImports]

    make = lambda: eqx.nn.MLP(WIDTH, WIDTH, INNER, depth=1, key=jax.random.key(0))
    static = eqx.partition(eqx.filter_eval_shape(make), lambda x: isinstance(x, jax.ShapeDtypeStruct))[1]

    def init():
        params = eqx.filter(make(), eqx.is_array)
        return params, OPTIMIZER.init(params)

    return _program(lambda params, x: jax.vmap(eqx.combine(params, static))(x), init, mesh)


def _program(apply, init, mesh: Mesh) -> Program:
    """A step of Adam, with the batch along all axes of the mesh and, if there is one, parameters along "fsdp"."""

    def step(state, batch):
        def loss(params):
            return jnp.mean((apply(params, batch[0]) - batch[1]) ** 2)

        params, moments = state
        updates, moments = OPTIMIZER.update(jax.grad(loss)(params), moments)
        return optax.apply_updates(params, updates), moments

    rows = PartitionSpec(tuple(mesh.axis_names))
    batch = (jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),) * 2
    state = jax.eval_shape(init)
    cut = lambda x: PartitionSpec("fsdp") if "fsdp" in mesh.shape and x.ndim > 1 else PartitionSpec()
    return Program(step, (state, batch), mesh, (jax.tree.map(cut, state), rows), donate=(0,))
