"""Tiny random translators of many languages, as folders of Hugging Face."""

import jax
import jax.numpy as jnp

from jaxformer import interop, models, pure
from jaxformer.models import choices, families
from tests.interop.small import drawn
from tests.tokenizers import multilingual

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 1, "num_decoder_layers": 1}
SIZES |= {"norm_position": "pre", "embedding_scale": None}
M2M100 = SIZES | {"positions": choices.Sinusoidal("fairseq", 2), "activation": "relu"}
M2M100 |= {"embedding_norm": False, "output_bias": False}
TEXT, TRANSLATION = "The old man sees the house.", "A cat."


def folder(path, kind, **settings):
    """A folder of a translator of many languages; returns its net and parameters."""
    path.mkdir()
    rows = multilingual.make(path, kind)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    for file in files:
        (path / file).unlink()
    path.rmdir()
    config = families.bart(rows, **(SIZES | {"max_positions": 48} if kind == "mbart50" else M2M100))
    net = pure(models.EncoderDecoder, config)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    settings = multilingual.IDS | {"max_length": 9, "num_beams": 2} | settings
    interop.save_pretrained(path, net, params, family="mbart" if kind == "mbart50" else "m2m_100", settings=settings)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return net, params
