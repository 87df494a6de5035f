"""A tokenizer's text normalization is saved inside its sentencepiece model."""

import dataclasses

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.tokenizers import moses
from jaxformer.tokenizers.normalization import TextNormalizer, normalizer_of, with_normalizer
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.data.small import CORPUS

MOSES = TextNormalizer(lowercase=True, pretokenize="moses", source_language="en", target_language="fr")
LOWER = TextNormalizer(lowercase=True)


def trained(normalizer, **options):
    return SubwordTokenizer.train(
        [*normalizer(CORPUS.source, "source"), *normalizer(CORPUS.target, "target")],
        vocab_size=400,
        normalizer=normalizer,
        **options,
    )


@pytest.fixture(scope="module", params=[TextNormalizer(), LOWER, MOSES], ids=["plain", "lower", "moses"])
def tokenizer(request):
    return trained(request.param)


def test_decoding_gives_the_text_in_lower_case(tokenizer):
    """For 600 sentences of each side; tokens are those of the normalized text, by the rules of each language."""
    normalizer = tokenizer.normalizer
    shown = [text.lower() if normalizer.lowercase else text for text in CORPUS.target]
    ids = tokenizer.encode(CORPUS.target, "target")
    assert [tokenizer.decode(one) for one in ids] == shown
    assert [tokenizer.normalized(one) for one in ids] == normalizer(CORPUS.target, "target")
    plain = SubwordTokenizer(tokenizer._processor.serialized_model_proto())
    drawn = tokenizer.sample(CORPUS.source, "source", seed=3)
    assert [tokenizer.normalized(one) for one in drawn] == normalizer(CORPUS.source, "source")
    assert plain.vocab_size == tokenizer.vocab_size


def test_each_side_has_its_language():
    """An apostrophe ends a French word and begins an English one."""
    assert MOSES(["L'Amie."], "source") == ["l 'amie ."]
    assert MOSES(["L'Amie."], "target") == ["l' amie ."]
    tokenizer = trained(MOSES)
    assert [tokenizer.normalized(tokenizer.encode(["L'Amie."], side)[0]) for side in ("source", "target")] == [
        "l 'amie .",
        "l' amie .",
    ]


def test_sentencepiece_reads_the_file_with_the_same_pieces(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.model")
    line = tokenizer.normalizer(CORPUS.target[:1], "target")[0]
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert processor.encode(line) == tokenizer.encode(CORPUS.target[:1], "target")[0].tolist()


def test_the_normalizer_is_part_of_the_fingerprint():
    """Also if all pieces are the same."""
    plain = trained(TextNormalizer())
    several = [TextNormalizer(), LOWER, MOSES, dataclasses.replace(MOSES, target_language="de")]
    tokenizers = [SubwordTokenizer(with_normalizer(plain._model, one)) for one in several]
    assert [one.normalizer for one in tokenizers] == several
    assert len({one.fingerprint for one in tokenizers}) == 4
    assert tokenizers[0].fingerprint == plain.fingerprint


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_characters="\ue000", exclude_categories=["Cs"])))
def test_any_text_is_decoded_in_lower_case(text):
    tokenizer = test_any_text_is_decoded_in_lower_case.tokenizer
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text.lower()


test_any_text_is_decoded_in_lower_case.tokenizer = trained(LOWER)


@pytest.mark.parametrize("model", [b"\x0a\x05ab", b"\x08\x01", b"\x80"])
def test_bytes_that_are_not_a_sentencepiece_model_are_refused(model):
    with pytest.raises(ValueError, match="no tokenizer"):
        normalizer_of(model)


def test_each_word_keeps_its_position():
    """However the normalizer changes it."""
    words = ["The", "dog's", "well,"]
    assert TextNormalizer().spelled(words, "source") == words
    assert LOWER.spelled(words, "source") == ["the", "dog's", "well,"]
    assert MOSES.spelled([*words, "\0"], "source") == ["the", "dog's", "well,", ""]


def test_words_are_asked_for_their_version_only_where_text_is_split_into_words(monkeypatch):
    """The import of sacremoses takes a third of a second, which each start of a training would pay."""
    monkeypatch.setattr(moses, "version", lambda: "of the words")
    assert TextNormalizer().versions == []
    languages = {"source_language": "en", "target_language": "de"}
    assert TextNormalizer(pretokenize="moses", **languages).versions == ["sacremoses of the words"]
    monkeypatch.delattr(moses, "version")
    assert TextNormalizer().versions == []
