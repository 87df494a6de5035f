"""Every cell of the table in ``docs/derivatives.md``: derivatives that are right, and those that are refused."""

import dataclasses
import functools
import operator
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, models, pure, sharding
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.attention.vendor import splash
from tests.models import small
from tests.modules.small import drawn, normal, quick
from tests.selection import first

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "derivatives.md").read_text(encoding="utf-8")
HEADER, _, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")
]
TABLE = {name: dict(zip(HEADER[1:], cells, strict=True)) for name, *cells in ROWS}


def vdot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


REVERSE_TWICE = "reverse over reverse"
DERIVATIVES = {
    "gradient": lambda f, x, t: jax.grad(f)(x),
    "jvp": lambda f, x, t: jax.jvp(f, (x,), (t,))[1],
    REVERSE_TWICE: lambda f, x, t: jax.grad(lambda x: vdot(jax.grad(f)(x), t))(x),
    "forward over reverse": lambda f, x, t: jax.jvp(jax.grad(f), (x,), (t,))[1],
}

HEADS, TOKENS = normal(1, 4, 2, 4), normal(4, 6)
LABELS = jnp.asarray([[0, 1, 2, 3]], jnp.int32)
KEY = jax.random.key(0)


def curved(function):
    """A scalar with second derivatives, of a function's result."""
    return lambda x: sum(jnp.sin(y).sum() for y in jax.tree.leaves(function(x)))


def attends(attend=functional.attention, **options):
    """Queries, keys and values from one array; the first key is padding, so the first query sees none."""
    mask = masks.causal() & masks.padding(np.array([[False, True, True, True]]))
    return lambda x: attend(x, x[:, :, ::-1], 2 * x, mask=mask, **options)


def interpreted(query, key, value, **options):
    request = api.differentiable(make_request(query, key, value, **options), "splash")
    return splash.attention(request, interpret=True)


def ring(*arrays, **options):
    return sharding.ring_attention(sharding.mesh("context=2", jax.devices()[:2]), "context")(*arrays, **options)


def looked_up(table):
    copies = sharding.table_copies(table, rows=1, dtype=jnp.dtype("float32"))
    return sharding.lookup(copies, LABELS)


EXPERTS = functional.Experts(normal(3, 6, 4), normal(3, 4, 6))


def mixed(x, **options):
    return functional.mixture_of_experts(x, functional.route(x[:, :3], 2), EXPERTS, activation=jnp.tanh, **options)


def biased(make):
    """Attention with a bias that holds a learned table."""
    return lambda x: functional.attention(x, x, x, bias=make(x), implementation="reference")


def transformer_xl(x):
    query, bias = functional.transformer_xl(x, x[0], content=x[0, 0], position=x[0, 1])
    return functional.attention(query, x, x, bias=bias, implementation="reference")


def loss_of(network, config, *inputs, **options):
    attention = functools.partial(functional.attention, implementation="reference")
    net = pure(network, config, attention=attention)
    return lambda params: net.bind(params).loss(*inputs, labels=small.TARGET, **options)[0], drawn(net.shapes, 0.3)


def encoder_decoder():
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = dataclasses.replace(small.CONFIGS["post"], activation="gelu", **layers)
    inputs, loss = (functional.Tokens(small.SOURCE, small.SOURCE_VALID), small.TARGET), functional.CrossEntropy(0.1)
    return loss_of(models.EncoderDecoder, config, *inputs, loss=loss)


def language_model():
    config = dataclasses.replace(small.LANGUAGE_CONFIGS["untied"], activation="gelu", dropout=0.1)
    return loss_of(models.LanguageModel, config, small.TARGET, key=KEY)


def seq2seq():
    config = models.Seq2SeqConfig(small.V, small.V, d_model=8, d_hidden=6, cell="gru")
    net = pure(models.Seq2Seq, config)
    loss = lambda params: net.bind(params).loss(small.SOURCE, small.TARGET, labels=small.TARGET)[0]
    return loss, drawn(net.shapes, 0.3)


