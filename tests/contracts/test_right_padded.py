"""A causal mask hides padding at the ends of rows: with that promise, attention gets no padding mask."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from jaxformer import functional, masks, models, pure
from jaxformer.models import choices
from tests.models.small import CONFIGS, LANGUAGE_CONFIGS, SOURCES, TARGET, V
from tests.modules.small import drawn, normal, quick
from tests.selection import first

LABELS = jnp.asarray([[2, 9, 10, 2, 0], [10, 2, 9, 2, 0]], jnp.int32)
VALID = jnp.asarray([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
EXPERTS = choices.Experts(num_experts=3, num_experts_per_token=2, load_balancing_weight=0.5, capacity_factor=0.6)
GRID = models.GridConfig(image_size=(6, 10), widths=(4, 6), num_blocks=1)
CAPTIONER = {"image": GRID, "vocab_size": V, "d_model": 8, "num_heads": 2, "d_ff": 12, "max_positions": 5}
MODELS = {
    "translator": (models.EncoderDecoder, CONFIGS["post"]),
    "translator, t5": (models.EncoderDecoder, dataclasses.replace(CONFIGS["pre"], positions=choices.T5())),
    "language model": (models.LanguageModel, LANGUAGE_CONFIGS["untied"]),
    "window": (models.LanguageModel, dataclasses.replace(LANGUAGE_CONFIGS["untied"], attention_window=2)),
    "experts": (
        models.LanguageModel,
        dataclasses.replace(LANGUAGE_CONFIGS["tied"], feed_forward=EXPERTS, dropout=0.0),
    ),
    "captioner": (models.TransformerCaptioner, models.TransformerCaptionerConfig(**CAPTIONER)),
}


class Spy:
    """Attention with one implementation, which records the masks that it receives."""

    def __init__(self, implementation="reference"):
        self.implementation, self.masks = implementation, []

    def __call__(self, query, key, value, **options):
        self.masks.append(options.get("mask"))
        return functional.attention(query, key, value, **options, implementation=self.implementation)


def loss_of(name, spy):
    """``loss(params, ids, right_padded)`` of a model in training, and its parameters."""
    kind, config = MODELS[name]
    net = pure(kind, config, attention=spy)
    read = {models.EncoderDecoder: (SOURCES,), models.LanguageModel: ()}.get(kind, (normal(2, 6, 10, 3),))

    def loss(params, ids, right_padded):
        tokens = functional.Tokens(ids, VALID, right_padded=right_padded)
        return net.bind(params).loss(*read, tokens, labels=LABELS, key=jax.random.key(1))

    return loss, drawn(net.shapes, 0.3)


@pytest.mark.parametrize("implementation", first(["reference", "blockwise"], "blockwise"))
@pytest.mark.parametrize("name", first(MODELS, "experts"))
def test_losses_and_gradients_are_the_same(name, implementation):
    """With and without the promise, and with other tokens in the padding."""
    loss, params = loss_of(name, Spy(implementation))
    slopes = quick(jax.value_and_grad(loss, has_aux=True), static_argnums=2)
    wanted = slopes(params, TARGET, False)
    other = jnp.where(VALID, TARGET, 7)
    for got in (slopes(params, TARGET, True), slopes(params, other, True)):
        chex.assert_trees_all_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_self_attention_gets_only_a_causal_mask(name):
    """So kernels can use their causal paths; other attention keeps its padding mask."""
    for right_padded in (False, True):
        spy = Spy()
        loss, params = loss_of(name, spy)
        jax.eval_shape(functools.partial(loss, right_padded=right_padded), params, TARGET)
        past = masks.window(1) if name == "window" else masks.causal()
        assert (past in spy.masks) is right_padded
        assert any(isinstance(mask, masks.And) for mask in spy.masks) is not right_padded
        assert any(isinstance(mask, masks.Padding) for mask in spy.masks) is name.startswith("translator")


def test_the_promise_has_no_effect_without_a_causal_mask():
    """Without one, every token attends to unmasked padding."""
    spy, config = Spy(), dataclasses.replace(LANGUAGE_CONFIGS["tied"], causal=False)
    net = pure(models.LanguageModel, config, attention=spy)
    tokens = functional.Tokens(TARGET, VALID, right_padded=True)
    loss = lambda params: net.bind(params).loss(tokens, labels=LABELS)
    jax.eval_shape(loss, net.shapes)
    assert spy.masks
    assert all(isinstance(mask, masks.Padding) for mask in spy.masks)
