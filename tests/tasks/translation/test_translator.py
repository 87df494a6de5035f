"""Properties of a translator that need no training."""

import copy
import dataclasses
import functools
import math
import re

import jax
import numpy as np
import pytest
import scipy.special

from jaxformer import demo, models, pure, sharding
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional import Tokens
from jaxformer.models import choices
from jaxformer.modules import head
from jaxformer.sharding import Placement
from jaxformer.tasks.translation import Beam, Sample, Translator
from jaxformer.tasks.translation import translator as implementation
from jaxformer.tokenizers.normalization import TextNormalizer, with_normalizer
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.modules.small import drawn, int32, quick
from tests.tasks.translation.translators import SENTENCES, translator, with_settings

ALL = Placement(sharding.mesh())


def test_order_and_empty_sentences():
    """Each sentence has the same translation alone and in any batch."""
    one = translator()
    together = one.candidates(SENTENCES, n_best=2)
    assert [c.text for c in together[1]] == ["", ""]
    for sentence, found in zip(SENTENCES, together, strict=True):
        alone = one.candidates([sentence], n_best=2)[0]
        assert [c.tokens for c in alone] == [c.tokens for c in found]
        np.testing.assert_allclose([c.score for c in alone], [c.score for c in found], rtol=1e-4, atol=1e-5)


def test_a_translation_is_one_line(monkeypatch):
    """Bytes can spell line ends or tabs, and a sentence of spaces has no translation."""
    monkeypatch.setattr(SubwordTokenizer, "decode", lambda self, ids: "a\nb\r\tc\0d\u2028e\x85f")
    assert translator().translate(["She sings.", " \u3000"]) == ["a b  c d e f", ""]


def test_one_text_is_not_a_list_of_sentences():
    """Each of its characters would be a sentence."""
    for run, texts in ((translator().translate, ["the"]), (translator().alignments, ["the", ["x"]])):
        with pytest.raises(TypeError, match=r"write \[text\]"):
            run(*texts)


def test_limits_on_length():
    one = translator()
    for sentence, (best,) in zip(SENTENCES, one.candidates(SENTENCES), strict=True):
        assert len(best.tokens) <= len(one.tokenizer.encode([sentence])[0]) + 1 + 5


@pytest.mark.full
def test_every_device_has_a_sentence():
    """A batch of two on eight devices would have six of them search for nothing."""
    seen = []
    dataclasses.replace(translator(), placement=ALL).translate(SENTENCES[:1] * 10, progress=seen.append)
    assert seen == [8, 2]


@pytest.mark.full
def test_draws_with_a_prefix_and_lengths():
    """A draw is a function of the seed and the sentence's number; prefix, lengths and repeats follow the settings."""
    draws = Sample(top_p=0.9, seed=3)
    settings = {"search": draws, "min_length": 4, "max_length": 12, "no_repeat_ngram_size": 1}
    one, prefix = with_settings(translator(), **settings), "The "
    together = one.candidates(SENTENCES, n_best=2, prefixes=[prefix] * 5)
    alone = one.candidates([SENTENCES[3]], n_best=2, first=4, prefixes=[prefix])
    for number in (0, 1, 6):
        with pytest.raises(ValueError, match=f"a prefix for each of 5 sentences, got {number}"):
            one.candidates(SENTENCES, prefixes=[prefix] * number)
    assert [c.tokens for c in alone[0]] == [c.tokens for c in together[3]]
    np.testing.assert_allclose([c.log_prob for c in alone[0]], [c.log_prob for c in together[3]], rtol=1e-4)
    given = one.tokenizer.encode([prefix])[0].tolist()
    drawn = [c for i in (0, 2, 3) for c in together[i]]
    assert len({c.tokens for c in drawn}) == 6
    for c in drawn:
        assert list(c.tokens[: len(given)]) == given
        assert 4 <= len(c.tokens) < 12
        assert len(set(c.tokens)) == len(c.tokens)
        assert len(c.token_log_probs) == len(c.tokens) + 1
        np.testing.assert_allclose(sum(c.token_log_probs), c.log_prob, rtol=1e-4)
    other = with_settings(one, search=dataclasses.replace(draws, seed=4)).candidates(
        SENTENCES[3:4], n_best=2, first=4, prefixes=[prefix]
    )
    assert [c.tokens for c in other[0]] != [c.tokens for c in alone[0]]


def test_a_prefix_that_leaves_no_room_is_refused():
    one, prefixes = with_settings(translator(), max_length=12), ["The old man sees " * 9]
    with pytest.raises(ConfigError, match=r"sentence 2: the prefix has \d+ tokens, but a translation may have 12 with"):
        one.candidates(SENTENCES[:1], first=2, prefixes=prefixes)


