"""Exported programs with symbolic sizes equal `jax.jit`, also after serialization."""

import dataclasses
import functools
import importlib.util

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax import export as jax_export

from jaxformer import decoding, functional, models, pure
from jaxformer.data.batch import Batch
from jaxformer.errors import ConfigError
from jaxformer.interop import export
from jaxformer.models import choices
from tests.models import small
from tests.modules.small import quick
from tests.selection import first

LENGTH, BEAM = 6, 2
TOKENS = {"bos": 1, "eos": 2}


@functools.cache
def shallow():
    return small.Small(dataclasses.replace(small.CONFIGS["post"], num_encoder_layers=1, num_decoder_layers=1))


@pytest.fixture(scope="module", autouse=True)
def _symbols_are_sizes():
    """The type checks of the tests do not accept a symbol as an integer."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def sized(*constraints):
    """A source and its mask, of symbolic batch size and length."""
    size = jax_export.symbolic_shape("b, s", constraints=constraints)
    return jax.ShapeDtypeStruct(size, jnp.int32), jax.ShapeDtypeStruct(size, bool)


def drawn(batch, length):
    source = np.random.default_rng(batch).integers(3, small.V, (batch, length))
    return jnp.asarray(source, jnp.int32), jnp.arange(length)[None] < jnp.arange(length, length - batch, -1)[:, None]


def encode(name):
    return lambda params, source, valid: small.model(name).net.bind(params).encode(functional.Tokens(source, valid))


def everything(params, source, valid):
    """The memory, a step and the states around it, and two searches."""
    model = shallow().net.bind(params)
    memory = model.encode(functional.Tokens(source, valid))
    context, state = model.start(memory, beam_size=BEAM, length=LENGTH)
    step = decoding.ContextStep(model.step, context)
    stepped = step(jnp.broadcast_to(source[:, :1], state.shape), state)
    limits = decoding.Limits(max_length=LENGTH, **TOKENS)
    beams = decoding.beam_search(step, state, limits, beam_size=BEAM)
    return memory, context, stepped, beams, decoding.greedy(step, state, limits)


def check(program, function, params, *inputs):
    """The program and the function give the same trees, to the bit."""
    chex.assert_trees_all_equal(quick(program.call)(params, *inputs), quick(function)(params, *inputs))


@pytest.fixture(scope="module")
def program():
    return jax_export.export(jax.jit(everything))(shallow().net.shapes, *sized("s <= 20"))


@pytest.mark.full
@pytest.mark.parametrize("size", first([(1, 5), (3, 19)], (3, 19)), ids=str)
def test_one_program_for_every_batch_size_and_length(program, size):
    """Encoder, cached step, beam search and greedy search, to the bit."""
    check(program, everything, shallow().params, *drawn(*size))


@pytest.mark.full
def test_learned_positions():
    """The table has 7 rows, which the constraint states; the program serves several platforms."""
    export_for = jax_export.export(jax.jit(encode("pre")), platforms=["cpu", "cuda", "tpu"])
    program = export_for(small.model("pre").net.shapes, *sized("s <= 7"))
    for size in ((1, 4), (2, 7)):
        check(program, encode("pre"), small.model("pre").params, *drawn(*size))


@pytest.mark.full
def test_a_length_without_a_bound():
    """The program then computes positions instead of the compiler, with other rounding."""
    program = jax_export.export(jax.jit(encode("post")))(small.model("post").net.shapes, *sized())
    inputs = small.model("post").params, *drawn(2, 9)
    got, expected = quick(program.call)(*inputs), quick(encode("post"))(*inputs)
    np.testing.assert_allclose(got.states, expected.states, atol=1e-5)


@pytest.mark.full
def test_programs_as_bytes(program):
    """The same program with the same trees: states and results of the library, batches, states of a search."""
    pytest.importorskip("flatbuffers")
    ids = jax.ShapeDtypeStruct((2, 3), jnp.int32)
    batch = Batch(functional.Tokens(ids, ids), functional.Tokens(ids, ids, right_padded=True), ids)
    wrapped = jax_export.export(jax.jit(lambda batch: decoding.TreeState(batch)))(batch)
    for original in (program, wrapped):
        read = export.deserialize(export.serialize(original))
        assert (read.in_tree, read.out_tree) == (original.in_tree, original.out_tree)
        assert str(read.in_avals) == str(original.in_avals)
        assert read.mlir_module_serialized == original.mlir_module_serialized


def test_states_of_every_search_as_bytes():
    """Of recurrent models, linear attention, ensembles and coverage."""
    pytest.importorskip("flatbuffers")
    config = models.Seq2SeqConfig(
        source_vocab_size=8, target_vocab_size=8, d_model=4, attention=choices.Dot(input_feeding=True)
    )
    net = pure(models.Seq2Seq, config)

    def begun(params, source, valid):
        model = net.bind(params)
        context, state = model.start(model.encode(functional.Tokens(source, valid)), beam_size=BEAM, length=LENGTH)
        covered = decoding.CoverageState.start(state, valid, penalty=0.5)
        return context, covered, decoding.EnsembleState((state, state)), decoding.StackedState(state)

    linear = functional.linear_attention_start
    starts = (
        jax_export.export(jax.jit(begun))(net.shapes, *sized("s <= 20")),
        jax_export.export(jax.jit(lambda: linear(1, 2, features=4, value_dim=3)))(),
    )
    for original in starts:
        assert export.deserialize(export.serialize(original)).out_tree == original.out_tree


def test_the_missing_package_is_named(monkeypatch, program):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call in (lambda: export.serialize(program), lambda: export.deserialize(b"")):
        with pytest.raises(ConfigError, match=r"the package flatbuffers: pip install 'jaxformer\[export\]'"):
            call()
