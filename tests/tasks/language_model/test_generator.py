"""The text generator: windows, draws, beams, ensembles, and a model without the causal mask."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer import demo, models
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import choices
from jaxformer.modules.pure import pure
from jaxformer.tasks.language_model import Beam, DecodeConfig, Greedy, MinimumRisk, Sample, TextGenerator
from jaxformer.tasks.language_model import generator as module
from jaxformer.tasks.search import Scored
from jaxformer.tokenizers.characters import CharacterTokenizer
from tests.modules.small import drawn, quick
from tests.selection import first

TEXT = "\n".join(pair.english for pair in demo.generate(120))


@pytest.fixture(scope="module")
def generator():
    tokenizer = CharacterTokenizer.train([TEXT])
    config = models.LanguageModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=16, num_heads=2, d_ff=32, num_layers=1, max_positions=12
    )
    net = pure(models.LanguageModel, config)
    return TextGenerator(net, quick(net.init)(jax.random.key(0)), tokenizer, DecodeConfig(max_tokens=30), window=12)


def test_prompts_are_continued(generator):
    """Also beyond the window: by the requested number of tokens, none of them special."""
    told = []
    texts = generator.generate(["The old man", "", "S"], progress=told.append)
    assert sum(told) == 90
    assert [len(text) for text in texts] == [len("The old man") + 30, 30, 31]
    assert texts[0].startswith("The old man")
    assert texts[2].startswith("S")


@pytest.mark.parametrize(
    "search",
    first([Greedy(), Sample(), Beam(beam_size=2)], Sample()),
)
def test_a_continuation_stops_at_any_of_several_tokens(generator, search):
    """The ends are left out of the text, and may be chosen in addition to a shortlist."""
    plain = DecodeConfig(max_tokens=6, search=search)
    ((whole,),) = dataclasses.replace(generator, decode=plain).continuations(["The"])
    ends = whole.tokens[3], whole.tokens[1], generator.tokenizer.special.eos
    given = ",".join(map(str, ends))
    stops = dataclasses.replace(generator, decode=dataclasses.replace(plain, stop_at_end=True, eos_token_ids=given))
    ((found,),) = stops.continuations(["The"])
    assert not set(found.tokens[:-1]) & {*ends}
    if not isinstance(search, Beam):
        assert found.tokens == whole.tokens[: 1 + min(whole.tokens.index(end) for end in ends[:2])]
        assert found.text == "The" + generator.tokenizer.decode(found.tokens[:-1])


@pytest.mark.full
def test_a_search_without_jit_runs_on_values(generator, monkeypatch):
    """So that a debugger sees them; the text is the same. It compiles 376 operations, one by one."""
    seen, apply = [], models.LanguageModel.step

    def step(self, tokens, *arguments, **options):
        seen.append(isinstance(tokens, jax.core.Tracer))
        return apply(self, tokens, *arguments, **options)

    own = with_settings(generator, search=Greedy(), max_tokens=2)
    expected = own.generate(["The"])
    monkeypatch.setattr(models.LanguageModel, "step", step)
    with jax.disable_jit():
        assert own.generate(["The"]) == expected
    assert len(seen) >= 2
    assert not any(seen)


def test_ends_are_tokens_of_the_vocabulary(generator, tmp_path):
    given = DecodeConfig(stop_at_end=True, eos_token_ids=f"4,{generator.tokenizer.vocab_size}")
    with pytest.raises(ConfigError, match=f"decode.eos_token_ids must be below {generator.tokenizer.vocab_size}"):
        dataclasses.replace(generator, decode=given).generate(["The"])
    (tmp_path / "words").write_text("The\n")
    short = DecodeConfig(stop_at_end=True, eos_token_ids="4, 5", shortlist=str(tmp_path / "words"))
    limits = dataclasses.replace(generator, decode=short)._limits
    assert {4, 5} < {*limits.allowed}
    assert not {4, 5} & {*limits.forbidden}
    assert generator.tokenizer.special.eos in limits.forbidden


apply = quick(lambda net, *args: net.apply(*args), static_argnums=0)


def logits_of(generator, ids):
    """The logits after these tokens, in one program for all lengths: no token sees what comes after it."""
    tokens = np.pad(np.array([ids], np.int32), ((0, 0), (0, 12 - len(ids))))
    return np.array(apply(generator.net, generator.params, tokens))[0, len(ids) - 1]


@pytest.mark.full
def test_a_window_of_one_token(generator):
    """A model that reads one token continues a text, too: each token follows from the one before."""
    one = dataclasses.replace(generator, window=1, decode=DecodeConfig(max_tokens=5, search=Greedy()))
    text = one.generate(["She"])[0]
    assert len(text) == 8
    last = generator.tokenizer.encode([text])[0][-2:]
    logits = logits_of(generator, last[:1])
    logits[sorted(generator.tokenizer.special.ids)] = -np.inf
    assert int(logits[: generator.tokenizer.vocab_size].argmax()) == last[1]
    said = []
    one.continuations(["She"], first=4, warn=said.append)
    assert said == ["text 5 has 3 tokens, and the window of the model 1; only the last 1 are read"]


def test_greedy_takes_the_most_probable_character(generator):
    """With a temperature of 0, against the full forward pass, character by character."""
    greedy = dataclasses.replace(generator, decode=DecodeConfig(max_tokens=6, search=Greedy()))
    ids = generator.tokenizer.encode(["She"])[0].tolist()
    special = sorted(generator.tokenizer.special.ids)
    for _ in range(6):
        logits = logits_of(generator, ids)
        logits[special] = -np.inf
        ids.append(int(logits.argmax()))
    assert greedy.generate(["She"]) == [generator.tokenizer.decode(ids)]


def test_unknown_characters_are_named(generator):
    """With the number of the text, which continues from batch to batch."""
    with pytest.raises(DataError, match="text 2: the model's vocabulary has no 'é', '雨'"):
        generator.generate(["The", "é雨The"])
    said = []
    generator.score(["The", "é雨The"], first=65, warn=said.append)
    assert said == ["text 66: the model's vocabulary has no 'é', '雨'; left out"]
    with pytest.raises(DataError, match="text 70:"):
        generator.generate(["é"], first=69)


def test_short_texts_are_not_scored_at_the_length_of_the_window(generator, monkeypatch):
    """Which takes many times as long, with the same result."""
    sizes, log_probs = [], module._log_probs
    monkeypatch.setattr(module, "_log_probs", lambda *given: sizes.append(given[-1].shape[1]) or log_probs(*given))
    long, short = (list(generator.score([text])[0].token_log_probs) for text in ("The old man sees", "The o"))
    np.testing.assert_allclose(short, long[:4], rtol=1e-4)
    assert sizes == [13, 5, 5]


@pytest.mark.full
def test_an_empty_prompt_of_a_vocabulary_without_line_breaks(few):
    """Or without spaces: no character is reported, and none of the generated ones is left out."""
    greedy = with_settings(few, search=Greedy(), max_tokens=5)
    (found,) = greedy.continuations([""])
    assert found[0].text == few.tokenizer.decode(found[0].tokens)
    assert len(found[0].text) == 5
    assert few.score([""]) == [Scored((), ())]


def test_an_empty_text_is_only_its_start_token(few, monkeypatch):
    """Where the tokenizer has one, as Llama's: no line break is scored, and none precedes a continuation."""
    monkeypatch.setattr(few.tokenizer, "start", (few.tokenizer.special.bos,))
    seen = []
    monkeypatch.setattr(TextGenerator, "_grown", lambda self, texts, progress: seen.extend(texts) or texts)
    few.continuations(["", "a"])
    assert [text.ids for text in seen] == [[1], [1, 4]]
    assert few.score([""]) == [Scored((), ())]