def recurrent(x):
    weights = functional.RecurrentWeights(x[:3, None, :3], x[1:, None, 3:], x[:1, :3], x[1:2, :3])
    return functional.recurrent(functional.rnn_cell, x[None, :, :3], weights)


def recurrent_step(x):
    weights = functional.RecurrentWeights(x[:3, None, :3], x[1:, None, 3:], x[:1, :3], x[1:2, :3])
    state = functional.RecurrentState(x[:2, 3:])
    return functional.recurrent_step(functional.rnn_cell, x[2:, :3], state, weights)


def two_passes(loss):
    def total(x):
        rows = functional.duplicate_rows(x[None]) * jnp.array([[[1.0]], [[2.0]]])
        return functional.linear_loss(rows, x * x, functional.duplicate_rows(LABELS), loss, chunk=2)

    return total


ones = lambda x: jnp.ones(x.shape[-1])
FUNCTIONS = {
    '`F.attention(implementation="reference")`': (attends(implementation="reference"), HEADS),
    '`F.attention(implementation="xla")`': (attends(implementation="xla"), HEADS),
    '`F.attention(implementation="blockwise")`': (attends(implementation="blockwise"), HEADS),
    '`F.attention(implementation="splash")`': (attends(interpreted), HEADS),
    "`sharding.ring_attention`": (attends(ring), HEADS),
    "`F.attention(scale=...)`, a learned scale": (
        lambda x: attends(implementation="reference", scale=x[0, 0, 0, 0])(x),
        HEADS,
    ),
    "`F.masked_softmax`": (lambda x: functional.masked_softmax(x, jnp.tri(4, 6, -1, dtype=bool)), TOKENS),
    "`F.additive_attention`": (
        lambda x: functional.additive_attention(x[None], x[None], x[None], w_query=x.T, w_key=x.T, v=x[:, 0]),
        TOKENS,
    ),
    "`F.linear_attention`": (lambda x: functional.linear_attention(x, x, x, causal=True, chunk=2), HEADS),
    "`F.attention_weights`": (lambda x: functional.attention_weights(x, x, rows=[1], mask=masks.causal()), HEADS),
    "`F.attention_entropy`": (lambda x: functional.attention_entropy(x, x, mask=masks.causal()), HEADS),
    '`F.relative_keys`, with "reference"': (biased(lambda x: functional.relative_keys(x[0, :3, 0])), HEADS),
    '`F.transformer_xl`, with "reference"': (transformer_xl, HEADS),
    "`F.cross_entropy`": (lambda x: functional.cross_entropy(x[None], LABELS, smoothing=0.1, z_loss=0.1), TOKENS),
    "`F.linear_loss`": (
        lambda x: functional.linear_loss(x[None], x * x, LABELS, functional.CrossEntropy(0.1, 0.1), chunk=2),
        TOKENS,
    ),
    "`F.linear_loss` with `F.RDrop`": (two_passes(functional.RDrop(2.0)), TOKENS),
    "`F.linear_loss` with `F.SimCut`": (two_passes(functional.SimCut(2.0)), TOKENS),
    "`sharding.table_copies` and `sharding.lookup`": (looked_up, TOKENS),
    "`F.layer_norm`": (lambda x: functional.layer_norm(x, ones(x)), TOKENS),
    '`F.layer_norm(form="deviation")`': (lambda x: functional.layer_norm(x, ones(x), form="deviation"), TOKENS),
    "`F.rms_norm`": (lambda x: functional.rms_norm(x, ones(x)), TOKENS),
    "`F.dropout`": (lambda x: functional.dropout(x, rate=0.5, key=KEY), TOKENS),
    "`F.recurrent`": (recurrent, TOKENS),
    "`F.recurrent_step`": (recurrent_step, TOKENS),
    "`F.mixture_of_experts`": (mixed, TOKENS),
    "`F.mixture_of_experts(capacity=...)`": (functools.partial(mixed, capacity=2), TOKENS),
    "`F.load_balancing_loss` and `F.router_z_loss`": (
        lambda x: (functional.load_balancing_loss(functional.route(x, 2)), functional.router_z_loss(x)),
        TOKENS,
    ),
    '`models.EncoderDecoder`, with "reference"': encoder_decoder,
    '`models.LanguageModel`, with "reference"': language_model,
    "`models.Seq2Seq`": seq2seq,
}


