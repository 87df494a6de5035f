"""The transforms that settings ask for, and the sums of scored texts."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, models
from jaxformer.decoding.limits import well_formed
from jaxformer.errors import ConfigError
from jaxformer.tasks import search
from jaxformer.tasks.config import Beam, Sample
from jaxformer.tasks.search import Scored, VocabularyLimits, sampling_transforms
from jaxformer.tasks.translation.config import DecodeConfig
from jaxformer.tokenizers.special_tokens import SpecialTokens


def test_settings_are_transforms_in_the_order_of_hugging_face():
    """Temperature, then the filters; none for values without an effect."""
    assert sampling_transforms(Sample()) == []
    made = sampling_transforms(Sample(min_p=0.1, top_p=0.9, top_k=3, temperature=0.5))
    assert made == [decoding.temperature(0.5), decoding.top_k(3), decoding.top_p(0.9), decoding.min_p(0.1)]
    history = decoding.History(jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.arange(1))
    probs = np.exp(decoding.chain(*made)(jnp.log(jnp.array([[[0.4, 0.3, 0.2, 0.1]]])), history))
    np.testing.assert_allclose(probs, [[[16 / 29, 9 / 29, 4 / 29, 0]]], rtol=1e-5)


def test_a_scored_text():
    scored = Scored(("a", "b"), (-1.0, -2.0))
    assert (scored.log_prob, scored.mean) == (-3.0, -1.5)
    assert Scored((), ()).mean == 0.0


@pytest.mark.parametrize("renormalize", [False, True])
def test_the_probability_of_removed_tokens(renormalize):
    """Of padding, the begin token and the end before the minimum: lost, or shared by the others."""
    special = SpecialTokens()
    logits = jnp.asarray([[[1.0, 0.5, 2.0, 0.0, 1.5, -1.0]]])
    decode = DecodeConfig(search=Beam(renormalize=renormalize), min_length=3)
    options = SimpleNamespace(decode=decode, special=special, limits=VocabularyLimits(), ends=None)
    sources = SimpleNamespace(min_lengths=jnp.asarray([4]))
    history = decoding.History(jnp.zeros((1, 1, 4), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.arange(1))
    rules = search._rules(options, sources)
    limits = decoding.Limits(max_length=9, bos=special.bos, eos=special.eos, pad=special.pad)
    found = np.exp(decoding.chain(*well_formed(rules, limits, jnp.asarray([9])))(logits, history))[0, 0]
    kept = np.exp(np.asarray(logits[0, 0])) * [0, 0, 0, 1, 1, 1]
    whole = kept.sum() if renormalize else np.exp(np.asarray(logits[0, 0])).sum()
    np.testing.assert_allclose(found, kept / whole, rtol=1e-6)


def test_coverage_needs_attention():
    """The error is about a setting, so another try cannot help."""
    config = models.Seq2SeqConfig(12, 12, attention=None)
    options = SimpleNamespace(nets=[SimpleNamespace(config=config)])
    with pytest.raises(ConfigError, match=r"needs attention, and this model has model\.attention none"):
        search._covering(options, None, None)
