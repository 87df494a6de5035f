"""Tiny models of each family, random parameters, and modified folders."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from jaxformer import interop, models, pure
from jaxformer.interop import tensors
from jaxformer.models import choices, families

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12}
PAIR = SIZES | {"num_encoder_layers": 2, "num_decoder_layers": 1}
STACK = SIZES | {"num_layers": 2}
MBART = {"norm_position": "pre", "embedding_scale": 8**0.5}
PEGASUS = {"norm_position": "pre", "activation": "gelu"}
M2M100 = {"norm_position": "pre", "positions": choices.Sinusoidal("fairseq", 2), "activation": "relu"}
M2M100 |= {"embedding_scale": None, "embedding_norm": False, "output_bias": False}
QWEN2 = {"attention_bias": True, "attention_output_bias": False}
VIT = families.vit((8, 4), patch_size=4, **STACK)
CLASSIFIER = {f.name: getattr(VIT, f.name) for f in dataclasses.fields(VIT) if f.name != "vocab_size"}

NETS = {
    "bart": pure(models.EncoderDecoder, families.bart(9, **PAIR, max_positions=7)),
    "mbart": pure(models.EncoderDecoder, families.bart(9, **PAIR | MBART)),
    "marian": pure(models.EncoderDecoder, families.marian(9, **PAIR)),
    "marian apart": pure(models.EncoderDecoder, families.marian(9, **PAIR, tie_embeddings="none")),
    "marian decoder": pure(models.EncoderDecoder, families.marian(9, **PAIR, tie_embeddings="decoder")),
    "bart inputs": pure(models.EncoderDecoder, families.bart(9, **PAIR, tie_embeddings="inputs")),
    "pegasus": pure(models.EncoderDecoder, families.marian(9, **PAIR | PEGASUS)),
    "m2m_100": pure(models.EncoderDecoder, families.bart(9, **PAIR | M2M100)),
    "t5": pure(models.EncoderDecoder, families.t5(9, **PAIR, head_dim=6)),
    "t5 untied": pure(models.EncoderDecoder, families.t5_v1_1(9, **PAIR)),
    "bert": pure(models.make_encoder, families.bert(9, **STACK)),
    "bert masked": pure(models.MaskedLanguageModel, families.bert(9, **STACK)),
    "roberta": pure(models.make_encoder, families.roberta(9, **STACK)),
    "roberta masked": pure(models.MaskedLanguageModel, families.roberta(9, **STACK)),
    "distilbert": pure(models.make_encoder, families.bert(9, **STACK, num_token_types=0)),
    "distilbert masked": pure(models.MaskedLanguageModel, families.bert(9, **STACK, num_token_types=0)),
    "gpt2": pure(models.LanguageModel, families.gpt2(9, **STACK)),
    "llama": pure(models.LanguageModel, families.llama(9, **STACK | {"num_kv_heads": 1})),
    "mistral": pure(models.LanguageModel, families.llama(9, **STACK, head_dim=6)),
    "mistral window": pure(models.LanguageModel, families.llama(9, **STACK, attention_window=3)),
    "qwen2": pure(models.LanguageModel, families.llama(9, **STACK | QWEN2)),
    "qwen2 window": pure(models.LanguageModel, families.llama(9, **STACK | QWEN2, attention_window=3)),
    "qwen3": pure(models.LanguageModel, families.llama(9, **STACK, qk_norm=True, tie_embeddings=True)),
    "qwen3 window": pure(models.LanguageModel, families.llama(9, **STACK, qk_norm=True, attention_window=1)),
    "vit": pure(models.make_encoder, VIT),
    "vit classifier": pure(models.VisionTransformer, models.VisionTransformerConfig(**CLASSIFIER, num_classes=5)),
}
"""Models by the name of their family and, after a space, what distinguishes them."""


def drawn(net):
    """Returns random parameters, none of them trivial."""
    leaves, tree = jax.tree.flatten(net.shapes)
    generator = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [generator.standard_normal(x.shape).astype(np.float32) for x in leaves])


def save(folder, name, **changes):
    """Writes one of `NETS`; returns it and its parameters."""
    net = NETS[name]
    params = drawn(net)
    interop.save_pretrained(folder, net, params, family=name.partition(" ")[0], **changes)
    return net, params


def folder(path, family, model, config, **settings):
    """Writes a model of moderate random weights; returns it and its parameters."""
    net = pure(model, config)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    interop.save_pretrained(path, net, params, family=family, settings=settings)
    return net, params


def edited(folder, change=lambda found: None, settings=None):
    """Changes the tensors and the settings of a folder."""
    path = folder / tensors.SINGLE
    found = safetensors.numpy.load_file(path)
    change(found)
    safetensors.numpy.save_file(found, path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (settings or {})))


def arrays(folder):
    """Returns the tensors of a folder."""
    return safetensors.numpy.load_file(folder / tensors.SINGLE)


def linear(name, to, given):
    """The shapes of a linear layer."""
    return {f"{name}.weight": (to, given), f"{name}.bias": (to,)}


def norm(name, dim=8):
    """The shapes of a norm."""
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def check_shapes(folder, name, expected):
    """Checks the names and shapes in a folder of one of `NETS`; returns its parameters."""
    _, params = save(folder, name)
    assert {tensor: x.shape for tensor, x in arrays(folder).items()} == expected
    return params
