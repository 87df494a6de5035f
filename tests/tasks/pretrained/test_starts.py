"""The token with which a decoder begins: the family's, with the same probabilities."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import models, pure
from jaxformer.errors import ConfigError
from jaxformer.interop import equivalent
from jaxformer.models import families
from jaxformer.tasks.pretrained import starts
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.interop.small import drawn
from tests.modules.small import quick
from tests.selection import first

SIZES = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 1, "num_decoder_layers": 2}
PAIR = models.EncoderDecoderConfig(9, 9, **SIZES)
SPECIAL = SpecialTokens()  # padding 0, start 1, end 2
SOURCE, TARGET = np.array([[3, 8, 4, 5, 2], [8, 7, 6, 5, 2]]), np.array([[1, 7, 4], [1, 8, 5]])
NAMES = ["<pad>", "<s>", "</s>", "<unk>", *"abcde"]
TEMPLATE = {"type": "TemplateProcessing", "special_tokens": {"a": {"id": "a", "ids": [8], "tokens": ["a"]}}}
FORMS = [
    (norm, tie, kind)
    for norm in ("post", "pre")
    for tie in ("all", "none", "inputs", "decoder")
    for kind in ("BPE", "")
]


def vocabulary(kind):
    """The content of a ``tokenizer.json``: pieces with ids, or a list of pieces."""
    ids = {name: token for token, name in enumerate(NAMES)}
    model = {"vocab": ids} if kind else {"vocab": [[name, -1.0] for name in NAMES], "unk_id": 3}
    added = [{"id": 0, "content": "<pad>"}, {"id": 1, "content": "<s>"}]
    content = {"model": model, "added_tokens": added, "post_processor": {"processors": [TEMPLATE]}}
    return {starts.TOKENIZER: json.dumps(content).encode()}


def translator(config, special=SPECIAL, kind="BPE", family=""):
    net = pure(models.EncoderDecoder, config)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    found = equivalent.fitted(net, params, family=family)
    return net, params, starts.Translator(found, special, (), special.bos, vocabulary(kind))


@pytest.mark.parametrize("form", first(FORMS, ("post", "all", ""), ("pre", "none", "BPE")))
def test_decoders_begin_as_those_of_their_family(form):
    """With padding; that of a Marian has the last id and a vector of zeros."""
    norm, tie, kind = form
    config = dataclasses.replace(PAIR, norm_position=norm, tie_embeddings=tie)
    net, params, given = translator(config, kind=kind)
    found = starts.with_start_of_family(given)
    last = 8 if norm == "post" else 0
    assert (found.model.family, found.first, found.special.pad) == ("marian" if last else "pegasus", last, last)
    assert found.special.bos == 1
    if last:
        assert not found.model.params["decoder"]["embeddings"]["tokens"]["table"][last].any()
    moved = np.array([8, 1, 2, 3, 4, 5, 6, 7, 0]) if last else np.arange(9)
    rules = json.loads(found.files[starts.TOKENIZER])
    vocab = rules["model"]["vocab"]
    ids = vocab if kind else {piece: token for token, (piece, _) in enumerate(vocab)}
    assert ids == {name: moved[token] for token, name in enumerate(NAMES)}
    assert {token["content"]: token["id"] for token in rules["added_tokens"]} == {"<pad>": last, "<s>": 1}
    assert rules["post_processor"]["processors"][0]["special_tokens"]["a"]["ids"] == [0 if last else 8]
    target = moved[TARGET]
    target[:, 0] = found.first
    log_probs = lambda net, params, *tokens: jax.nn.log_softmax(quick(net.apply)(params, *map(jnp.asarray, tokens)))
    expected, got = log_probs(net, params, SOURCE, TARGET), log_probs(*found.model[1:], moved[SOURCE], target)
    usual = np.arange(2, 9)
    np.testing.assert_allclose(got[..., moved[usual]], expected[..., usual], rtol=1e-4, atol=2e-5)


def test_a_start_of_zeros_stays_as_it_is():
    """As of a published Marian."""
    net, params, given = translator(families.marian(9, **SIZES), SpecialTokens(pad=8, bos=8, eos=0, unk=1))
    table = params["decoder"]["embeddings"]["tokens"]["table"].at[8].set(0.0)
    params = params | {"decoder": params["decoder"] | {"embeddings": {"tokens": {"table": table}}}}
    given = given._replace(model=given.model._replace(params=params))
    found = starts.with_start_of_family(given)
    assert (found.model.net, found.first) == (net, 8)
    chex.assert_trees_all_equal(found.model.params, params)


REFUSED = {
    "mbart": (families.bart(9, **SIZES, norm_position="pre"), SPECIAL, "an mbart begins with the code of a language"),
    "pegasus": (
        dataclasses.replace(PAIR, norm_position="pre"),
        SpecialTokens(0, 2, 2, 3),
        "must not be tokens of texts",
    ),
    "t5": (families.t5(9, **SIZES), SpecialTokens(2, 1, 2, 3), "the decoder of a t5 begins with padding"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_other_starts_are_refused(family):
    config, special, message = REFUSED[family]
    *_, given = translator(config, special, family=family)
    with pytest.raises(ConfigError, match=message):
        starts.with_start_of_family(given)


def test_an_added_token_that_the_model_lacks_is_refused():
    """Its id follows from its place."""
    *_, given = translator(PAIR)
    rules = json.loads(given.files[starts.TOKENIZER])
    del rules["model"]["vocab"]["e"]
    given = given._replace(files={starts.TOKENIZER: json.dumps(rules).encode()})
    with pytest.raises(ConfigError, match="which this vocabulary with added tokens cannot express"):
        starts.with_start_of_family(given)
