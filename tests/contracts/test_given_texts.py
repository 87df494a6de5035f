"""Texts that users give: one long text costs its neighbors nothing, and half of a character is refused."""

import jax
import numpy as np
import pytest

from jaxformer import decoding, models
from jaxformer.data.pairs import Parallel
from jaxformer.errors import DataError
from jaxformer.models import choices
from jaxformer.modules.pure import pure
from jaxformer.tasks.language_model import Beam, DecodeConfig, TextGenerator
from jaxformer.tasks.translation import TASK, Translator
from jaxformer.tasks.translation import translator as implementation
from jaxformer.tasks.translation.corpora import Corpora
from jaxformer.tokenizers.characters import CharacterTokenizer
from tests.modules.small import drawn
from tests.selection import first
from tests.tasks.small import small
from tests.tasks.translation.translators import SENTENCES, translator, with_settings

LONG = "The old man sees the house. " * 60


def test_a_long_sentence_leaves_its_neighbors_alone(monkeypatch):
    """They would be padded to its length, and cost as much as it does."""
    one, shapes, length = with_settings(translator(), batch_size=4), [], implementation.BUCKETS[-1]
    texts = [*SENTENCES, LONG]

    def hypotheses(self, decode, batch, **options):
        shapes.append(batch.inputs.shape)
        empty = np.zeros((len(batch.numbers), 1, 1), np.int32)
        return lambda: decoding.Hypotheses(empty, empty[..., 0], *np.zeros((2, len(empty), 1)), 0.0 * empty)

    monkeypatch.setattr(Translator, "_hypotheses", hypotheses)
    one.translate(texts)
    assert shapes == [(4, 16), (1, length)]
    shapes.clear()

    def log_probs(nets, average, params, source, target, labels):
        shapes.append((source.shape, target.shape))
        return np.zeros(target.shape, np.float32)

    def attention(net, params, source, target):
        shapes.append((source.shape, target.shape))
        return np.zeros((len(target), 1, 1, target.shape[1], source.shape[1]), np.float32)

    monkeypatch.setattr(implementation, "_pair_log_probs", log_probs)
    monkeypatch.setattr(implementation, "_cross_attention", attention)
    scored = one.score(texts, texts[::-1])
    assert [len(pair.tokens) for pair in scored] == [len(one.tokenizer.encode([text])[0]) + 1 for text in texts[::-1]]
    assert shapes == [((4, 16), (4, 16)), ((1, 16), (1, length)), ((1, length), (1, 16))]
    shapes.clear()
    pairs = [(texts[0], texts[2]), (LONG, LONG), (texts[3], texts[0])]
    found = one.attentions(*zip(*pairs, strict=True))
    for attention, pair in zip(found, pairs, strict=True):
        sides = attention.source, attention.target
        assert ["".join(side[:-1]).replace("\u2581", " ") for side in sides] == list(pair)
    assert shapes == [((2, 16), (2, 16)), ((1, length), (1, length))]


def test_evaluation_reads_the_beginning_of_a_long_sentence(monkeypatch):
    """As `translate` does, with the same message; it read all of it, for hours."""
    one, said, searched = translator(), [], []

    def search(self, inputs, num_draws):
        searched.append([len(one.source) for one in inputs])
        empty = np.zeros((len(inputs), 1, 1), np.int32)
        return lambda: decoding.Hypotheses(empty, empty[..., 0], *np.zeros((2, len(inputs), 1)), 0.0 * empty)

    monkeypatch.setattr(Translator, "_search", search)
    pairs = Parallel((SENTENCES[0], LONG * 9), (SENTENCES[0], SENTENCES[0]))
    corpora, number = Corpora(Parallel((), ()), pairs, {"few": pairs}), len(one.tokenizer.encode([LONG * 9])[0]) + 1
    for split, name in (("test", "few"), ("validation", "validation")):
        list(TASK.score(small(), corpora, one, split, said.append))
        assert f"{name}: sentence 2 has {number:,} tokens; only the first 1,024 are read" in said
    assert searched == [[len(one.tokenizer.encode(SENTENCES[:1])[0]) + 1], [1024]] * 2


def test_half_of_a_surrogate_pair_is_refused():
    """It was a TypeError of sentencepiece, as if a list were no list of texts."""
    one, half = translator(), "a \ud83d"
    for call in (
        lambda: one.translate(["a", half]),
        lambda: one.translate(["a"], prefixes=[half]),
        lambda: one.score(["a"], [half]),
        lambda: one.alignments([half], ["a"]),
        lambda: one.attention("a", half),
        lambda: with_settings(one, forbid=half).translate(["a"]),
    ):
        with pytest.raises(DataError, match=r"half of a surrogate pair, '\\ud83d', .*: 'a \\ud83d'"):
            call()


@pytest.mark.parametrize("threads", first([1, 2], 2))
def test_a_long_prompt_leaves_its_neighbors_alone(monkeypatch, threads):
    """They would be padded to its length, and read at its cost; the texts of a beam stay in order."""
    nothing = lambda program: lambda *_: jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), program.out_info)
    monkeypatch.setattr(jax.stages.Lowered, "compile", nothing)
    monkeypatch.setattr(TextGenerator, "_num_threads", threads)
    tokenizer = CharacterTokenizer.train(SENTENCES)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1, "positions": choices.Rotary()}
    config = models.LanguageModelConfig(tokenizer.vocab_size, **sizes)
    net = pure(models.LanguageModel, config)
    decode = DecodeConfig(max_tokens=1, search=Beam(beam_size=2))
    own = TextGenerator(net, drawn(net.shapes), tokenizer, decode, window=1024)
    prompts = ["The old man", LONG[:900], "S"]
    given = [best[0].tokens for best in own.continuations(prompts)]
    assert [len(tokens) for tokens in given] == [1, 1, 1]
    assert sorted(shapes[2] for _, *shapes in own.programs) == [(1, 1024), (4, 128)]


def test_attention_of_a_text_that_is_too_long_is_refused():
    """`jaxformer inspect` ended with a traceback."""
    short = translator(positions=choices.Learned(), max_positions=12)
    for pair in ((LONG, "a"), ("a", LONG)):
        with pytest.raises(DataError, match=r"sentence 1 has .* tokens, but the model takes at most 12; split it"):
            short.attention(*pair)
