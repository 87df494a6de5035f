"""Equivalent parameters of a model in a Hugging Face family."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import interop, models, pure
from jaxformer.errors import ConfigError
from jaxformer.interop import equivalent
from jaxformer.models import choices, families
from tests.interop.small import NETS, drawn
from tests.modules.small import quick
from tests.selection import first

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12}
PAIR = models.EncoderDecoderConfig(9, 9, **SIZES, num_encoder_layers=1, num_decoder_layers=1)
STACKED = SIZES | {"num_layers": 1}
STACK = models.LanguageModelConfig(9, **SIZES, num_layers=1, positions=choices.Learned())
SOURCE, TARGET = jnp.asarray([[3, 1, 4, 1, 5], [8, 2, 6, 5, 3]]), jnp.asarray([[2, 7, 1], [8, 2, 8]])

FORMS = {
    "pegasus": (models.EncoderDecoder, dataclasses.replace(PAIR, norm_position="pre")),
    "marian": (models.EncoderDecoder, dataclasses.replace(PAIR, norm_position="post", activation="relu")),
    "bert": (models.MaskedLanguageModel, dataclasses.replace(families.bert(9, **STACKED), num_token_types=0)),
    "gpt2": (models.LanguageModel, STACK),
    "gpt2 with biases": (models.LanguageModel, dataclasses.replace(STACK, attention_bias=True, embedding_scale=2.0)),
}


@pytest.mark.parametrize("name", first(FORMS, "bert", "gpt2"))
def test_a_model_of_the_defaults_has_a_family(tmp_path, name):
    """The model read from the folder computes the same."""
    net = pure(*FORMS[name])
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    found = equivalent.fitted(net, params)
    assert found.family == name.partition(" ")[0]
    interop.save_pretrained(tmp_path / "model", found.net, found.params, family=found.family)
    again = interop.load_pretrained(tmp_path / "model")
    given = (SOURCE, TARGET) if net.model is models.EncoderDecoder else (SOURCE,)
    expected = quick(net.apply)(params, *given)
    np.testing.assert_allclose(quick(again.net.apply)(again.params, *given), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["bart", "marian", "t5", "gpt2", "llama", "qwen2", "bert masked"])
def test_a_model_of_a_family_is_not_changed(name):
    net = NETS[name]
    params = drawn(net)
    found = equivalent.fitted(net, params)
    assert found.family == name.partition(" ")[0]
    assert (found.net, found.params) == (net, params)


def test_a_model_with_the_biases_of_a_qwen2_is_a_llama():
    """Whose output has a bias, too: zeros."""
    net = NETS["qwen2"]
    params = drawn(net)
    found = equivalent.fitted(net, params, family="llama")
    assert found.net.config.attention_output_bias is None
    np.testing.assert_array_equal(quick(found.net.apply)(found.params, SOURCE), quick(net.apply)(params, SOURCE))


def test_a_model_of_no_family_is_refused():
    net = pure(models.LanguageModel, dataclasses.replace(STACK, positions=choices.Alibi()))
    with pytest.raises(ConfigError, match=r"no family of Hugging Face can express this model: gpt2 .*; llama "):
        equivalent.fitted(net, drawn(net))
    net = pure(models.LanguageModel, dataclasses.replace(STACK, embedding_scale=0.0))
    with pytest.raises(ConfigError, match=r"gpt2 cannot express embedding_scale=0\.0"):
        equivalent.fitted(net, drawn(net))
    with pytest.raises(ConfigError, match=r"^mistral has no settings for this model"):
        equivalent.fitted(NETS["gpt2"], drawn(NETS["gpt2"]), family="mistral")
    with pytest.raises(ConfigError, match=r"'gpt3' is not known; did you mean 'gpt2'\?"):
        equivalent.fitted(NETS["gpt2"], drawn(NETS["gpt2"]), family="gpt3")
    with pytest.raises(ConfigError, match=r"a bart is not a LanguageModel; its families are gpt2, llama"):
        equivalent.fitted(NETS["gpt2"], drawn(NETS["gpt2"]), family="bart")
    masked = pure(
        models.MaskedLanguageModel, dataclasses.replace(families.roberta(9, **STACKED), positions=choices.Learned())
    )
    with pytest.raises(ConfigError, match=r"^roberta has no settings for this model: its positions start at 0"):
        equivalent.fitted(masked, drawn(masked), family="roberta")
    classifier = NETS["vit classifier"]
    with pytest.raises(ConfigError, match="no family of Hugging Face is known for a VisionTransformer"):
        equivalent.fitted(classifier, drawn(classifier))