def test_one_text_is_not_a_list_of_prompts(generator):
    """Each of its characters would be a prompt."""
    with pytest.raises(TypeError, match=r"write \[text\]"):
        generator.generate("The")


def with_settings(generator, **settings):
    return dataclasses.replace(generator, decode=DecodeConfig(**settings))


@pytest.fixture(scope="module")
def few():
    """A generator of four characters with unequal probabilities, small enough to enumerate."""
    tokenizer = CharacterTokenizer("abcd")
    shape = {
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 32,
        "num_layers": 1,
        "max_positions": 12,
        "positions": choices.Learned(),
    }
    net = pure(models.LanguageModel, models.LanguageModelConfig(vocab_size=tokenizer.vocab_size, **shape))
    return TextGenerator(net, drawn(net.shapes, 1.0), tokenizer, DecodeConfig(), window=12)


def log_prob(generator, text, start):
    """The log-probability of the tokens of a text after its first ones."""
    return sum(generator.score([text])[0].token_log_probs[start - 1 :])


@pytest.mark.full
def test_more_continuations_than_are_found_are_refused(few):
    for search, n_best, said in (
        (Beam(beam_size=2), 3, "at most beam_size = 2, got 3"),
        (Greedy(), 2, "at most beam_size = 1"),
        (MinimumRisk(num_candidates=3), 4, "at most num_candidates = 3"),
        (Sample(), 0, "n_best must be at least 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            with_settings(few, search=search).continuations(["a"], n_best=n_best)
    with pytest.raises(ConfigError, match="may have 13 tokens, the model's window, got 14"):
        with_settings(few, search=Beam(beam_size=2), max_tokens=12).generate(["ab"])
    assert len(with_settings(few, search=Beam(beam_size=2), max_tokens=11).generate(["ab"])[0]) == 13


@pytest.mark.parametrize("normalization", first(["tokens", "words", "gnmt"], "words"))
def test_scores_of_a_beam_are_those_that_ranked_it(few, monkeypatch, normalization):
    """By the formula of its normalization, without the tokens of the prompt, which have no log-probability."""
    search, own = TextGenerator._search, {}

    def kept(generator, *given):
        for text, length, found in search(generator, *given):
            rows = zip(found.tokens, found.lengths, found.scores, strict=True)
            own.update((tuple(ids[length:n].tolist()), score) for ids, n, score in rows)
            yield text, length, found

    monkeypatch.setattr(TextGenerator, "_search", kept)
    beam = Beam(beam_size=4, normalization=normalization, stopping="limit")
    ends = few.tokenizer.encode(["bd"])[0].tolist()
    given = {"max_tokens": 6, "stop_at_end": True, "eos_token_ids": ",".join(map(str, ends))}
    (found,) = with_settings(few, search=beam, **given).continuations(["acc"], n_best=4)
    lengths = np.array([len(one.tokens) for one in found])
    counted = {
        "tokens": lengths,
        "words": np.maximum(lengths - [one.tokens[-1] in ends for one in found], 1),
        "gnmt": (5 + lengths) / 6,
    }
    scores = [one.score for one in found]
    assert len({*lengths}) > 1
    np.testing.assert_allclose(scores, [one.log_prob for one in found] / counted[normalization], rtol=1e-5)
    np.testing.assert_allclose(scores, [own[one.tokens] for one in found], rtol=1e-5)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("search", first([Sample(), Beam(beam_size=2)], Sample()))
def test_many_texts_are_in_several_programs(few, monkeypatch, search):
    """Which run at once if there are threads; they have one shape, and the texts of a single program."""
    prompts = ["ab", "c", "abcd", "d", "ba", "cab", "dd"]
    tokens, rows = {}, {}
    monkeypatch.setattr("jaxformer.tasks.language_model.generator.ROWS", 4)
    for threads in (1, 2):
        monkeypatch.setattr(TextGenerator, "_num_threads", threads)
        own = with_settings(few, max_tokens=7, search=search)
        assert own.batch_size == 4 * threads
        tokens[threads] = [[one.tokens for one in best] for best in own.continuations(prompts, n_best=2)]
        rows[threads] = [shapes[0] for _, *shapes in own.programs]
    assert tokens[1] == tokens[2]
    assert rows == {1: [(16 if isinstance(search, Sample) else 8,)], 2: [(4,)]}


@pytest.mark.full
def test_minimum_bayes_risk_chooses_among_the_draws(few):
    """The one most similar to the others; its score is its expected utility."""
    sampling = Sample(temperature=3.0, seed=3)
    risk = MinimumRisk(num_candidates=6, candidates=sampling)
    prompts = ["ab", "ba", "cd", "d"]
    draws = with_settings(few, search=sampling, max_tokens=8).continuations(prompts, n_best=6)
    by_risk = with_settings(few, search=risk, max_tokens=8).continuations(prompts, n_best=6)
    assert [[one.text for one in best] for best in draws] != [[one.text for one in best] for best in by_risk]
    for some, ranked in zip(draws, by_risk, strict=True):
        assert sorted(one.text for one in ranked) == sorted(one.text for one in some)
        assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
        assert 0 < ranked[-1].score < ranked[0].score <= 100


@pytest.mark.full
@pytest.mark.parametrize("average", first(["log", "probability"], "log"))
def test_ensembles(few, average):
    """Two equal models act as one; two models choose by their mean, which `score` gives, also with other shapes."""
    one = with_settings(few, search=Greedy(), max_tokens=4, average=average)
    twins = one.ensemble_with([one])
    assert twins.generate(["ab", "c"]) == one.generate(["ab", "c"])
    other = dataclasses.replace(one, params=drawn(one.net.shapes, 0.7))
    deeper = pure(models.LanguageModel, dataclasses.replace(one.net.config, num_layers=2))
    deeper = dataclasses.replace(one, net=deeper, params=drawn(deeper.shapes, 0.7), window=9)
    for member, window in ((other, 12), (deeper, 9)):
        both = one.ensemble_with([member])
        assert both.window == window
        beam = dataclasses.replace(both, decode=dataclasses.replace(both.decode, search=Beam(beam_size=3)))
        for best in beam.continuations(["ab", "c"], n_best=3):
            assert best[0].log_prob >= best[1].log_prob
            for found in best:
                scored = both.score([found.text])[0].token_log_probs[-4:]
                np.testing.assert_allclose(found.token_log_probs, scored, rtol=1e-4, atol=1e-5)
        singles = np.array([x.score(["abcd"])[0].token_log_probs for x in (one, member)])
        mean = singles.mean(0) if average == "log" else np.log(np.exp(singles).mean(0))
        together = np.array(both.score(["abcd"])[0].token_log_probs)
        if average == "probability":
            np.testing.assert_allclose(together, mean, rtol=1e-4, atol=1e-5)
        else:  # normalized again
            assert (together > mean - 1e-5).all()
            assert np.abs(together - mean).max() > 1e-4
    strange = dataclasses.replace(one, tokenizer=CharacterTokenizer("abce"))
    with pytest.raises(ConfigError, match="must have one tokenizer; that of model 2 differs"):
        one.ensemble_with([strange])


@pytest.mark.full
def test_forbidden_words_do_not_occur(few):
    """In any draw, neither within a text nor across the end of its prompt."""
    free = with_settings(few, search=Sample(temperature=3.0), max_tokens=40)
    text = "".join(one.text for one in free.continuations(["b"], n_best=4)[0])
    pair, three = text[1:3], text[10:13]
    kept = with_settings(few, search=Sample(temperature=3.0), max_tokens=40, forbid=f"{pair}, {three}")
    for one in kept.continuations([pair[0]], n_best=8)[0]:
        assert pair not in one.text
        assert three not in one.text


@pytest.mark.full
def test_a_cache_of_half_the_size(few):
    """Nearly the same log-probabilities, but not exactly."""
    settings = {"search": Beam(beam_size=4), "max_tokens": 6}
    whole, half = (
        with_settings(few, cache_dtype=kind, **settings).continuations(["ab"], n_best=4)[0]
        for kind in ("model", "bfloat16")
    )
    difference = np.abs(np.array([one.log_prob for one in whole]) - [one.log_prob for one in half])
    assert 0 < difference.max() < 0.3
