import json

import numpy as np
import pytest

from jaxformer.tokenizers import trimming
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer

WORDS = "the old man sees a house near river quickly runs blue green seventeen tomorrow".split()
LINES = [" ".join(np.random.default_rng(i).choice(WORDS, 8)) for i in range(200)]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_segmentations_of_the_corpus_stay(kind):
    """So do special tokens, languages and the bytes of other text; the number of removed tokens is a multiple."""
    whole = SubwordTokenizer.train(LINES, vocab_size=300, kind=kind, languages=["de"])
    small, tokens = trimming.trim(whole, ["the old man sees"], multiple=8)
    assert small.vocab_size == len(tokens) < 300
    assert (300 - len(tokens)) % 8 == 0
    assert small.names == [whole.names[token] for token in tokens]
    assert tokens[small.tags["de"]] == whole.tags["de"]
    for text in ("the old man sees", " sees man"):
        expected = {*whole.segmentations(text)}
        assert {tuple(tokens[list(way)].tolist()) for way in small.segmentations(text)} == expected
    assert small.decode(small.encode(["quickly \u2603"])[0]) == "quickly \u2603"


def test_characters():
    whole = CharacterTokenizer("abcdef", SpecialTokens(pad=1, bos=0, eos=9, unk=3))
    small, tokens = whole.with_tokens([0, 1, 3, 4, 9]), [0, 1, 3, 4, 9]
    assert small.names == [whole.names[token] for token in tokens]
    assert small.special.eos == 4


def published(model, more=(), **rules):
    special = ["<pad>", "<s>", "</s>", "<unk>", *more]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    names = [*model["vocab"]] if isinstance(model["vocab"], dict) else [name for name, _ in model["vocab"]]
    added = [{"id": names.index(name), "content": name, **flags} for name in special]
    content = {"version": "1.0", "added_tokens": added, "model": model, **rules}
    return PretrainedTokenizer(json.dumps(content), SpecialTokens(*map(names.index, special[:4])))


def ids(*names):
    return {name: token for token, name in enumerate(names)}


SPACES = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")


def test_merges_of_kept_tokens_stay():
    """``ab`` is no token of the text, but is merged on the way to ``abc``."""
    names = (*SPECIAL, *"abcdxy\u2581", "ab", "xy", "abc", "\u2581abc", "cd", "xyd")
    merges = [["a", "b"], ["x", "y"], ["ab", "c"], ["\u2581", "abc"], ["c", "d"], ["xy", "d"]]
    model = {"type": "BPE", "vocab": ids(*names), "merges": merges, "unk_token": "<unk>"}
    whole = published(model, pre_tokenizer=SPACES, decoder=SPACES)
    small, tokens = trimming.trim(whole, ["abc"])
    assert small.names == [*SPECIAL, *"abcdxy\u2581", "ab", "abc", "\u2581abc"]
    assert json.loads(small.content)["model"]["merges"] == [merges[0], merges[2], merges[3]]
    assert tokens[small.encode(["abc xyd"])[0]].tolist() == [14, 10, 8, 9, 7]


def test_special_tokens_stay():
    """Those that no text and no search needs, such as a mask, and those for languages."""
    model = {"type": "WordLevel", "vocab": ids(*SPECIAL, "a", "b", "<mask>"), "unk_token": "<unk>"}
    whole = published(model, ["<mask>"], pre_tokenizer={"type": "WhitespaceSplit"})
    assert trimming.trim(whole, ["a"]).tokenizer.names == [*SPECIAL, "a", "b", "<mask>"]
    assert whole.with_tokens([0, 1, 2, 3, 4, 6]).names == [*SPECIAL, "a", "<mask>"]
    whole = SubwordTokenizer.train(LINES, vocab_size=300, languages=["de", "fr"])
    assert [*trimming.trim(whole, ["the"]).tokenizer.tags] == ["de", "fr"]


def test_word_pieces_and_templates():
    names = ("[x]", *SPECIAL, "a", "##a", "b", "##b", "ab", "##ab", "ba", "##ba", "abab")
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}},
    }
    model = {
        "type": "WordPiece",
        "vocab": ids(*names),
        "unk_token": "<unk>",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    whole = published(model, pre_tokenizer={"type": "Whitespace"}, post_processor=template)
    small, tokens = trimming.trim(whole, ["aba"])
    assert small.names == [*SPECIAL, "a", "##a", "b", "##b", "ab", "##ba"]
    assert tokens[list(small.start)].tolist() == [2] == [*whole.start]
    assert tokens[small.encode(["aba"])[0]].tolist() == whole.encode(["aba"])[0].tolist()


def test_the_least_probable_piece_stays():
    """The score of unknown characters follows it, in a unigram model."""
    vocabulary = [[name, 0.0] for name in SPECIAL] + [["a", -1.0], ["\u2581", -2.0], ["zz", -30.0], ["yy", -3.0]]
    whole = published(
        {"type": "Unigram", "vocab": vocabulary, "unk_id": 3, "byte_fallback": False}, pre_tokenizer=SPACES
    )
    assert trimming.trim(whole, ["a"]).tokenizer.names == [*SPECIAL, "a", "\u2581", "zz"]
