"""The plain layers are the functions that they call; initial values; experts in a stack and on a mesh; refusals."""

import functools
import inspect
import re
from statistics import NormalDist

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import axes, functional, masks, models, modules, pure, sharding
from jaxformer.functional import Tokens
from jaxformer.modules.attention_function import check_partial
from jaxformer.modules.layers import normal as gaussian
from jaxformer.modules.layers import uniform
from tests.modules.small import built, count, drawn, int32, normal, quick

D, F, E = 8, 12, 4


def test_initializers():
    """Uniform and normal by their quantiles, for many keys and lengths; never infinite; keys and shapes matter."""
    draws = np.asarray(jax.vmap(lambda key: uniform(key, (64, 64)))(jax.random.split(jax.random.key(0), 16))).reshape(
        -1
    )
    assert abs(draws).max() < 1
    quantiles = np.linspace(0.01, 0.99, 99)
    np.testing.assert_allclose(np.quantile(draws, quantiles), 2 * quantiles - 1, atol=0.01)
    bell = np.asarray(gaussian(jax.random.key(1), (256, 256), deviation=0.5)).reshape(-1)
    expected = [0.5 * NormalDist().inv_cdf(q) for q in quantiles]
    np.testing.assert_allclose(np.quantile(bell, quantiles), expected, atol=0.02)
    ends = jnp.asarray([0, 2**32 - 1], jnp.uint32)
    assert np.isfinite(jax.lax.erf_inv(((ends >> 9).astype(jnp.float32) + 0.5) * 2**-22 - 1)).all()
    columns = np.asarray(uniform(jax.random.key(2), (2048, 2)))
    assert abs(np.corrcoef(columns.T)[0, 1]) < 4 / np.sqrt(2048)


def test_linear():
    net, params = built(lambda rngs: modules.Linear(D, 6, rngs=rngs))
    x = normal(2, 3, D)
    np.testing.assert_allclose(net.apply(params, x), x @ params["kernel"] + params["bias"][None, None], atol=1e-6)
    bare, _ = built(lambda rngs: modules.Linear(D, 6, bias=False, rngs=rngs))
    assert set(bare.shapes) == {"kernel"}
    fresh = net.init(jax.random.key(0))
    assert not np.asarray(fresh["bias"]).any()
    assert np.abs(fresh["kernel"]).max() <= np.sqrt(6 / (D + 6))


def test_norms():
    x = normal(2, 3, D)
    net, params = built(lambda rngs: modules.LayerNorm(D, epsilon=0.1))
    expected = functional.layer_norm(x, params["scale"], params["bias"], epsilon=0.1)
    np.testing.assert_allclose(net.apply(params, x), expected, atol=1e-6)
    fresh = net.init(jax.random.key(0))
    assert np.asarray(fresh["scale"] == 1).all()
    assert np.asarray(fresh["bias"] == 0).all()
    net, params = built(lambda rngs: modules.RMSNorm(D, epsilon=0.1))
    np.testing.assert_allclose(net.apply(params, x), functional.rms_norm(x, params["scale"], epsilon=0.1), atol=1e-6)


@pytest.mark.parametrize("activation", [functional.relu, functional.gelu])
def test_feed_forward(activation):
    """Four times as wide inside by default; dropout between the maps only with a key."""
    net, params = built(lambda rngs: modules.FeedForward(D, activation=activation, dropout=0.5, rngs=rngs))
    assert count(params) == 8 * D * D + 5 * D
    x, up, down = normal(2, 3, D), params["up"], params["down"]
    expected = functional.feed_forward(x, up["kernel"], up["bias"], down["kernel"], down["bias"], activation=activation)
    np.testing.assert_allclose(net.apply(params, x), expected, atol=1e-6)
    key = jax.random.key(4)
    hidden = functional.dropout(activation(functional.linear(x, up["kernel"], up["bias"])), rate=0.5, key=key)
    dropped = functional.linear(hidden, down["kernel"], down["bias"])
    np.testing.assert_allclose(net.apply(params, x, key=key), dropped, atol=1e-6)


