"""Texts with the tokens that they begin with, keys of caches, and texts that every tokenizer refuses."""

import importlib.metadata
import itertools
import types

import pytest

from jaxformer.data.packing import tokenize_lines
from jaxformer.data.pipeline import prepare
from jaxformer.data.text import Text
from jaxformer.data.windows import prepare_text
from jaxformer.errors import DataError
from jaxformer.tokenizers import moses, normalization
from jaxformer.tokenizers.base import cache_key, encode_texts
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.pretrained import MarianTokenizer, PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.data.small import CORPUS
from tests.tokenizers import marian, pretrained


def test_a_text_begins_with_the_tokens_of_its_template():
    tokenizer = PretrainedTokenizer(pretrained.byte_level(begin="<s>"), SpecialTokens(0, 0, 0, 0))
    (first,) = tokenizer.start
    own, texts = tokenizer.encode(["The man.", ""]), encode_texts(tokenizer, ["The man.", ""], "target")
    assert [ids.tolist() for ids in texts] == [[first, *own[0]], [first]]
    assert texts[1].dtype == own[1].dtype
    trained = SubwordTokenizer.train(pretrained.LINES, vocab_size=320)
    assert encode_texts(trained, ["The man."])[0].tolist() == trained.encode(["The man."])[0].tolist()


FORMS = {
    "moses": TextNormalizer(pretokenize="moses", source_language="en", target_language="fr"),
    "lower": TextNormalizer(lowercase=True),
    "plain": TextNormalizer(),
}
PROGRAMS = {
    "sacremoses": lambda patch: patch.setattr(moses, "version", lambda: "0"),
    "unicode": lambda patch: patch.setattr(normalization, "unicodedata", types.SimpleNamespace(unidata_version="0")),
    "sentencepiece": lambda patch: patch.setattr(importlib.metadata, "version", lambda package: f"0 of {package}"),
}


@pytest.mark.parametrize(
    ("form", "program", "changes"),
    [
        *(("moses", "sacremoses", True), ("lower", "sacremoses", False), ("lower", "unicode", True)),
        *(("plain", "unicode", False), ("plain", "sentencepiece", True)),
    ],
)
def test_the_cache_key_has_the_versions_of_the_tokenizing_packages(tmp_path, monkeypatch, form, program, changes):
    """Another version makes new cached tokens; the fingerprint, which runs check, stays the same."""
    tokenizer = SubwordTokenizer.train(CORPUS.lines(), vocab_size=400, normalizer=FORMS[form])
    fingerprint = tokenizer.fingerprint
    for _ in range(2):
        prepare(CORPUS, tokenizer, tmp_path)
        tokenize_lines(CORPUS.source, tokenizer, tmp_path)
        prepare_text(Text("A man."), tokenizer, tmp_path)
        PROGRAMS[program](monkeypatch)
    assert len(list(tmp_path.iterdir())) == (6 if changes else 3)
    assert tokenizer.fingerprint == fingerprint


def test_the_key_of_each_kind_of_tokenizer(monkeypatch):
    """Characters depend on no package."""
    special = SpecialTokens(0, 0, 0, 0)
    tokenizers = [PretrainedTokenizer(pretrained.byte_level(begin="<s>"), special), CharacterTokenizer("abc")]
    before = [cache_key(one) for one in tokenizers]
    monkeypatch.setattr(importlib.metadata, "version", lambda package: f"0 of {package}")
    assert [cache_key(one) == key for one, key in zip(tokenizers, before, strict=True)] == [False, True]


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory):
    """Tokenizers of every kind, and functions that train one."""
    folder = tmp_path_factory.mktemp("marian")
    vocabulary = marian.write(folder)
    ids = SpecialTokens(pad=vocabulary["<pad>"], bos=vocabulary["<pad>"], eos=0, unk=1)
    return [
        *(SubwordTokenizer.train(CORPUS.lines(), vocab_size=400, normalizer=form).encode for form in FORMS.values()),
        PretrainedTokenizer(pretrained.byte_level(begin="<s>"), SpecialTokens(0, 0, 0, 0)).encode,
        SubwordTokenizer.train(CORPUS.lines(), vocab_size=400).encode_normalized,
        MarianTokenizer(
            *((folder / f"{side}.spm").read_bytes() for side in ("source", "target")), vocabulary, ids
        ).encode,
        CharacterTokenizer("abc").encode,
        CharacterTokenizer.train,
        lambda lines: SubwordTokenizer.train([*CORPUS.lines(), *lines], vocab_size=400),
    ]


def test_half_of_a_surrogate_pair_is_refused(every_kind):
    """Only a string of Python can hold one; libraries raised errors of their own types, or took it for a character."""
    for half, run in itertools.product(("\ud83d", "\udc36"), every_kind):
        with pytest.raises(DataError) as raised:
            run(["a dog", f"{'a dog and ' * 3}{half} a cat"])
        expected = f"a text has half of a surrogate pair, {half!a}, which is not a character: "
        assert str(raised.value) == expected + ascii(f"a dog and a dog and {half} a cat")


def test_something_other_than_a_text_is_refused(every_kind):
    for run in every_kind:
        with pytest.raises(TypeError, match="a text must be a str, got bytes"):
            run([b"a dog"])
