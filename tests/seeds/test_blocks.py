"""CHECKLIST section B, and exercise X4: blocks and models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, models, modules, pure
from tests.models.small import SOURCE, TARGET, Small, model, replaced
from tests.modules.small import built, count, normal, quick


def block(width, num_heads, arrangement=functional.pre_norm, cross=False):
    def make(rngs):
        return modules.Block(
            modules.SelfAttention(width, num_heads, rngs=rngs),
            modules.FeedForward(width, activation=functional.gelu, rngs=rngs),
            cross=modules.CrossAttention(width, num_heads, rngs=rngs) if cross else None,
            norm=lambda: modules.LayerNorm(width),
            arrangement=arrangement,
        )

    return make


def test_b1_b2_both_orders():
    """Post-norm LN(X + f(X)) normalizes every token; the sum X + f(LN X) of pre-norm is not normalized."""
    x = normal(2, 5, 8)
    for arrange, normalized in ((functional.post_norm, True), (functional.pre_norm, False)):
        net, params = built(block(8, 2, arrange))
        plain = params | {"feed_forward_norm": {"scale": np.ones(8, np.float32), "bias": np.zeros(8, np.float32)}}
        deviation = np.asarray(net.apply(plain, x)).std(-1)
        assert np.allclose(deviation, 1, atol=1e-3) == normalized


@pytest.mark.parametrize(
    ("order", "mask"),
    [("post", masks.causal()), ("pre", masks.causal()), pytest.param("pre", None, marks=pytest.mark.full)],
)
def test_b1_b2_b9_x8_z5_equations(order, mask):
    """Post: Z = LN(X + MHA(X)), Y = LN(Z + FFN(Z)); pre: Z = X + MHA(LN X), Y = Z + FFN(LN Z), exact GELU.

    The latter is the listing ModernTransformerBlock(d_model, heads).forward(x, mask=None).

    The sublayers are written out with the parameters of the block. The single head of 000 has no W^O, so its residual
    would need d_v = d; here W^O maps back to d.
    """
    net, params = built(block(8, 2, {"post": functional.post_norm, "pre": functional.pre_norm}[order]))
    x = normal(2, 5, 8)

    def attend(x):
        query, key, value = (x @ params["attention"]["kernel"][:, :, i].reshape(8, 8) for i in range(3))
        one = lambda h: jax.vmap(functools.partial(functional.attention_head, mask=mask))(
            *(y[..., 4 * h : 4 * h + 4] for y in (query, key, value))
        )[0]
        return jnp.concatenate([one(0), one(1)], -1) @ params["attention"]["output"]["kernel"].reshape(8, 8)

    def think(x):
        up, down = (params["feed_forward"][name] for name in ("up", "down"))
        return functional.gelu(x @ up["kernel"] + up["bias"][None, None]) @ down["kernel"] + down["bias"][None, None]

    def norm(x, name):
        centered = x - x.mean(-1, keepdims=True)
        scale, shift = (params[name][part][None, None] for part in ("scale", "bias"))
        return scale * centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) + shift

    def expected(x):
        if order == "post":
            z = norm(x + attend(x), "attention_norm")
            return norm(z + think(z), "feed_forward_norm")
        z = x + attend(norm(x, "attention_norm"))
        return z + think(norm(z, "feed_forward_norm"))

    np.testing.assert_allclose(net.apply(params, x, mask=mask), quick(expected)(x), atol=2e-5)


def test_b2_the_mask_reaches_attention():
    net, params = built(block(8, 2))
    x = normal(2, 5, 8)
    free, causal = map(np.asarray, (net.apply(params, x), net.apply(params, x, mask=masks.causal())))
    assert not np.allclose(free[:, 0], causal[:, 0], atol=1e-3)
    np.testing.assert_allclose(free[:, -1], causal[:, -1], atol=1e-5)


def test_b3_document_block():
    """d = 64, h = 4, x (2, 10, 64): 16,384 + 33,088 + 256 = 49,728 parameters, the shape is preserved."""
    net, params = built(block(64, 4))
    sizes = {name: count(params[name]) for name in params}
    assert sizes["attention"] == 16_384
    assert sizes["feed_forward"] == 33_088
    assert sizes["attention_norm"] + sizes["feed_forward_norm"] == 256
    assert count(params) == 49_728
    x = normal(2, 10, 64)
    assert jax.eval_shape(lambda p, x: net.net.apply(p, x, mask=masks.causal()), params, x).shape == x.shape


def test_b4_document_stack():
    """Four such blocks and a final norm: 199,040 parameters."""
    stack = pure(lambda config, rngs: modules.Stack(block(64, 4), 4, norm=modules.LayerNorm(64), rngs=rngs), None)
    assert count(stack.shapes) == 199_040
    for stack in ("encoder", "decoder"):
        assert "norm" in model("pre").params[stack]  # pre-norm models have the final norm
        assert "norm" not in model("post").params[stack]


def test_b4_z5_the_final_norm():
    """Only 002 ends its stack with a LayerNorm. The pre-norm model here does too: its states are normalized."""
    small = model("pre")
    states = lambda params: np.asarray(small.call(models.EncoderDecoder.encode, params, SOURCE).states)
    plain = replaced(small.params, {"encoder.norm": {"scale": jnp.ones(8), "bias": jnp.zeros(8)}})
    np.testing.assert_allclose(states(plain).std(-1), 1, atol=1e-3)
    np.testing.assert_allclose(states(plain).mean(-1), 0, atol=1e-5)


def test_b5_decoder_block_has_three_sublayers():
    """17.58 to 17.60: masked self-attention, cross-attention and a feed-forward network, each with its own norm.

    Z = LN1(X + Self(X)), C = LN2(Z + Cross(Z, H)), Y = LN3(C + FFN(C)), with three norms that differ.
    """
    net, params = built(block(8, 2, functional.post_norm, cross=True))
    assert set(params) == {
        *("attention", "attention_norm", "cross", "cross_norm", "feed_forward", "feed_forward_norm"),
    }
    x, memory = normal(1, 4, 8), normal(1, 5, 8, seed=1)
    plain = net.apply(params, x, memory, mask=masks.causal())
    assert (np.asarray(net.apply(params, x, memory.at[0, 4].add(1), mask=masks.causal())) != plain).any(-1).all()

    def equations(parts, x, memory):
        block = net.net.bind(parts)
        norm = lambda name, x: functional.layer_norm(x, parts[name]["scale"], parts[name]["bias"])
        z = norm("attention_norm", x + block.attention(x, mask=masks.causal()))
        c = norm("cross_norm", z + block.cross(z, block.cross.project(memory)))
        return norm("feed_forward_norm", c + block.feed_forward(c))

    np.testing.assert_allclose(plain, quick(equations)(params, x, memory), atol=1e-5)


def test_b6_the_whole_source_is_visible():
    """Every target row sees every real source token, before and after its own position, and no padding."""
    small = model("pre")
    every, target = np.ones_like(SOURCE, bool), functional.Tokens(TARGET, np.ones_like(TARGET, bool))
    logits = lambda source, valid=every: small.logits(functional.Tokens(source, valid), target)
    plain = np.asarray(logits(SOURCE))
    for position in range(SOURCE.shape[1]):
        source = np.array(SOURCE)
        source[:, position] = 2
        other = logits(source)
        assert (np.asarray(other) != plain).any(-1).all()
    last = np.arange(SOURCE.shape[1])[None].repeat(2, 0) < SOURCE.shape[1] - 1
    np.testing.assert_array_equal(logits(source, last), logits(SOURCE, last))  # which differ in the last token


@pytest.mark.parametrize("output_bias", [False, True])
def test_b7_z3_logits_with_and_without_bias(output_bias):
    """Logits are y W_vocab as in 000, the default, or y W_vocab + b as in 004 (Marian and BART have such a bias)."""
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 1}
    config = models.LanguageModelConfig(8, output_bias=output_bias, tie_embeddings=False, **sizes)
    small, tokens = Small(config, models.LanguageModel), jnp.array([[3, 4, 5]])
    logits = lambda **changes: np.asarray(small.apply({"decoder": small.params["decoder"] | changes}, tokens))
    kernel, bias = small.params["decoder"]["output"]["kernel"], small.params["decoder"].get("output_bias")
    assert set(small.params["decoder"]["output"]) == {"kernel"}
    assert (bias is not None) == output_bias
    none = {} if bias is None else {"output_bias": 0 * bias}
    states = logits(output={"kernel": jnp.eye(8)}, **none)  # as many words as features
    expected = states @ np.asarray(kernel) + (0 if bias is None else np.asarray(bias))
    np.testing.assert_allclose(logits(), expected, atol=1e-5)


def test_b8_one_block_three_families():
    """One class: an encoder uses no mask, decoder-only models a causal one, encoder-decoders also cross-attention."""
    plain, params = built(block(8, 2))
    x = normal(1, 4, 8)
    moved = x.at[0, 3].add(1)
    changed = lambda **kw: (np.asarray(plain.apply(params, x, **kw)) != plain.apply(params, moved, **kw)).any(-1)[0]
    assert changed().tolist() == [True] * 4
    assert changed(mask=masks.causal()).tolist() == [False, False, False, True]


def test_b8_the_third_family():
    """The decoder block of an encoder-decoder is causal over the target and sees the whole memory."""
    net, params = built(block(8, 2, cross=True))
    x, memory = normal(1, 4, 8), normal(1, 5, 8, seed=1)
    run = lambda x, memory: np.asarray(net.apply(params, x, memory, mask=masks.causal()))
    changed = lambda a, b: (a != b).any(-1)[0].tolist()
    assert changed(run(x, memory), run(x.at[0, 2].add(1), memory)) == [False, False, True, True]
    assert changed(run(x, memory), run(x, memory.at[0, 4].add(1))) == [True] * 4


@pytest.mark.parametrize(("name", "depth"), [("BERT-Base, GPT-2 Small", 12), ("GPT-3", 96)])
def test_b10_depths(name, depth):
    """L = 6 to 96: parameters grow with depth, the traced program does not.

    003 presents a post-norm block without a mask at the scale of GPT-3, which is causal and pre-norm, as here.
    """
    stacks = [pure(lambda config, rngs, d=d: modules.Stack(block(8, 2), d, rngs=rngs), None) for d in (6, depth)]
    assert count(stacks[1].shapes) == count(stacks[0].shapes) * depth // 6
    program = lambda net: jax.make_jaxpr(lambda p, x: net.apply(p, x, mask=masks.causal()))(
        net.shapes, jax.ShapeDtypeStruct((1, 4, 8), np.float32)
    )
    short, long = (str(program(net)).count("\n") for net in stacks)
    assert short == long


@pytest.mark.parametrize(("d_model", "num_heads", "d_ff"), [(8, 2, 32), (12, 3, 20)])
def test_b11_hyper_parameters_of_an_encoder_layer(d_model, num_heads, d_ff):
    """d_model, nhead and dim_feedforward give as many parameters as `nn.TransformerEncoderLayer` has.

    4 d^2 + 4 d for attention, 2 d f + f + d for the feed-forward network, two norms of 2 d. `tests/parity` compares the
    values with the layer itself.
    """

    def make(rngs):
        attention = modules.SelfAttention(d_model, num_heads, bias=True, rngs=rngs)
        feed_forward = modules.FeedForward(d_model, d_ff, rngs=rngs)
        return modules.Block(attention, feed_forward, norm=lambda: modules.LayerNorm(d_model))

    net, params = built(make)
    assert count(params) == 4 * d_model**2 + 4 * d_model + 2 * d_model * d_ff + d_ff + d_model + 4 * d_model
    assert params["attention"]["kernel"].shape == (d_model, num_heads, 3, d_model // num_heads)
    assert net.apply(params, normal(2, 5, d_model)).shape == (2, 5, d_model)


def test_b12_heads_for_tasks():
    """One causal stack has two heads: next-token logits at every position, and one classification of the sequence.

    The logits of a position ignore later tokens. The classification, read at the last real token, uses all tokens.
    """

    def network(num_outputs):
        def make(rngs):
            return models.Decoder(
                modules.Embeddings(modules.Embedding(11, 8, rngs=rngs), dtype="float32"),
                modules.Stack(block(8, 2), 2, rngs=rngs),
                modules.LayerNorm(8),
                modules.Linear(8, num_outputs, bias=False, axes=("model", "vocab"), rngs=rngs),
            )

        return built(make)

    (words, params), (classes, others) = network(11), network(3)

    def both(*tokens):
        tokens = np.array([tokens], np.int32)
        label = classes.apply(params | {"output": others["output"]}, tokens)
        return np.asarray(words.apply(params, tokens)), np.asarray(label)[:, 3]

    (logits, label), (padded, same), (moved, other) = both(3, 4, 5, 6, 0), both(3, 4, 5, 6, 9), both(3, 4, 5, 9, 0)
    assert (logits.shape, label.shape) == ((1, 5, 11), (1, 3))
    np.testing.assert_array_equal(padded[:, :4], logits[:, :4])
    np.testing.assert_array_equal(same, label)
    np.testing.assert_array_equal(moved[:, :3], logits[:, :3])
    assert np.abs(other - label).max() > 1e-3


@pytest.mark.parametrize("compare", ["documents", "library"])
def test_x4_the_future_is_invisible(compare):
    """d = 32, h = 4, L = 6, 12,576 parameters: replacing token 5 by 100 * randn keeps the shape.

    The document allows positions 0 to 4 to change by 1e-5; here they do not change at all.
    """
    net, params = built(block(32, 4))
    assert count(params) == 12_576
    x = normal(1, 6, 32)
    before = net.apply(params, x, mask=masks.causal())
    moved = np.array(x)
    moved[0, 5] = 100 * np.asarray(normal(32, seed=1))
    after = net.apply(params, moved, mask=masks.causal())
    assert after.shape == x.shape
    difference = np.abs(np.asarray(before) - np.asarray(after)).max(-1)[0]
    assert (difference[:5] <= (1e-5 if compare == "documents" else 0)).all()
    assert difference[5] > 1e-5


def test_b13_pipeline():
    """ "The cat sat" -> ids [50, 123, 456] -> embeddings and positions -> layers -> logits over the vocabulary."""
    small = Small(
        models.EncoderDecoderConfig(
            500, 500, d_model=8, num_heads=2, d_ff=16, num_encoder_layers=1, num_decoder_layers=1
        )
    )
    ids = np.array([[50, 123, 456]], np.int32)
    table = np.asarray(small.params["decoder"]["embeddings"]["tokens"]["table"])
    embedded = table[ids[0]] * 8**0.5 + np.asarray(functional.sinusoidal(jnp.arange(3), dim=8))
    layer = jax.tree.map(lambda leaf: np.asarray(leaf)[0], small.params["encoder"]["stack"]["layers"])
    single = pure(
        lambda config, rngs: modules.Block(
            modules.SelfAttention(8, 2, rngs=rngs),
            modules.FeedForward(8, 16, rngs=rngs),
            norm=lambda: modules.LayerNorm(8),
            arrangement=functional.post_norm,
        ),
        None,
    )
    memory = small.call(models.EncoderDecoder.encode, small.params, ids)
    alone = quick(single.apply)(layer, embedded.astype(np.float32)[None])
    np.testing.assert_allclose(memory.states, alone, atol=1e-5)
    assert small.logits(ids, ids).shape == (1, 3, 500)


def test_b14_positions_survive_depth():
    """After twelve untrained residual layers, a model still distinguishes the positions of one repeated word."""
    config = models.EncoderDecoderConfig(
        13, 13, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=12, num_decoder_layers=1, norm_position="pre"
    )
    net = pure(models.EncoderDecoder, config)
    encode = jax.jit(lambda key: net.bind(net.init(key)).encode(jnp.full((1, 6), 5)).states[0])
    states = np.asarray(encode(jax.random.key(0)))
    distance = np.linalg.norm(states[:, None] - states[None], axis=-1)[~np.eye(6, dtype=bool)]
    assert distance.min() > 0.1


def test_b15_bank_depends_on_its_context():
    """A lookup is context-free; after attention, "bank" of a river and "bank" for a deposit differ."""
    small = model("post")
    river, deposit, bank = 3, 4, 5
    contexts = np.array([[river, 6, bank, 7, 8, 9], [deposit, 6, bank, 7, 8, 9]], np.int32)
    embedded = np.asarray(small.params["decoder"]["embeddings"]["tokens"]["table"])[contexts[:, 2]]
    np.testing.assert_array_equal(embedded[0], embedded[1])
    states = np.asarray(small.call(models.EncoderDecoder.encode, small.params, contexts).states)[:, 2]
    assert np.abs(states[0] - states[1]).max() > 1e-2