def test_gated_feed_forward():
    net, params = built(lambda rngs: modules.GatedFeedForward(D, rngs=rngs))
    kernels = [params[name]["kernel"] for name in ("gate", "up", "down")]
    assert kernels[0].shape == (D, 8 * D // 3)
    x = normal(2, 5, D)
    np.testing.assert_allclose(net.apply(params, x), functional.gated_feed_forward(x, *kernels), atol=1e-5)


def experts(**options):
    return built(lambda rngs: modules.MixtureOfExperts(D, E, F, rngs=rngs, **options))


@pytest.mark.parametrize("gated", [False, True])
def test_experts_are_the_function(gated):
    """Tokens of one sentence after another: the router's logits, and the kernels."""
    net, params = experts(gated=gated)
    x = normal(2, 5, D)

    @quick
    def by_hand(params):
        routing = functional.route((x @ params["router"]).reshape(10, E), 2)
        kernels = functional.Experts(params["up"], params["down"], params.get("gate"))
        return functional.mixture_of_experts(x.reshape(10, D), routing, kernels).reshape(x.shape)

    np.testing.assert_allclose(net.apply(params, x), by_hand(params), atol=1e-5)
    named = {name: names[0] for name, names in net.net.axes.items()}
    assert named == {"router": "model"} | dict.fromkeys(("up", "down", "gate")[: 2 + gated], "experts")


def test_the_router_has_all_bits_of_float32():
    """By default, a TPU and a GPU round the operands of products of float32; the gradient's products are as exact."""
    net, params = experts()
    x = normal(2, 5, D).astype(jnp.bfloat16)
    loss = lambda params: net.net.apply(params, x).astype(jnp.float32).sum()
    text = str(jax.make_jaxpr(jax.grad(loss))(params))
    products = re.findall(r"\bdot_general\[.*?\n *\] ", text, re.DOTALL)  # those of the experts are of another kind
    assert len(products) >= 2
    assert all("Precision.HIGHEST" in product for product in products)


def test_room_only_in_training_and_by_sentence():
    """With a key an expert is limited, in each sentence by itself; without one nothing is dropped."""
    limited, params = experts(capacity_factor=0.5)
    free, roomy = experts()[0], experts(capacity_factor=float(E))[0]
    x, key = normal(3, 6, D), jax.random.key(0)

    @quick
    def run(params):
        calls = ((limited, x, None), (free, x, None), (limited, x, key), (limited, x[1:2], key), (roomy, x, key))
        return [each.net.apply(params, x, key=key) for each, x, key in calls]

    unlimited, expected, tight, alone, enough = map(np.asarray, run(params))
    np.testing.assert_array_equal(unlimited, expected)
    assert not np.allclose(tight, expected, atol=1e-3)
    np.testing.assert_allclose(tight[1:2], alone, atol=1e-6)
    np.testing.assert_allclose(enough, expected, atol=1e-5)


def test_padding_takes_no_room():
    """Whatever stands before the real tokens of a sentence, they get the same."""
    net, params = experts(capacity_factor=0.5)
    valid = jnp.broadcast_to(jnp.arange(6) >= 3, (2, 6))
    found = [net.apply(params, normal(2, 6, D).at[:, :3].mul(x), valid=valid, key=jax.random.key(0)) for x in (1, -9)]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.asarray(found[0][:, 3:]).any()


def expert_block(**options):
    def make(rngs):
        return modules.Block(
            modules.SelfAttention(D, 2, rngs=rngs),
            modules.MixtureOfExperts(D, E, F, rngs=rngs, **options),
            norm=lambda: modules.RMSNorm(D),
        )

    return make


@pytest.mark.full
def test_in_a_stack_the_routing_can_be_collected_and_trained():
    """Captured routings of all layers give the balancing loss, whose gradient reaches every router."""
    net, params = built(lambda rngs: modules.Stack(expert_block(), 3, rngs=rngs))
    x = normal(2, 5, D)

    def loss(params):
        _, intermediates = net.net.bind(params).run(x, mask=masks.causal(), capture=("experts",))
        assert intermediates["experts"].experts.shape == (3, 2, 5, 2)
        return jax.vmap(functional.load_balancing_loss)(intermediates["experts"]).sum()

    value, gradient = jax.value_and_grad(loss)(params)
    assert 2.9 < value < 3 * E
    slopes = np.abs(gradient["layers"]["feed_forward"]["router"]).max((1, 2))
    assert (slopes > 0).all()


@pytest.mark.full
@pytest.mark.parametrize("text", ["data=2,expert=4", "fsdp=2,expert=2,tensor=2"])
def test_on_a_mesh_of_experts(text, monkeypatch):
    """Kernels and gathered tokens sharded over experts, sentences over data: the same numbers, forward and gradient."""
    placement = sharding.Placement(sharding.mesh(text))
    net, params = experts(capacity_factor=1.0)
    x, key = normal(4, 6, D), jax.random.key(0)

    def loss(params, x):
        return jnp.sum(jnp.sin(net.net.apply(params, x, key=key)))

    expected = jax.value_and_grad(loss)(params, x)
    seen = []
    spy = lambda x, *names: (seen.append(names), axes.constrain(x, *names))[1]
    monkeypatch.setattr(modules.layers, "constrain", spy)
    where = placement.params(net.net.shapes, net.net.axes)
    placed = jax.device_put(params, where), placement.assemble(x)
    value, gradient = jax.jit(jax.value_and_grad(placement.with_axis_rules(loss)))(*placed)
    assert ("experts", None, None) in seen
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    chex.assert_trees_all_close(gradient, expected[1], rtol=0, atol=1e-5)
    assert where["up"].spec[0] == gradient["up"].sharding.spec[0] == "expert"


def test_gathered_tokens_keep_their_features(monkeypatch):
    """Sharded over fsdp, as a parameter is, they were sent to other devices and every product was summed over them."""
    placement = sharding.Placement(sharding.mesh("fsdp=2,expert=4"))
    net, params = experts(capacity_factor=1.0)
    place, specs = jax.lax.with_sharding_constraint, []
    spy = lambda x, where: (specs.append(tuple(where.spec)), place(x, where))[1]
    monkeypatch.setattr(jax.lax, "with_sharding_constraint", spy)
    run = placement.with_axis_rules(lambda params, x: net.net.apply(params, x, key=jax.random.key(0)))
    jax.eval_shape(run, params, normal(4, 6, D))
    assert specs == [("expert", None, None), ("expert", None, None), ("fsdp", None, None)]


def made(layer, *sizes, **options):
    """Makes a layer without the type checks of the tests, which come first."""
    own = object.__new__(layer)
    return lambda: inspect.unwrap(layer.__init__)(own, *sizes, rngs=nnx.Rngs(0), **options)


def called(method, make, *args, **options):
    return lambda: inspect.unwrap(method)(make(), *args, **options)


@functools.cache
def embeddings(learned=False):
    positions = modules.LearnedPositions(4, D, rngs=nnx.Rngs(0)) if learned else None
    return modules.Embeddings(modules.Embedding(5, D, rngs=nnx.Rngs(0)), positions)


@functools.cache
def recurrent(*sizes, **options):
    return modules.RecurrentStack(D, 6, *sizes, rngs=nnx.Rngs(0), **options)


def self_attention(**options):
    return modules.SelfAttention(D, 2, rngs=nnx.Rngs(0), **options)


def cross_attention():
    return modules.CrossAttention(D, 2, rngs=nnx.Rngs(0))


X, IDS = normal(2, 3, D), int32([[3, 0, 4]])
SMALL = pure(models.LanguageModel, models.LanguageModelConfig(20, d_model=8, num_heads=2, d_ff=12, num_layers=1))


def linear_attention(**options):
    return lambda: modules.LinearAttentionLayer(self_attention(**options))(X)


def adapted(net=SMALL, *, rank=2, targets=("*/attention/*",)):
    return lambda: modules.lora(net, rank=rank, targets=targets).shapes


NO_SPLIT = r"num_heads \(4\) must be divisible by num_kv_heads \(3\)"
SPANS = "kernel size and dilation must be at least 1, got "
OF_SIZE = "num_layers and growth must be at least 1, got "
REFUSALS = {
    "heads": (made(modules.SelfAttention, 512, 7), r"d_model \(512\) must be divisible by num_heads \(7\)"),
    "no heads": (made(modules.SelfAttention, D, 0), r"d_model \(8\) must be divisible by num_heads \(0\)"),
    "key heads": (made(modules.SelfAttention, D, 4, num_kv_heads=3), NO_SPLIT),
    "key heads of a memory": (made(modules.CrossAttention, D, 4, num_kv_heads=3), NO_SPLIT),
    "positions by name": (made(modules.SelfAttention, D, 4, positions="rotary"), "must be a PositionScheme, such as"),
    "class of positions": (made(modules.SelfAttention, D, 4, positions=modules.PositionScheme), "be a PositionScheme"),
    "another D": (called(modules.SelfAttention.project, self_attention, X[..., :6]), r"D = 8, got shape \[2, 3, 6\]"),
    "no batch": (called(modules.SelfAttention.project, self_attention, X[0]), r"D = 8, got shape \[3, 8\]"),
    # It was unpacked into keys and values.
    "memory": (
        called(modules.CrossAttention.__call__, cross_attention, X, X),
        "the KeyValue that project returns, got a .*Array",
    ),
    "name of attention": (
        lambda: inspect.unwrap(check_partial)("blockwise"),
        r"functools.partial\(functional.attention.*'blockwise'",
    ),
    "class of attention": (
        lambda: check_partial(modules.Linear),
        r"an instance of a module, got <class .*Linear",
    ),
    "dot": (made(modules.Alignment, 6, 5, 7, kind="dot"), "equal sizes of queries and memory, got 6, 5"),
    "kind": (made(modules.Alignment, 2, 2, 2, kind="bahdanau"), "additive, dot, general, concat, got 'bahdanau'"),
    "no layers": (made(modules.ConvolutionStack, D, 0), f"{OF_SIZE}0 and 1"),
    "growth": (made(modules.ConvolutionStack, D, 2, growth=0), f"{OF_SIZE}2 and 0"),
    "kernel": (made(modules.Convolution, D, D, kernel_size=0), f"{SPANS}0 and 1"),
    "dilation": (made(modules.Convolution, D, D, dilation=0), f"{SPANS}3 and 0"),
    "heads of a grid": (made(modules.GridAttention, D, 4, num_heads=3), "multiple of num_heads 3, got 4"),
    "patches": (made(modules.PatchEmbeddings, (4, 6), 4, D), r"a multiple of patch_size 4, got \(4, 6\)"),
    "images": (
        lambda: modules.PatchEmbeddings((4, 6), 2, D, rngs=nnx.Rngs(0))(jnp.zeros((1, 6, 4, 3))),
        r"images must be .*\(4, 6, 3\).*, got \(1, 6, 4, 3\)",
    ),
    "a sentence alone": (
        called(modules.Embeddings.__call__, embeddings, Tokens(IDS[0])),
        r"tokens must be \[B, T\], got shape \[3\]",
    ),
    "a list": (
        called(modules.Embeddings.__call__, embeddings, Tokens([[3]])),
        r"an array \[B, T\], got a list; jnp\.asarray makes",
    ),
    "floats": (
        called(modules.Embedding.__call__, lambda: embeddings().tokens, X[0]),
        "token ids must be integers, got float32",
    ),
    "positions": (
        called(modules.Embeddings.__call__, embeddings, Tokens(IDS, positions=int32([0, 1, 2]))),
        r"positions must be \[B, T\], got shape",
    ),
    "no hypotheses": (
        called(modules.Embeddings.step, embeddings, IDS, IDS),
        r"tokens must be \[B, K, T\], got shape \[1, 3\]",
    ),
    # These ended in errors about an indexer.
    "valid of another shape": (
        called(modules.Embeddings.__call__, embeddings, Tokens(IDS, np.ones((1, 2), bool))),
        r"Boolean with the shape of tokens, \[1, 3\], got bool \[1, 2\]",
    ),
    "valid of integers": (
        called(modules.Embeddings.__call__, embeddings, Tokens(IDS, np.ones((1, 3), np.int32))),
        r"\[1, 3\], got int32 \[1, 3\]",
    ),
    "types": (
        lambda: embeddings()(Tokens(IDS, types=IDS)),
        "no token types, but types were given; set num_token_types",
    ),
    "length": (lambda: embeddings(True).check_length(5), "a sequence of length 5 has no learned position beyond 4"),
    "positions of a table": (
        lambda: embeddings(True)(Tokens(IDS, positions=int32([[0, 3, 4]]))),
        "position 4 has no learned vector: the table covers 0 to 3",
    ),
    "no recurrent layers": (made(modules.RecurrentStack, D, 6, 0), "num_layers must be at least 1, got 0"),
    # Missing states were zero in the full pass, and a step left out their layers.
    "missing state": (
        lambda: recurrent(2)(X, states=recurrent(2).start(2)[:1]),
        "a state for each layer and direction, 2, got 1",
    ),
    "states": (
        lambda: recurrent(2).step(X[:, 0], 2 * recurrent(2).start(2)),
        "a state for each layer and direction, 2, got 4",
    ),
    "step": (
        lambda: recurrent(bidirectional=True).step(X[:, 0], recurrent(2).start(2)),
        "a bidirectional stack has no step",
    ),
    "odd": (made(modules.RecurrentLayer, 5, bidirectional=True), "d_model must be even .*, got 5"),
    "linear, key heads": (linear_attention(num_kv_heads=1), "as many key heads as query heads"),
    "linear, dropout": (linear_attention(dropout=0.1), "without dropout"),
    "linear, scale": (linear_attention(logits=modules.Logits(scale=1.0)), "without scale"),
    "linear, sinks": (linear_attention(logits=modules.Logits(sinks=True)), "without sinks"),
    "linear, bias": (linear_attention(positions=modules.positions.Alibi(2)), "a bias, such as Rotary, got Alibi"),
    "no blocks": (made(modules.Stack, None, 0), "num_layers must be at least 1, got 0"),
    "captured by a call": (
        lambda: modules.Stack(expert_block(), 1, rngs=nnx.Rngs(0))(X, capture=("self",)),
        r"run\(..., capture=...\) returns what is captured",
    ),
    "no such target": (adapted(targets=["*/atention/*"]), r"no parameter matches '\*/atention/\*'; the parameters are"),
    "vectors": (adapted(targets=["*/scale"]), r"targets \*/scale match no matrix, only vectors"),
    "adapters of adapters": (
        lambda: adapted(modules.lora(SMALL, rank=1, targets=["*"]))(),
        "be a network without adapters",
    ),
    "rank": (adapted(rank=0), "rank must be at least 1, got 0"),
    "targets": (adapted(targets="*/kernel"), r"sequence of patterns, such as \['\*/kernel'\], got the str"),
    "plain parameters": (
        lambda: modules.lora(SMALL, rank=1, targets=["*"]).bind(drawn(SMALL.shapes)),
        "do not belong to this model",
    ),
    "patterns": (lambda: modules.matching({"kernel": 1}, "*kernel"), r"such as \['\*kernel'\]"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, message = REFUSALS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        call()
