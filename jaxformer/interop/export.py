"""Programs as bytes: an exported function of a model that runs without this library (``jax.export``).

One artifact serves many batch sizes and lengths, if they are symbolic, and several platforms::

    batch, length = jax.export.symbolic_shape("b, s", constraints=["s <= 512"])
    source = jax.ShapeDtypeStruct((batch, length), jnp.int32)

    def search(params, source):  # the parameters are an argument, not part of the artifact
        model = net.bind(params)
        context, state = model.start(model.encode(source), beam_size=4, length=64)
        limits = decoding.Limits(max_length=64, bos=1, eos=2)
        return decoding.beam_search(decoding.ContextStep(model.step, context), state, limits, beam_size=4)

    program = jax.export.export(jax.jit(search), platforms=["cpu", "cuda", "tpu"])(net.shapes, source)
    data = serialize(program)
    hypotheses = deserialize(data).call(params, tokens)

Results are bitwise equal to those of ``jax.jit``. The constraint matters: with it, sinusoidal positions are constants,
as under ``jax.jit``; without it, the program computes them, with other rounding. Attention over symbolic dimensions is
"reference", which runs on any device. With fixed shapes, lower under `jaxformer.targets.compiling_for`, or the program
may hold a kernel of the exporting machine.

JAX guarantees that it can read an artifact for six months only, so keep the parameters and the configuration.

To read the results of `deserialize` in a program without this library, export a function of tuples and dicts.
"""

from __future__ import annotations

import json

from jax import export

from jaxformer import lazy
from jaxformer.data.batch import Batch
from jaxformer.decoding.api import Hypotheses, TreeState
from jaxformer.decoding.ensembles import EnsembleState, StackedState
from jaxformer.decoding.penalties import CoverageState
from jaxformer.functional.attention.linear import LinearState
from jaxformer.functional.cache import KeyValueCache
from jaxformer.functional.recurrent import RecurrentState
from jaxformer.functional.tokens import Tokens
from jaxformer.models.decoding_model import Context, DecoderState, StepWeights
from jaxformer.models.encoder import Memory
from jaxformer.models.recurrent_decoder import RecurrentContext, RecurrentDecoderState
from jaxformer.modules.attention import KeyValue

_TUPLES = (KeyValue, KeyValueCache, Context, DecoderState, StepWeights)
_RECURRENT_TUPLES = (LinearState, RecurrentContext, RecurrentDecoderState, RecurrentState)
for _type in (*_TUPLES, *_RECURRENT_TUPLES):
    export.register_namedtuple_serialization(_type, serialized_name=f"jaxformer.{_type.__name__}")
for _type in (Batch, CoverageState, EnsembleState, Hypotheses, Memory, StackedState, Tokens, TreeState):
    export.register_pytree_node_serialization(
        _type,
        serialized_name=f"jaxformer.{_type.__name__}",
        serialize_auxdata=lambda static: json.dumps(static).encode(),
        deserialize_auxdata=lambda data: tuple(json.loads(data)),
    )


def serialize(program: export.Exported) -> bytes:
    """Returns an exported program as bytes; arguments and results may be the states and results of this library.

    Raises:
      ConfigError: the package flatbuffers, of the extra `export`, is not installed.
    """
    lazy.require("flatbuffers", what="exported programs need", extra="export")
    return bytes(program.serialize())


def deserialize(data: bytes) -> export.Exported:
    """Returns the program of `serialize`; its method `call` can be used inside ``jax.jit``.

    Raises:
      ConfigError: the package flatbuffers, of the extra `export`, is not installed.
    """
    lazy.require("flatbuffers", what="exported programs need", extra="export")
    return export.deserialize(bytearray(data))