@pytest.mark.full
@pytest.mark.parametrize("average", ["log", "probability"])
def test_ensembles(average):
    """Two equal models act as one; models of equal or other shapes choose by their mean, as in `score`."""
    one = with_settings(translator(), average=average)
    twins = one.ensemble_with([one])
    for own, both in zip(one.candidates(SENTENCES), twins.candidates(SENTENCES), strict=True):
        assert own[0].tokens == both[0].tokens
        np.testing.assert_allclose(own[0].score, both[0].score, rtol=1e-4, atol=1e-6)
    other = dataclasses.replace(one, params=one.net.init(jax.random.key(9)))
    stacked = one.ensemble_with([other])
    config = dataclasses.replace(one.net.config, compute_dtype="float32", num_encoder_layers=2)
    deeper = pure(models.EncoderDecoder, config)
    several = one.ensemble_with([dataclasses.replace(one, net=deeper, params=deeper.init(jax.random.key(9)))])
    for ensemble in (stacked, several):
        (found,) = ensemble.candidates([SENTENCES[0]], prefixes=["The "])
        assert found[0].tokens != one.candidates([SENTENCES[0]], prefixes=["The "])[0][0].tokens
        assert found[0].tokens[0] == one.tokenizer.encode(["The "])[0][0]
    target = ["Le vieil homme."]
    singles = [np.exp(x.score(SENTENCES[:1], target)[0].token_log_probs) for x in (one, other)]
    together = stacked.score(SENTENCES[:1], target)[0].token_log_probs
    if average == "probability":
        np.testing.assert_allclose(np.exp(together), np.mean(singles, 0), rtol=1e-4)


def test_an_ensemble_can_be_extended():
    """By a further model, or by another ensemble; no member is lost."""
    one = translator()
    two, three = (dataclasses.replace(one, params=one.params | {"number": i}) for i in (2, 3))
    for found in (one.ensemble_with([two]).ensemble_with([three]), one.ensemble_with([two.ensemble_with([three])])):
        assert [member.params.get("number") for member in found.others] == [2, 3]


def test_an_ensemble_needs_one_tokenizer():
    one = translator()
    texts = [p.english for p in demo.generate(300)]
    other = dataclasses.replace(one, tokenizer=SubwordTokenizer.train(texts, vocab_size=380))
    with pytest.raises(ConfigError, match="must have one tokenizer; that of model 2 differs"):
        one.ensemble_with([other])
    lower = SubwordTokenizer(with_normalizer(one.tokenizer._model, TextNormalizer(lowercase=True)))
    with pytest.raises(ConfigError, match="must have one tokenizer; that of model 2 differs"):
        one.ensemble_with([dataclasses.replace(one, tokenizer=lower)])
    with pytest.raises(ConfigError, match="coverage_penalty needs the attention of a single model"):
        with_settings(one, search=Beam(coverage_penalty=0.1)).ensemble_with([one])


@pytest.mark.full
def test_a_truncated_pair_is_named_by_its_number():
    """The number continues from batch to batch."""
    said = []
    assert len(translator().score(["a", "b " * 600], ["x", "y"], first=65, warn=said.append)) == 2
    assert [text.split(" has ")[0] for text in said] == ["sentence 66"]


