"""CHECKLIST section T for models and losses: teacher forcing, likelihood, the gradient through scaling."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional, masks, models
from jaxformer.data.batch import Batch
from jaxformer.inspection.attention_maps import AttentionWeights, as_table, select
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.models.small import model
from tests.modules.small import normal
from tests.training import copying

SPECIAL = SpecialTokens()
PAIRS = Batch.from_tokens(
    [np.array([3, 4, 5, 6, 7]), np.array([9, 3, 8])], [np.array([5, 6, 7]), np.array([8, 4, 3])], (2, 6, 4), SPECIAL
)
INPUT, REFERENCE = jnp.asarray(PAIRS.target.ids), jnp.asarray(PAIRS.labels)
SOURCE = jax.tree.map(jnp.asarray, PAIRS.source)


def test_t1_teacher_forcing():
    """The input is BOS, y_1 .. y_(T-1), the labels y_1 .. y_T, where y_T is EOS.

    Row t is conditioned on the correct prefix, even after an error: it equals a separate run on that prefix. The toy
    target y_1:4 of the document omits EOS.
    """
    assert INPUT.tolist() == [[1, 5, 6, 7], [1, 8, 4, 3]]
    assert REFERENCE.tolist() == [[5, 6, 7, 2], [8, 4, 3, 2]]
    small = model("post")
    logits = small.logits(SOURCE, INPUT)
    assert (np.asarray(logits[:, 0]).argmax(-1) != REFERENCE[:, 0]).any()  # the model errs, and the input does not
    for t in (2,):
        fresh = small.logits(SOURCE, jnp.concatenate([INPUT[:, :1], REFERENCE[:, :t]], 1))
        np.testing.assert_allclose(fresh[:, t], logits[:, t], atol=2e-5)


def test_t3_the_toy_pair_is_overfitted():
    """ "Je suis \u00e9tudiant" -> "I am a student": the trained model says it word by word; H_enc has one state a word.

    Each step has one row of cross-attention over the source, which can be read beside its words.
    """
    words = "Je suis \u00e9tudiant I am a student".split()
    source, target = np.arange(4, 7), np.arange(7, 11)
    pair = copying.batch([source], [target])
    params = copying.train(lambda start: itertools.repeat(pair), 60)
    assert float(copying.mean_loss(params, pair)) < 0.05
    said = np.asarray(copying.translate(params, pair))[0]
    assert [words[token - 4] for token in said[: len(target)]] == ["I", "am", "a", "student"]
    assert said[len(target)] == SPECIAL.eos
    network = copying.NET.bind(params)
    assert network.encode(jnp.asarray(source)[None]).states.shape == (1, 3, 16)
    captured = network.captured(
        jnp.asarray(source)[None], jnp.asarray(pair.target.ids[:1, :5]), names=("decoder.cross",)
    )
    weights = np.asarray(captured["decoder.cross"].layer(0).weights())
    shown = select(AttentionWeights(tuple(words[:3]), (*words[3:], "</s>"), weights), layer=0)
    lines = [line.split() for line in as_table(shown).splitlines()]
    assert lines[0] == [*words[:3], "|", "sum", "entropy"]
    assert [line[0] for line in lines[1:]] == ["I", "am", "a", "student", "</s>"]
    assert all(line[5] == "1.000" and float(line[6]) <= 1.099 for line in lines[1:])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("the cat sat", "le chat s'assit"),
        pytest.param("we are eating bread", "estamos comiendo pan", marks=pytest.mark.full),
        pytest.param("le chat est assis", "the cat sat", marks=pytest.mark.full),
    ],
    ids=["English to French", "English to Spanish", "French to English"],
)
def test_t4_directions(source, target):
    """A pair of any two languages is learned by the same network; an answer may be shorter than its source."""
    words = [*source.split(), *target.split()]
    ids = np.arange(4, 4 + len(words), dtype=np.int32)
    num_source = len(source.split())
    pair = copying.batch([ids[:num_source]], [ids[num_source:]])
    params = copying.train(lambda start: itertools.repeat(pair), 60)
    said = np.asarray(copying.translate(params, pair))[0].tolist()
    end = said.index(SPECIAL.eos)
    assert " ".join(words[token - 4] for token in said[:end]) == target


def test_t5_from_text_to_a_padded_batch():
    """CHECKLIST T5: text becomes ids, batches are padded, and BOS, EOS and PAD have ids that no text is given."""
    lines = ["The cat sat", "The cat sat on the mat"]
    tokenizer = SubwordTokenizer.train(lines * 20, vocab_size=272)
    special = tokenizer.special
    assert len(special.ids) == 4
    short, long = tokenizer.encode(lines)
    batch = Batch.from_tokens([short, long], [long, short], (3, len(long) + 1, len(long) + 1), special)
    assert batch.source.ids[0].tolist() == [*short, special.eos, *[special.pad] * (len(long) - len(short))]
    np.testing.assert_array_equal(batch.source.valid, batch.source.ids != special.pad)
    assert batch.target.ids[0].tolist() == [special.bos, *long]
    assert batch.labels[0].tolist() == [*long, special.eos]
    assert (batch.target.valid.sum(1) == [len(long) + 1, len(short) + 1, 0]).all()
    assert [
        tokenizer.decode(row[valid][:-1]) for row, valid in zip(batch.labels[:2], batch.target.valid[:2], strict=True)
    ] == lines[::-1]


def test_t2_parallel_likelihood_is_sequential():
    """NLL = -sum_t log p(y_t | y_<t, x) in parallel equals the sum step by step with the cache."""
    small = model("post")
    logits = small.logits(SOURCE, INPUT)
    total, count = functional.cross_entropy(logits, REFERENCE)
    memory = small.call(models.EncoderDecoder.encode, small.params, SOURCE)
    context, state = small.call(models.EncoderDecoder.start, small.params, memory, beam_size=1, length=4)
    sequential = 0.0
    for t in range(4):
        row, state = small.call(models.EncoderDecoder.step, small.params, INPUT[:, t : t + 1], state, context)
        log_p = np.asarray(jax.nn.log_softmax(row[:, 0]), np.float64)
        sequential -= log_p[np.arange(2), np.asarray(REFERENCE[:, t])].sum()
    assert int(count) == 8
    np.testing.assert_allclose(total, sequential, rtol=1e-5)


def test_t7_without_the_mask_the_answer_is_in_the_input():
    """The label of row t is at t + 1 of the input: unmasked attention can copy it, causal attention cannot."""
    x = normal(5, 8)
    target = x[1:]  # each row predicts the content of the next row
    key = jnp.eye(8)[:5]
    shifted = jnp.roll(key, -1, 0)  # each query asks for the next position
    unmasked, _ = functional.attention_head(shifted * 50, key, x)
    np.testing.assert_allclose(unmasked[:4], target, atol=1e-4)
    masked, weights = functional.attention_head(shifted * 50, key, x, mask=masks.causal())
    assert np.abs(np.asarray(masked[:4] - target)).max(-1).min() > 0.1
    assert not np.triu(weights, 1).any()


def test_t9_scaling_keeps_the_gradient():
    """At d = 512 unscaled softmax saturates: the gradient that reaches the queries almost vanishes."""
    query, key, value = (normal(20, 512, seed=i) for i in range(3))

    def slope(scale):
        loss = lambda q: jnp.sum(functional.attention_head(q, key, value, scale=scale)[0] * value)
        return float(jnp.median(jnp.linalg.norm(jax.grad(loss)(query), axis=-1) / scale))

    assert slope(512**-0.5) > 20 * slope(1.0)