def every(function, granted, x, direction):
    """All granted derivatives, and the central difference of the gradient along the direction, by one program."""
    slope = jax.grad(function)
    ahead, behind = (jax.tree.map(lambda x, t, h=h: x + h * t, x, direction) for h in (1e-2, -1e-2))
    slopes = jax.lax.map(slope, jax.tree.map(lambda *each: jnp.stack(each), x, ahead, behind))
    gradient, *others = (jax.tree.map(operator.itemgetter(i), slopes) for i in range(3))
    ahead, behind = (vdot(each, direction) for each in others)
    found = {kind: derivative(function, x, direction) for kind, derivative in granted.items() if kind != "gradient"}
    return found | {"gradient": gradient, "second difference": (ahead - behind) / 2e-2}


MODELS = [name for name in FUNCTIONS if "models." in name]


SHOWN = "`F.recurrent`", *(name for name in FUNCTIONS if "`F.attention(" in name and "splash" not in name)


@pytest.mark.parametrize("name", first(FUNCTIONS, *SHOWN))
def test_a_row_of_the_table(name):
    """Supported derivatives are finite and agree with the gradient; others are refused with an explanation."""
    try_row(name, {kind: cell for kind, cell in TABLE[name].items() if name not in MODELS or kind != REVERSE_TWICE})


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_a_full_row_of_the_table(name):
    """The gradient of the gradient of a whole model takes as long to compile as the rest of its row."""
    try_row(name, TABLE[name])


def try_row(name, cells):
    function, x = FUNCTIONS[name]() if name in MODELS else FUNCTIONS[name]
    function, direction = curved(function), jax.tree.map(lambda x: jnp.cos(x + 1), x)
    norm = jnp.sqrt(vdot(direction, direction))
    direction = jax.tree.map(lambda x: x / norm, direction)
    assert set(cells.values()) <= {"yes", "no"}
    granted = {kind: DERIVATIVES[kind] for kind, cell in cells.items() if cell == "yes"}
    refused = {kind: DERIVATIVES[kind] for kind, cell in cells.items() if cell == "no"}
    found = quick(functools.partial(every, function, granted))(x, direction)
    slope = float(vdot(found["gradient"], direction))
    assert np.isfinite(slope)
    assert slope
    if "jvp" in granted:
        np.testing.assert_allclose(found["jvp"], slope, rtol=1e-4, atol=1e-5)
    second = [float(vdot(found[kind], direction)) for kind in granted if "over" in kind]
    if second:
        np.testing.assert_allclose(second, found["second difference"], rtol=2e-2, atol=2e-3)
    for derivative in refused.values():
        with pytest.raises(
            (TypeError, ValueError),
            match=r"can't apply forward-mode|Reverse-mode differentiation does not work for|='reference' has all",
        ):
            jax.jit(functools.partial(derivative, function)).lower(x, direction)


def test_the_table_has_every_implementation():
    """Those that need another device by their declaration, all others by a test."""
    names = {f'`F.attention(implementation="{name}")`': name for name in api.implementations}
    elsewhere = {name: names[name] for name in TABLE.keys() - FUNCTIONS.keys()}
    assert set(elsewhere.values()) == {"cudnn", "tokamax"}
    assert names.keys() <= TABLE.keys()
    assert FUNCTIONS.keys() <= TABLE.keys()
    for row, name in names.items():
        assert (TABLE[row]["forward over reverse"] == "yes") == api.implementations[name].second
