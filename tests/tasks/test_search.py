"""The transforms that settings ask for, and the sums of scored texts."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, demo
from jaxformer.data.tokenizer import SubwordTokenizer
from jaxformer.errors import ConfigError
from jaxformer.tasks.config import GenerationConfig
from jaxformer.tasks.search import Scored, sampling_transforms, vocabulary_of


def test_settings_are_transforms_in_the_order_of_hugging_face():
    """Temperature, then the filters; nothing for the values that change nothing."""
    assert sampling_transforms(GenerationConfig()) == []
    made = sampling_transforms(GenerationConfig(min_p=0.1, top_p=0.9, top_k=3, temperature=0.5))
    assert made == [decoding.temperature(0.5), decoding.top_k(3), decoding.top_p(0.9), decoding.min_p(0.1)]
    history = decoding.History(jnp.zeros((1, 1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.arange(1))
    probs = np.exp(decoding.chain(*made)(jnp.log(jnp.array([[[0.4, 0.3, 0.2, 0.1]]])), history))
    np.testing.assert_allclose(probs, [[[16 / 29, 9 / 29, 4 / 29, 0]]], rtol=1e-5)


def test_a_scored_text():
    scored = Scored(("a", "b"), (-1.0, -2.0))
    assert (scored.log_prob, scored.mean) == (-3.0, -1.5)
    assert Scored((), ()).mean == 0.0


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_forbidden_words_in_any_segmentation(kind):
    """After a space or not; each sequence spells the word, and every sampled segmentation is among them."""
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(300)], vocab_size=380, kind=kind)
    found = set(vocabulary_of(GenerationConfig(forbid="house, old man"), tokenizer).sequences)
    assert {tokenizer.decode(ids) for ids in found} == {"house", " house", "old man", " old man"}
    alpha = 0.1 if kind == "unigram" else 0.5
    drawn = {tuple(tokenizer.sample([" house"], seed=seed, alpha=alpha)[0].tolist()) for seed in range(50)}
    assert len(drawn) > 1
    assert drawn <= found
    with pytest.raises(ConfigError, match=r"can be segmented in more than 4,096 ways"):
        vocabulary_of(GenerationConfig(forbid="the old man sees the house and the sea " * 3), tokenizer)


def test_the_pieces_of_a_shortlist(tmp_path):
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(300)], vocab_size=380)
    (tmp_path / "words").write_text("house man\n")
    allowed = vocabulary_of(GenerationConfig(shortlist=str(tmp_path / "words")), tokenizer).allowed
    pieces = {int(t) for text in ("house", " house", "man", " man") for t in tokenizer.encode([text])[0]}
    assert set(allowed) == pieces | {tokenizer.special.eos}
    assert vocabulary_of(GenerationConfig(), tokenizer) == ((), (), ())
