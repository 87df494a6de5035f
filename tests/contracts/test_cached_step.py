"""Cached steps and prefilled prefixes equal the rows of the full pass, for all combinations of model parts."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import functional, masks, models, modules
from jaxformer.models import choices
from tests.models.small import SOURCE, SOURCES, B, Small, V
from tests.modules.small import drawn, int32, quick
from tests.selection import first

K, T = 2, 7
SIZES = {"d_model": 8, "num_heads": 4, "d_ff": 12, "max_positions": 9}
POSITIONS = {
    "none": None,
    "sinusoidal": choices.Sinusoidal(),
    "sinusoidal_halves": choices.Sinusoidal("halves"),
    "sinusoidal_fairseq": choices.Sinusoidal("fairseq", 2),
    "learned": choices.Learned(),
    "raw": choices.Raw(),
    "rotary": choices.Rotary(),
    "alibi": choices.Alibi(),
    "t5": choices.T5(6, 4),
    "relative_keys": choices.RelativeKeys(4),
    "transformer_xl": choices.TransformerXL(),
}
ARRANGEMENTS = {
    "post": {"norm_position": "post"},
    "pre": {"norm_position": "pre"},
    "sandwich": {"norm_position": "sandwich"},
    "deep": {"norm_position": "deep"},
    "post and final": {"norm_position": "post", "final_norm": True},
}
NORMS = {
    "layer": {},
    "rms": {"norm": choices.RMSNorm()},
    "layer_deviation": {"norm": choices.LayerNorm(form="deviation")},
}
HEADS = {
    "one key head for each": {},
    "grouped": {"num_kv_heads": 2},
    "one key head, free dim": {"num_kv_heads": 1, "head_dim": 6},
}
NETWORKS = {
    "plain": {},
    "gated": {"feed_forward": choices.Gated(bias=False), "activation": "silu"},
    "experts": {"feed_forward": choices.Experts(3, 2, capacity_factor=1.0)},
}
LOGITS = {
    "plain": {},
    "norm": {"qk_norm": True, "attention_bias": True},
    "sinks": {"attention_sinks": True},
    "capped": {"attention_soft_cap": 2.0, "attention_scale": 1.0, "output_bias": True, "output_scale": 0.5},
}
WINDOWS = (None, 1, 3, T)
KINDS = (models.LanguageModel, models.EncoderDecoder)
PARTS = (POSITIONS, ARRANGEMENTS, NORMS, HEADS, NETWORKS, LOGITS, WINDOWS, KINDS)


RECURRENT = {
    "none": {"attention": None, "cell": "rnn"},
    "additive": {"cell": "gru", "num_decoder_layers": 2, "tie_embeddings": "none"},
    "dot": {"attention": choices.Dot(), "cell": "lstm", "num_decoder_layers": 2},
    "general": {"attention": choices.General(), "cell": "gru", "tie_embeddings": "inputs"},
    "concat": {"attention": choices.Concat(d_attention=5), "cell": "lstm"},
}


def small(kind, options):
    if kind is models.Seq2Seq:
        return Small(models.Seq2SeqConfig(V, V, d_model=8, d_hidden=6, **options), kind)
    if kind is models.LanguageModel:
        return Small(models.LanguageModelConfig(V, **{"num_layers": 2} | SIZES | options), kind)
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    return Small(models.EncoderDecoderConfig(V, V, **layers | SIZES | options), kind)


def check_law(kind, options, attention=None):
    """Checks steps, a prefilled prefix with steps after it, and prefixes of different lengths against the full pass."""
    model = small(kind, options)
    if attention is not None:
        model.net = dataclasses.replace(model.net, model=functools.partial(kind, attention=attention))
        model.params, model.apply = drawn(model.net.shapes, 0.3), quick(model.net.apply)
    tokens = np.random.default_rng(0).integers(0, V, (B, K, T))
    lengths = np.array([[1, 3], [4, 2]])

    call = lambda method, *args, **sizes: model.call(getattr(kind, method), model.params, *args, **sizes)
    flat = int32(tokens.reshape(-1, T))
    if kind is models.LanguageModel:
        whole = model.apply(model.params, flat)
        context, empty = call("start", batch_size=B, beam_size=K, length=T)
    else:
        each = np.repeat(np.arange(B), K)
        whole = model.apply(model.params, jax.tree.map(lambda x: np.asarray(x)[each], SOURCES), flat)
        context, empty = call("start", call("encode", SOURCES), beam_size=K, length=T)

    def steps(state, columns):  # [B, K, n]
        rows = []
        for t in range(columns.shape[2]):
            row, state = call("step", int32(columns[:, :, t]), state, context)
            rows.append(row)
        return np.stack(rows, 2)

    def after(prefix, columns, **lengths):
        last, state = call("prefill", int32(prefix), empty, context, **lengths)
        return np.concatenate([np.asarray(last)[:, :, None], steps(state, columns)], 2)

    whole = np.asarray(whole).reshape(B, K, T, V)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4 * np.abs(whole).std())
    near(steps(empty, tokens), whole)
    near(after(tokens[:, :, :4], tokens[:, :, 4:], lengths=int32(np.full((B, K), 4))), whole[:, :, 3:])
    padded = np.where(np.arange(4) < lengths[..., None], tokens[:, :, :4], V - 1)
    columns = lengths[..., None] + np.arange(2)
    ragged = after(padded, np.take_along_axis(tokens, columns, 2), lengths=int32(lengths))
    near(ragged, np.take_along_axis(whole, (lengths[..., None] - 1 + np.arange(3))[..., None], 2))


def combined(positions, arrangement, norm, heads, network, logits, window):
    return (
        {"positions": POSITIONS[positions], "attention_window": window}
        | ARRANGEMENTS[arrangement]
        | NORMS[norm]
        | HEADS[heads]
        | NETWORKS[network]
        | LOGITS[logits]
    )


def diagonal():
    """A few combinations in which every value of every part occurs."""
    columns = [list(part) for part in PARTS]
    return [tuple(column[i % len(column)] for column in columns) for i in range(len(POSITIONS))]


def covering():
    """Combinations in which every pair of values of two parts occurs, found greedily."""
    columns = [list(part) for part in PARTS]
    places = list(itertools.combinations(range(len(columns)), 2))
    missing = {(i, j, a, b) for i, j in places for a in columns[i] for b in columns[j]}
    rng, chosen = np.random.default_rng(0), []
    while missing:
        i, j, a, b = min(missing, key=str)
        best = None
        for _ in range(50):
            case = [column[rng.integers(len(column))] for column in columns]
            case[i], case[j] = a, b
            met = {(i, j, case[i], case[j]) for i, j in places} & missing
            best = max(best or (0, None, None), (len(met), case, met), key=lambda found: found[0])
        chosen.append(tuple(best[1]))
        missing -= best[2]
    return chosen


@pytest.mark.parametrize("case", first(diagonal(), diagonal()[6]), ids=lambda case: case[0])
def test_steps_and_prefixes_equal_the_full_pass(case):
    """With one layer, because each layer has its own cache; `test_pairs_of_parts` has two."""
    *parts, kind = case
    layers = {"num_layers" if kind is models.LanguageModel else "num_decoder_layers": 1}
    check_law(kind, combined(*parts) | layers)


@pytest.mark.parametrize("attention", first(RECURRENT, "additive"))
def test_recurrent_steps_and_prefixes_equal_the_full_pass(attention):
    """A fixed context and each kind of attention, with input feeding if that is an option."""
    settings = RECURRENT[attention]
    check_law(models.Seq2Seq, settings)
    if isinstance(luong := settings.get("attention"), choices.Dot):
        check_law(models.Seq2Seq, settings | {"attention": dataclasses.replace(luong, input_feeding=True)})


@pytest.mark.full
@pytest.mark.parametrize("case", covering(), ids=lambda case: ", ".join(map(str, case[:-1])) + f", {case[-1].__name__}")
def test_pairs_of_parts(case):
    *parts, kind = case
    check_law(kind, combined(*parts))


@pytest.mark.full
@pytest.mark.parametrize("pairs", ["halves", "neighbors"])
@pytest.mark.parametrize(
    "scaling",
    [
        choices.LinearScaling(4.0),
        choices.NTKScaling(4.0),
        choices.YaRNScaling(4.0, trained_length=3),
        choices.Llama3Scaling(4.0, trained_length=3),
    ],
)
def test_scaled_rotary_positions(scaling, pairs):
    check_law(models.LanguageModel, {"positions": choices.Rotary(pairs=pairs, scaling=scaling), "head_dim": 4})


def simple(query, key, value, *, mask=None, bias=None):
    """The five lines that a user writes: no dropout, no scale, no positions."""
    logits = jnp.einsum("btnh,bsnh->bnts", query, key) * query.shape[-1] ** -0.5
    logits = logits if bias is None else logits + bias.tile(None, *map(jnp.arange, logits.shape[2:]))
    if mask is not None:
        logits = jnp.where(masks.as_mask(mask).dense(*logits.shape[2:]), logits, -1e9)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(logits), value)


@pytest.mark.parametrize("positions", first(["none", "rotary", "learned", "alibi", "t5"], "rotary"))
def test_an_undecorated_function_decodes(positions):
    """A layer computes masks and biases at positions before it calls attention."""
    check_law(models.LanguageModel, {"positions": POSITIONS[positions], "attention_dropout": 0.0}, attention=simple)


class Tempered(nnx.Module):
    """A factor of each head that is trained, and a constant that differs by layer."""

    def __init__(self, rngs, layer):
        self.factor = nnx.Param(jax.random.normal(rngs.params(), (4,)))
        self.temperature = nnx.Variable(jnp.float32(1 + 2 * layer))

    def __call__(self, query, key, value, **options):
        factor = (self.factor[...] / self.temperature[...])[None, None, :, None]
        return functional.attention(query * factor, key, value, **options)


@pytest.mark.parametrize("kind", first(KINDS, models.LanguageModel))
def test_modules_of_each_layer_decode(kind):
    check_law(kind, {"positions": choices.Rotary()}, attention=modules.per_layer(Tempered))


@pytest.mark.parametrize("kind", first(KINDS, models.LanguageModel))
def test_a_prefilled_state_crosses_jit(kind):
    """A prefilled state is an argument and a result of compiled functions."""
    model = small(kind, {"positions": choices.Rotary()})
    memory = None if kind is models.LanguageModel else model.call(kind.encode, model.params, SOURCE)
    sizes = {"beam_size": K, "length": T} | ({"batch_size": B} if memory is None else {})
    given = [] if memory is None else [memory]
    context, state = model.call(kind.start, model.params, *given, **sizes)
    _, after = model.call(kind.prefill, model.params, int32(np.ones((B, K, 3))), state, context)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    np.testing.assert_array_equal(after.position, np.full((B, K), 3))
