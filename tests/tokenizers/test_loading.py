"""Files of tokenizers: read as they were saved; damaged or missing ones are refused."""

import json

import pytest

from jaxformer.errors import DataError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.pretrained import MarianTokenizer, PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.tokenizers import marian, pretrained

TEXT = marian.PAIRS[0].french
MOSES = TextNormalizer(lowercase=True, pretokenize="moses", source_language="en", target_language="fr")


def of_marian(folder):
    """A tokenizer of the files in a folder."""
    ids = marian.write(folder)
    source, target = ((folder / f"{side}.spm").read_bytes() for side in ("source", "target"))
    return MarianTokenizer(source, target, ids, SpecialTokens(ids["<pad>"], ids["<pad>"], ids["</s>"], ids["<unk>"]))


MAKES = {
    "characters": lambda folder: CharacterTokenizer.train(pretrained.LINES, special=SpecialTokens(7, 0, 1, 2)),
    "three": lambda folder: CharacterTokenizer("abc"),
    "subwords": lambda folder: SubwordTokenizer.train(pretrained.LINES, vocab_size=340),
    "other ids": lambda folder: SubwordTokenizer.train(pretrained.LINES, vocab_size=340, special=SpecialTokens(1, 0)),
    "moses": lambda folder: SubwordTokenizer.train(pretrained.LINES, vocab_size=340, normalizer=MOSES),
    "pretrained": lambda folder: PretrainedTokenizer(pretrained.word_piece(), SpecialTokens(0, 2, 3, 1)),
    "marian": of_marian,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {kind: make(tmp_path_factory.mktemp("files")) for kind, make in MAKES.items()}


def content(tokenizer):
    ids = tokenizer.encode([TEXT], "target")[0]
    known = tokenizer.fingerprint, tokenizer.special, tokenizer.vocab_size, tokenizer.normalizer
    return type(tokenizer), *known, ids.tolist(), tokenizer.decode([tokenizer.special.bos, *ids, tokenizer.special.eos])


@pytest.mark.parametrize("kind", MAKES)
def test_a_saved_tokenizer_is_read_again(made, tmp_path, kind):
    made[kind].save(tmp_path / "t.model")
    assert content(load_tokenizer(tmp_path / "t.model")) == content(made[kind])
    assert [p.name for p in tmp_path.iterdir()] == ["t.model"]


def test_each_content_has_its_fingerprint(made):
    """Also if only the special tokens differ."""
    others = [CharacterTokenizer.train(pretrained.LINES)]
    others.append(PretrainedTokenizer(pretrained.word_piece(), SpecialTokens(0, 0, 0, 0)))
    assert len({one.fingerprint for one in (*made.values(), *others)}) == len(MAKES) + 2


DAMAGES = [
    ("three", lambda saved: saved["special"].update(pad=9)),
    ("three", lambda saved: saved["special"].update(pad=1)),
    ("three", lambda saved: saved["special"].update(pad=-1)),
    ("three", lambda saved: saved.update(characters="abd")),
    ("three", lambda saved: saved.update(characters="cba")),
    ("three", lambda saved: saved.update(characters=5)),
    ("three", lambda saved: saved.pop("special")),
    ("three", lambda saved: saved.pop("fingerprint")),
    ("pretrained", lambda saved: saved.pop("special")),
    ("pretrained", lambda saved: saved["special"].update(bos=3)),
    ("pretrained", lambda saved: saved["special"].update(eos=10_000)),
    ("pretrained", lambda saved: saved.update(tokenizer="{}")),
    ("pretrained", lambda saved: saved.update(tokenizer=3)),
    ("marian", lambda saved: saved.pop("source")),
    ("marian", lambda saved: saved.update(source="?")),
    ("marian", lambda saved: saved.update(source=saved["target"])),
    ("marian", lambda saved: saved.update(target="")),
    ("marian", lambda saved: saved.update(vocabulary=[])),
    ("marian", lambda saved: saved["vocabulary"].update({"<pad>": 9999})),
    ("marian", lambda saved: saved["vocabulary"].update({"<pad>": "x"})),
    ("marian", lambda saved: saved["special"].update(pad=9999)),
]


@pytest.mark.parametrize(("kind", "change"), DAMAGES)
def test_a_file_with_another_content_is_refused(made, tmp_path, kind, change):
    path = tmp_path / "t.model"
    made[kind].save(path)
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(DataError, match=r"t\.model is damaged"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *(("three", lambda data, found=found: found) for found in (b"", b"garbage", b"{", b"{}")),
        ("three", lambda data: data[:-9]),
        ("three", lambda data: data.replace(b'"special"', b'"sp\xffcial"')),
        ("moses", lambda data: data.replace(b'"lowercase"', b'"lowercasx"')),
        ("moses", lambda data: data[:-1] + b"]"),
    ],
)
def test_other_bytes_are_refused(made, tmp_path, kind, change):
    path = tmp_path / "t.model"
    made[kind].save(path)
    data = path.read_bytes()
    assert change(data) != data
    path.write_bytes(change(data))
    with pytest.raises(DataError, match=r"t\.model is damaged"):
        load_tokenizer(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
