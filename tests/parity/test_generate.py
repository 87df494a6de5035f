"""Searches against Hugging Face's `generate`, by models with the same weights: every hypothesis and its score."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import decoding, functional
from tests.decoding import searches
from tests.parity.copied import V, bart_like, read, t5

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity

BEAM, TOKENS, BATCH = 4, 9, 12
SOURCE = np.random.default_rng(0).integers(3, V, (BATCH, 7))
VALID = np.arange(7) < np.random.default_rng(1).integers(3, 8, (BATCH, 1))
STOPPING = {True: "first", False: "now", "never": "limit"}
RULES = {
    "plain": ({}, lambda eos: ()),
    "no repeats and a minimum": (
        {"no_repeat_ngram_size": 2, "min_new_tokens": 4},
        lambda eos: (decoding.no_repeat_ngram(2), decoding.min_length(5, eos=eos)),
    ),
    "words": (
        {"bad_words_ids": [[7], [9, 11], [5, 6, 8]]},
        lambda eos: (decoding.forbid_sequences([[7], [9, 11], [5, 6, 8]]),),
    ),
    "first token": ({"forced_bos_token_id": 10}, lambda eos: ()),
}


@functools.cache
def family(name):
    """Their model, our network and its parameters, and the ids that begin, end and pad."""
    model = t5("1.1") if name == "t5" else bart_like(name)
    bos, eos, pad = (0, 1, 0) if name == "t5" else (2, 2, 1)
    if name != "t5":  # ends are likely, so that the rules to stop differ
        with torch.no_grad():
            model.final_logits_bias[0, eos] += 3
    found = read(model)
    return model, found.net, found.params, (bos, eos, pad)


def theirs(model, ids, **options):
    """The hypotheses of each sentence without the first token, up to the end, with their scores."""
    bos, eos, pad = ids
    banned = [[pad], *options.pop("bad_words_ids", [])]
    settings = transformers.GenerationConfig(
        decoder_start_token_id=bos,
        eos_token_id=eos,
        pad_token_id=pad,
        bad_words_ids=banned,
        max_length=TOKENS + 1,
        num_return_sequences=options.get("num_beams", 1),
        return_dict_in_generate=True,
        output_scores=True,
        use_cache=True,
        **options,
    )
    given = {"input_ids": torch.tensor(SOURCE), "attention_mask": torch.tensor(VALID.astype(int))}
    model.generation_config = transformers.GenerationConfig()  # no rules of the family's own
    with torch.no_grad():
        found = model.generate(**given, generation_config=settings)
    cut = lambda row: tuple(row[: row.index(eos) + 1] if eos in row else row)
    rows = [cut(row) for row in found.sequences[:, 1:].tolist()]
    scores = found.sequences_scores.tolist() if options.get("num_beams", 1) > 1 else [0.0] * len(rows)
    number = options.get("num_beams", 1)
    return [(rows[i : i + number], scores[i : i + number]) for i in range(0, len(rows), number)]


def ours(name, search, *, beam_size, **options):
    """The hypotheses of each sentence, with their scores."""
    _, net, params, (bos, eos, pad) = family(name)

    @jax.jit
    def run(params, source, valid):
        model = net.bind(params)
        memory = model.encode(functional.Tokens(source, valid))
        context, state = model.start(memory, beam_size=beam_size, length=TOKENS)
        step = decoding.ContextStep(model.step, context)
        return search(step, state, max_length=TOKENS, bos=bos, eos=eos, pad=pad, **options)

    found = jax.device_get(run(params, jnp.asarray(SOURCE), jnp.asarray(VALID)))
    rows = [
        [tuple(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)]
        for tokens, lengths in zip(found.tokens, found.lengths, strict=True)
    ]
    return list(zip(rows, found.scores.tolist(), strict=True))


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("early", "forced"), list(itertools.product(STOPPING, (True, False))))
def test_beam_search(name, rules, early, forced):
    """Rules to stop, penalties, the forced end, and what is forbidden: ids are equal, and scores to 1e-5."""
    model, _, _, ids = family(name)
    options, transforms = RULES[rules]
    for penalty in (1.0, 0.6, 2.0) if rules == "plain" else (1.0,):
        given = {"num_beams": BEAM, "early_stopping": early, "length_penalty": penalty, **options}
        expected = theirs(model, ids, forced_eos_token_id=ids[1] if forced else None, **given)
        first = {"prefix": jnp.full((BATCH, 1), 10)} if rules == "first token" else {}
        found = ours(
            name,
            functools.partial(searches.beam_search, beam_size=BEAM),
            beam_size=BEAM,
            stopping=STOPPING[early],
            length_penalty=penalty,
            forced_end="free" if forced else "never",
            transforms=transforms(ids[1]),
            **first,
        )
        for (rows, scores), (own, own_scores) in zip(expected, found, strict=True):
            assert own == rows
            np.testing.assert_allclose(own_scores, scores, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
@pytest.mark.parametrize("beams", [1, BEAM])
def test_repetition_penalty(name, beams):
    """A greedy search changes logits, of both signs, and a beam log-probabilities; the first token counts."""
    model, _, _, ids = family(name)
    expected = theirs(model, ids, num_beams=beams, repetition_penalty=1.8, early_stopping=beams > 1)
    search = searches.greedy if beams == 1 else functools.partial(searches.beam_search, beam_size=beams)
    given = {} if beams == 1 else {"stopping": "first", "length_penalty": 1.0}
    transforms = (decoding.repetition_penalty(1.8, before=ids[:1], normalized=beams > 1),)
    found = ours(name, search, beam_size=beams, forced_end="never", transforms=transforms, **given)
    assert [own for own, _ in found] == [rows for rows, _ in expected]
    plain = theirs(model, ids, num_beams=beams, early_stopping=beams > 1)
    assert [rows for rows, _ in plain] != [rows for rows, _ in expected]


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
@pytest.mark.parametrize("rules", ["plain", "no repeats and a minimum", "words"])
def test_greedy_search(name, rules):
    model, _, _, ids = family(name)
    options, transforms = RULES[rules]
    expected = theirs(model, ids, **options)
    found = ours(name, searches.greedy, beam_size=1, forced_end="never", transforms=transforms(ids[1]))
    assert [own for own, _ in found] == [rows for rows, _ in expected]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "settings", [{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.7, "min_p": 0.1}]
)
def test_filters_of_sampling(temperature, settings):
    """The distribution from which a token is drawn: the same ids, the same log-probabilities to 1e-5."""
    logits = np.random.default_rng(2).normal(size=(3, 40, 60)).astype(np.float32) * 2
    warpers = transformers.LogitsProcessorList([transformers.TemperatureLogitsWarper(temperature)] * (temperature != 1))
    makers = {
        "top_k": (transformers.TopKLogitsWarper, decoding.top_k),
        "top_p": (transformers.TopPLogitsWarper, decoding.top_p),
        "min_p": (transformers.MinPLogitsWarper, decoding.min_p),
    }
    rules = [decoding.temperature(temperature)] * (temperature != 1)
    for key, value in settings.items():
        warpers.append(makers[key][0](value))
        rules.append(makers[key][1](value))
    expected = torch.log_softmax(warpers(None, torch.tensor(logits.reshape(-1, 60))), -1).numpy().reshape(logits.shape)
    history = decoding.History(jnp.zeros((3, 40, 1), jnp.int32), jnp.zeros((3, 40), jnp.int32), jnp.arange(3))
    found = np.asarray(decoding.chain(*rules)(jnp.asarray(logits), history))
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    kept = np.isfinite(expected)
    assert 0.01 < kept.mean() < 0.9
    np.testing.assert_allclose(found[kept], expected[kept], atol=1e-5)
