"""The table of families in the documentation is that of the code, and every family makes a model."""

import pathlib

import jax
import pytest

from jaxformer import models, pure
from jaxformer.models import families

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "families.md"
SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12}


def test_the_page_has_the_switches_of_the_code():
    assert families.table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["marian", "bart", "t5", "t5_v1_1", "bert", "roberta", "gpt2", "llama"])
def test_families_make_models(name):
    config = getattr(families, name)(13, **SIZES)
    network = {
        models.EncoderDecoderConfig: models.EncoderDecoder,
        models.LanguageModelConfig: models.LanguageModel,
        models.EncoderConfig: models.make_encoder,
    }[type(config)]
    shapes = pure(network, config).shapes
    dims = {x.shape[-1] for x in jax.tree.leaves(shapes)}
    assert 8 in dims
    assert getattr(families, name)(13, **SIZES | {"norm_position": "deep"}).norm_position == "deep"


def test_sizes_have_the_defaults_of_the_configuration():
    assert families.t5(13).output_scale == models.EncoderDecoderConfig.d_model**-0.5
    assert families.t5(13, d_model=64).output_scale == 0.125


def test_an_encoder_of_images():
    shapes = pure(models.make_encoder, families.vit((6, 4), patch_size=2, **SIZES)).shapes
    assert shapes["embeddings"]["positions"]["table"].shape == (7, 8)
