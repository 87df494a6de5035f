"""Helpers of the module tests: a module as functions, with parameters that are nowhere trivially zero or one.

Numbers come from NumPy by ``jax.device_put``: each shape that ``jax.random`` draws costs a compilation, and so does
each that ``jnp.asarray`` makes.
"""

import functools
import zlib

import jax
import numpy as np

from jaxformer import functional, pure

# These programs run once, for microseconds: half the time of a test would go into making them fast.
quick = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


class Built:
    """``make(rngs)`` as pure functions; `apply` and `call` are jitted."""

    def __init__(self, make):
        self.net = pure(lambda config, rngs: make(rngs), None)
        self.shapes, self.init = self.net.shapes, quick(self.net.init)
        static = ("capture", "length", "dtype")
        self.apply = quick(self.net.apply, static_argnames=static)
        self.call = quick(self._call, static_argnums=0, static_argnames=static)

    def _call(self, method, params, *args, **kwargs):
        """A method of the module's class, with these parameters."""
        return method(self.net.bind(params), *args, **kwargs)


def built(make):
    """The module and drawn parameters."""
    module = Built(make)
    return module, drawn(module.shapes)


def drawn(shapes, deviation=0.4):
    """Random parameters of these shapes, around 1 for scales."""

    def draw(path, shape):
        name = jax.tree_util.keystr(path)
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape.shape) * deviation
        return jax.device_put((noise + ("scale" in name)).astype(shape.dtype))

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def normal(*shape, seed=0):
    return jax.device_put(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def count(params):
    return sum(x.size for x in jax.tree.leaves(params))


def int32(values):
    return jax.device_put(np.asarray(values, np.int32))


def placed(attention, query_positions=None, key_positions=None):
    """Attention whose queries and keys are at these positions, as a layer computes it."""

    def attend(query, key, value, *, mask=None, bias=None, **options):
        places = {"query_positions": query_positions, "key_positions": key_positions}
        mask, bias = functional.at_positions(query, key, mask=mask, bias=bias, **places)
        return attention(query, key, value, mask=mask, bias=bias, **options)

    return attend
