"""Tokenizers of Marian: the pieces of each side, language codes, and damaged files."""

import json

import pytest
import sentencepiece

from jaxformer.errors import DataError
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.marian import MarianTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.tokenizers import marian

ENGLISH, FRENCH = marian.PAIRS[0].english, marian.PAIRS[0].french


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    return marian.write(folder), *((folder / f"{side}.spm").read_bytes() for side in ("source", "target"))


@pytest.fixture
def tokenizer(files):
    vocabulary, source, target = files
    pad = vocabulary["<pad>"]
    return MarianTokenizer(source, target, vocabulary, SpecialTokens(pad, pad, vocabulary["</s>"], vocabulary["<unk>"]))


def test_each_side_has_its_pieces(tokenizer, files):
    vocabulary, *models = files
    for text, side, model in zip((ENGLISH, FRENCH), ("source", "target"), models, strict=True):
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model).encode(text, out_type=str)
        (ids,) = tokenizer.encode([text], side)
        assert ids.tolist() == [vocabulary.get(piece, vocabulary["<unk>"]) for piece in pieces]
        assert tokenizer.pieces(ids) == [piece if piece in vocabulary else "<unk>" for piece in pieces]
    assert tokenizer.encode([FRENCH])[0].tolist() != tokenizer.encode([FRENCH], "target")[0].tolist()
    assert tokenizer.segmentations(FRENCH) == [tuple(tokenizer.encode_normalized([FRENCH])[0].tolist())]


def test_decoding_omits_special_tokens(tokenizer):
    ids = tokenizer.encode([FRENCH], "target")[0]
    special = tokenizer.special
    assert special.unk not in ids
    assert tokenizer.decode([special.bos, *ids, special.eos, special.pad]) == tokenizer.normalized(ids) == FRENCH
    assert tokenizer.encode([""])[0].tolist() == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode(["\u4e00"])[0][-1] == special.unk


def test_a_code_is_one_token(tokenizer):
    code = tokenizer.id_of(marian.CODE)
    assert tokenizer.encode([f"{marian.CODE} {ENGLISH}"])[0].tolist() == [code, *tokenizer.encode([ENGLISH])[0]]
    assert tokenizer.encode([f">>xyz<< {ENGLISH}"])[0][0] == tokenizer.special.unk
    assert code not in tokenizer.encode([f"{ENGLISH} {marian.CODE}"])[0]
    assert tokenizer.is_special(tokenizer.special.eos)
    assert not tokenizer.is_special(code)


def test_special_tokens_in_a_text_become_their_ids(tokenizer):
    special, (ids,) = tokenizer.special, tokenizer.encode([ENGLISH])
    assert tokenizer.encode([f"{ENGLISH}</s> <unk> {ENGLISH}"])[0].tolist() == [*ids, special.eos, special.unk, *ids]
    assert tokenizer.encode(["<pad>"], "target")[0].tolist() == [special.pad]


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    found = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(found, MarianTokenizer)
    assert (found.fingerprint, found.special, found.vocab_size) == (
        tokenizer.fingerprint,
        tokenizer.special,
        tokenizer.vocab_size,
    )
    assert found.encode([FRENCH], "target")[0].tolist() == tokenizer.encode([FRENCH], "target")[0].tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.pop("source"),
        lambda saved: saved.update(source="?"),
        lambda saved: saved.update(source=saved["target"]),
        lambda saved: saved.update(target=""),
        lambda saved: saved.update(vocabulary=[]),
        lambda saved: saved["vocabulary"].update({"<pad>": 9999}),
        lambda saved: saved["vocabulary"].update({"<pad>": "x"}),
        lambda saved: saved["special"].update(pad=9999),
    ],
)
def test_damaged_files_are_refused(tokenizer, tmp_path, change):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(DataError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(path)