def test_scores_of_given_translations():
    """Each token's log-probability equals that of the full pass, alone and with longer pairs."""
    one = translator()
    targets = ["Le vieil homme.", "", "Elle chante.", "Pourquoi ?", "x"]
    together = one.score(SENTENCES, targets)
    special = one.tokenizer.special
    padded = lambda ids: np.pad(np.array([ids], np.int32), ((0, 0), (0, 32 - len(ids))))
    whole = quick(lambda *args: jax.nn.log_softmax(one.net.apply(*args)))
    for source, target, found in zip(SENTENCES, targets, together, strict=True):
        given, said = ([*one.tokenizer.encode([text])[0].tolist(), special.eos] for text in (source, target))
        padded_source = Tokens(padded(given), padded([True] * len(given)) > 0)
        expected = np.asarray(whole(one.params, padded_source, padded([special.bos, *said[:-1]])))
        expected = expected[0, np.arange(len(said)), said]
        np.testing.assert_allclose(found.token_log_probs, expected, rtol=1e-4, atol=1e-5)
        assert found.tokens[-1] == "</s>"
        np.testing.assert_allclose(found.mean * len(said), found.log_prob, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("average", [pytest.param("log", marks=pytest.mark.full), "probability"])
def test_scores_are_those_of_all_logits_without_holding_them(average, monkeypatch):
    """Of an ensemble, too: 40 positions in chunks of 12, and a table of its own beside a tied one."""
    one, config = translator(), dataclasses.replace(translator().net.config, tie_embeddings="none", d_model=8)
    other = pure(models.EncoderDecoder, config)
    nets, params = (one.net, other), (one.params, drawn(other.shapes))
    ids, target, labels = map(int32, np.random.default_rng(0).integers(4, 400, (3, 4, 10)))
    source = Tokens(ids, jax.device_put(np.arange(10)[None] < np.array([[10], [7], [1], [9]])))
    monkeypatch.setattr(head, "logits_per_chunk", lambda: 12 * 2 * 400)
    score = functools.partial(implementation._pair_log_probs.__wrapped__, nets, average)
    arguments = params, source, target, labels
    sizes = re.findall(r"\w+\[([\d,]+)\]", str(jax.make_jaxpr(score)(*arguments)))
    assert max(math.prod(map(int, size.split(","))) for size in sizes) <= 12 * 2 * 400 < 40 * 400
    whole = quick(lambda net, own: net.apply(own, source, target), static_argnums=0)
    each = scipy.special.log_softmax(np.stack(list(map(whole, nets, params))), -1)
    mean = scipy.special.log_softmax(each.mean(0), -1) if average == "log" else np.log(np.exp(each).mean(0))
    expected = np.take_along_axis(mean, labels[..., None], 2)[..., 0]
    np.testing.assert_allclose(quick(score)(*arguments), expected, rtol=1e-5)


@pytest.mark.parametrize(("cores", "order"), [(1, "ddrdrr"), (2, "dddrrr")])
def test_a_batch_is_searched_while_the_one_before_is_read(monkeypatch, cores, order):
    """The device and the host, or the cores, work at the same time, and few results wait."""
    done, search = [], Translator._search
    monkeypatch.setattr(Translator, "_search", lambda *args, **options: done.append("d") or search(*args, **options))
    monkeypatch.setattr("jaxformer.tasks.generation.num_cores", lambda: cores)
    translator().translate(SENTENCES[:1] * 5, progress=lambda number: done.append("r"))
    assert "".join(done) == order


@pytest.mark.full
def test_text_is_normalized_on_its_way_in_and_restored_on_its_way_out():
    """Each side by its own language; of words, too, which `alignments` counts as spaces separate them in the text."""
    plain = translator()
    normalizer = TextNormalizer(True, "moses", "en", "fr")
    model = with_normalizer(plain.tokenizer._model, normalizer)
    one = dataclasses.replace(plain, tokenizer=SubwordTokenizer(model))
    sources, targets = ["The Man's dog, HERE.", "She sings."], ["L'Homme dort.", "Qu'Elle chante, là."]
    said = [normalizer(sources, "source"), normalizer(targets, "target")]
    assert said[1][0] == "l' homme dort ."
    for own, same in zip(one.score(sources, targets), plain.score(*said), strict=True):
        assert own.tokens == same.tokens
        np.testing.assert_allclose(own.token_log_probs, same.token_log_probs, rtol=1e-4)
    found = one.candidates(sources, prefixes=["L'Homme"] * 2)
    same = plain.candidates(said[0], prefixes=["l' homme"] * 2)
    assert [best[0].tokens for best in found] == [best[0].tokens for best in same]
    assert [best[0].text for best in found] == [normalizer.restore(best[0].text) for best in same]
    assert all(best[0].text.startswith("l'homme") for best in found)
    attentions = one.attentions(sources, targets), plain.attentions(*said)
    for own, same in zip(*attentions, strict=True):
        assert (own.source, own.target) == (same.source, same.target)
    links = one.alignments([*sources, "a \0 b"], [*targets, "x"])
    assert links[2] == []  # no character stands for a word
    for own, source, target in zip(links, sources, targets, strict=False):
        assert own
        assert all(s < len(source.split()) and t < len(target.split()) for s, t in own)
    assert {t for links in one.alignments(sources, targets) for _, t in links} <= set(range(3))


ODD = [
    "",
    "  ",
    "雨 ☂ é",
    "a" * 10_000,
    "👩‍👩‍👧‍👦🏳️‍🌈" * 3,
    "مرحبا بالعالم",
    "a\0b",
    "\t\x1b[2J",
    "a\u2028b\x85c",
    "\ufeff",
    "\ue000\u2581",
]


@pytest.mark.full
def test_unusual_sentences_give_one_line_each():
    """For a sentence that is too long, the beginning is translated, with a warning."""
    one = translator()
    said = []
    found = with_settings(one, max_length=6).translate(ODD, warn=said.append)
    assert len(found) == len(ODD)
    assert not any(c in text for text in found for c in "\0\n\r\t\u2028\x85")
    assert found[:2] == ["", ""]
    assert said == [
        f"sentence 4 has {len(one.tokenizer.encode([ODD[3]])[0]) + 1:,} tokens; only the first 1,024 are read"
    ]


@pytest.mark.full
def test_programs_are_few_and_counted(monkeypatch):
    """Numbers of sentences are quarters of the batch, and lengths are steps of the ladder."""
    nothing = lambda program: lambda *_: jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.out_info)
    monkeypatch.setattr(jax.stages.Lowered, "compile", nothing)  # three programs would take ten seconds to compile
    one = with_settings(translator(beam_size=1), batch_size=16, max_length=3)
    for number in (1, 2, 3, 4, 5, 9, 16):
        one.translate(SENTENCES[:1] * number)
    assert sorted(rows for _, (rows, _), *_ in one.programs) == [1, 4, 16]


def test_a_kept_program_is_of_the_precision_that_is_set():
    one = translator()
    one.translate(SENTENCES[:1])
    with jax.default_matmul_precision("highest"):
        one.translate(SENTENCES[:1])
    assert ["operand_precision={highest" in program.as_text() for program in one.programs.values()] == [False, True]


def test_a_translator_that_has_compiled_programs_can_be_copied():
    one = translator()
    expected, other = one.translate(SENTENCES[:1]), copy.deepcopy(one)
    assert not other.programs
    assert other.translate(SENTENCES[:1]) == expected


@pytest.mark.full
def test_coverage_changes_scores():
    """A penalty of 0 is the plain search; one above lowers every score by the coverage of its own tokens."""
    one = with_settings(translator(), max_length=4)  # too few to attend to all of the source
    plain = one.candidates(SENTENCES[:1], n_best=3)[0]
    covered = with_settings(one, search=Beam(beam_size=3, coverage_penalty=1e-6)).candidates(SENTENCES[:1], n_best=3)[0]
    assert [c.tokens for c in plain] == [c.tokens for c in covered]
    heavy = with_settings(one, search=Beam(beam_size=3, coverage_penalty=1.0)).candidates(SENTENCES[:1], n_best=3)[0]
    assert all(c.score < c.log_prob / (len(c.tokens) + 1) - 1 for c in heavy)


def test_alignments_link_words():
    """Between the words of each text as spaces separate them; none for an empty one."""
    one, targets = translator(), ["Le vieil homme.", "Rien", "Elle chante."]
    found = one.alignments(SENTENCES[:3], targets)
    assert found[1] == []
    for links, source, target in (pair for pair in zip(found, SENTENCES, targets, strict=False) if pair[1]):
        assert all(s < len(source.split()) and t < len(target.split()) for s, t in links)
        assert len({t for _, t in links}) == len(links)
    with pytest.raises(ValueError, match="a target for each of 5 sources, got 3"):
        one.score(SENTENCES, targets)


def test_alignments_count_the_token_of_the_language():
    """A sentence that is too long with it has no links, as any other that is too long."""
    one = translator(positions=choices.Learned(), max_positions=8)
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(500)], vocab_size=400, languages=("de",))
    tagged = dataclasses.replace(one, tokenizer=tokenizer, tags="source", language="de")
    texts = [" ".join(["the"] * number) for number in (5, 6)]
    assert [len(ids) for ids in tokenizer.encode(texts, "source")] == [6, 7]
    assert [bool(links) for links in tagged.alignments(texts, ["a", "a"])] == [True, False]
    assert all(dataclasses.replace(tagged, tags="none").alignments(texts, ["a", "a"]))


@pytest.mark.full
def test_attention_of_a_pair_is_the_same_in_a_batch():
    one, targets = translator(), ["Le vieil homme.", "Elle chante.", "Pourquoi ?"]
    sources = [SENTENCES[0], SENTENCES[2], SENTENCES[3]]
    for found, source, target in zip(one.attentions(sources, targets), sources, targets, strict=True):
        alone = one.attention(source, target)
        assert (found.source, found.target) == (alone.source, alone.target)
        np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)


def test_refusals():
    with pytest.raises(ConfigError, match=r"n_best must be at least 1 and at most beam_size = 3, got 4"):
        translator().candidates(SENTENCES, n_best=4)
    short = translator(beam_size=1, positions=choices.Learned(), max_positions=12)
    with pytest.raises(DataError, match=r"sentence 2 has .* tokens, but the model takes at most 12; split it"):
        short.translate(["She sings.", "The old man sees the house and the garden and the sea and the hills."])
    with pytest.raises(DataError, match=r"sentence 1 has .* tokens, but the model takes at most 32,768; split it"):
        translator().translate(["word " * 40_000])  # its program would be compiled for hours, or have no memory
