"""Tokenizers of pretrained models: their ids and decoded text, and the pieces of each side of a Marian."""

import json

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.text import Text
from jaxformer.data.windows import prepare_text
from jaxformer.errors import ConfigError
from jaxformer.inspection import attention_maps
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.pretrained import MarianTokenizer, PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.tokenizers import marian, pretrained

ALONE = SpecialTokens(0, 0, 0, 0)
GPT2 = pretrained.byte_level()
BERT = pretrained.word_piece()
TEXT = "The old man sees the house."


@pytest.mark.parametrize("content", [GPT2, BERT])
def test_ids_equal_those_of_the_package_without_template_padding_and_truncation(content):
    tokenizer = PretrainedTokenizer(content, ALONE)
    theirs = tokenizers.Tokenizer.from_str(content)
    theirs.no_padding()
    theirs.no_truncation()
    ids = theirs.encode(TEXT, add_special_tokens=False).ids
    assert len(ids) > 5
    assert tokenizer.encode([TEXT, ""])[0].tolist() == tokenizer.encode_normalized([TEXT])[0].tolist() == ids
    assert tokenizer.encode([TEXT, ""])[1].tolist() == []
    assert tokenizer.segmentations(TEXT) == [tuple(ids)]
    assert tokenizer.vocab_size == theirs.get_vocab_size()


@pytest.mark.parametrize("dropout", [0.0, 0.5, 1.0])
def test_dropout_of_the_file_is_not_used(dropout):
    """Tokens would be random, and a resumed run would not be the same."""
    saved = json.loads(GPT2)
    saved["model"]["dropout"] = dropout
    tokenizer = PretrainedTokenizer(json.dumps(saved), ALONE)
    expected = PretrainedTokenizer(GPT2, ALONE).encode([TEXT])[0].tolist()
    for _ in range(5):
        assert [ids.tolist() for ids in tokenizer.encode([TEXT] * 9)] == [expected] * 9


BYTES = PretrainedTokenizer(GPT2, ALONE)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: pretrained.END not in text))
def test_byte_tokens_decode_to_any_text(text):
    assert BYTES.decode(BYTES.encode([text])[0]) == BYTES.normalized(BYTES.encode([text])[0]) == text


def test_special_tokens_are_left_out_of_text():
    tokenizer = PretrainedTokenizer(BERT, SpecialTokens(0, 2, 3, 1))
    ids = [2, *tokenizer.encode([TEXT])[0], 3, 0]
    assert tokenizer.decode(ids) == TEXT.lower()
    assert tokenizer.id_of("[MASK]") == 4
    assert tokenizer.id_of("absent") is None


def test_pieces_show_spaces_and_letters():
    ids = BYTES.encode(["The é"])[0]
    assert "".join(BYTES.pieces(ids)).startswith("The▁")
    assert BYTES.pieces([0]) == [pretrained.END]


def test_words_of_word_piece_begin_with_a_space():
    """Otherwise a sentence would be one word; special tokens keep their names, and marks are separate."""
    word = PretrainedTokenizer(BERT, SpecialTokens(0, 2, 3, 1))
    pieces = word.pieces([2, *word.encode(["The old % sees."])[0], 3])
    assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]")
    assert "".join(pieces[1:-1]) == "▁the▁old[UNK]▁sees."
    inner = attention_maps.AttentionMap(tuple(pieces[1:-1]), ("x",), np.ones((1, len(pieces) - 2)))
    assert attention_maps.by_word(inner).source == ("the", "old", "[UNK]", "sees", ".")


def test_a_text_begins_with_the_tokens_of_the_template():
    assert BYTES.start == ()
    content = pretrained.byte_level(begin="<|begin|>")
    begin = tokenizers.Tokenizer.from_str(content).token_to_id("<|begin|>")
    assert PretrainedTokenizer(content, SpecialTokens(0, begin, 0, 0)).start == (begin,)
    assert PretrainedTokenizer(templated([SPECIAL, TEXT_A], X=SIZE - 1), ALONE).start == (SIZE - 1,)
    both = PretrainedTokenizer(pretrained.byte_level(begin="<s>", end=True), SpecialTokens(0, 0, 0, 0))
    assert both.start == (both.id_of("<s>"),)
    assert both.decode([*both.start, *both.encode([TEXT])[0], 0]) == TEXT


@pytest.mark.parametrize(("single", "before", "after"), [("$0 </s> <x>", "", "</s> <x>"), ("</s> $0", "</s>", "")])
def test_the_tokens_after_a_text_do_not_begin_one(single, before, after):
    """Also if the token before a text is the end token, as in GPT-2."""
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "<x>": 1, "b": 2}))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.add_special_tokens(["</s>", "<x>"])
    pairs = [("</s>", 0), ("<x>", 1)]
    theirs.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=pairs)
    ours = PretrainedTokenizer(theirs.to_str(), ALONE)
    assert (" ".join(ours.pieces(ours.start)), " ".join(ours.pieces(ours.end))) == (before, after)
    assert [*ours.start, *ours.encode(["b"])[0], *ours.end] == theirs.encode("b").ids


def gpt2(**changes):
    """The content of GPT-2's file with changes."""
    return json.dumps(json.loads(GPT2) | changes)


def templated(single, **ids):
    """The content of GPT-2's file with another template."""
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in ids.items()}
    template = {"type": "TemplateProcessing", "single": single, "pair": [TEXT_A], "special_tokens": special}
    return gpt2(post_processor=template)


def used(content):
    tokenizer = PretrainedTokenizer(content, ALONE)
    return tokenizer.decode([]), tokenizer.encode(["cat"])


SPECIAL, TEXT_A = {"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
SIZE = BYTES.vocab_size
MERGES = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "continuing_subword_prefix": "##"}
FUSED = [{"type": "Fuse"}, {"type": "Strip", "content": "x", "start": 0, "stop": 3}]
WORDS = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "dog": 1}, unk_token="[UNK]")).to_str()
OUTSIDE = f"template has the token {SIZE}, which is not below {SIZE}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # On the first two, the package panics: its error does not derive from Exception.
        (gpt2(model=json.loads(GPT2)["model"] | MERGES), "describes no tokenizer"),
        (templated([SPECIAL, TEXT_A]), "describes no tokenizer: no entry"),
        # A model would read the vector of another token.
        (templated([SPECIAL, TEXT_A], X=SIZE), OUTSIDE),
        (templated([TEXT_A, SPECIAL], X=SIZE), OUTSIDE),
        (gpt2(decoder={"type": "Sequence", "decoders": FUSED}), "cannot join the tokens"),
        (WORDS, "cannot split the text: WordLevel error: Missing"),
    ],
)
def test_a_file_on_which_the_package_fails_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        used(content)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    BYTES.save(tmp_path / "tokenizer.json")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"jaxformer\[pretrained\]") as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert "damaged" not in str(caught.value)


def test_a_token_of_text_is_not_special():
    """Some files name a letter as padding; it stays in the text."""
    letter = BYTES.id_of("a")
    tokenizer = PretrainedTokenizer(GPT2, SpecialTokens(letter, 0, 0, 0))
    assert tokenizer.decode([*tokenizer.encode(["a cat"])[0], 0]) == "a cat"
    assert tokenizer.is_special(0)
    assert not tokenizer.is_special(letter)


def test_a_text_is_tokenized_as_a_whole(tmp_path):
    """A token may span line breaks, as those of Llama 3 do."""
    content = json.loads(GPT2)
    breaks = {"id": 400, "content": "\n\n", "single_word": False, "lstrip": False, "rstrip": False}
    content["added_tokens"].append(breaks | {"normalized": False, "special": False})
    tokenizer = PretrainedTokenizer(json.dumps(content), ALONE)
    stream = prepare_text(Text("a\n\nb"), tokenizer, tmp_path)
    assert stream.tokens[1:].tolist() == tokenizer.encode(["a\n\nb"])[0].tolist()
    assert len(stream.tokens) == 4


ENGLISH, FRENCH = marian.PAIRS[0].english, marian.PAIRS[0].french


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    return marian.write(folder), *((folder / f"{side}.spm").read_bytes() for side in ("source", "target"))


@pytest.fixture(scope="module")
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


def test_a_marian_omits_special_tokens(tokenizer):
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


def test_special_tokens_in_a_text_of_a_marian_become_their_ids(tokenizer):
    special, (ids,) = tokenizer.special, tokenizer.encode([ENGLISH])
    assert tokenizer.encode([f"{ENGLISH}</s> <unk> {ENGLISH}"])[0].tolist() == [*ids, special.eos, special.unk, *ids]
    assert tokenizer.encode(["<pad>"], "target")[0].tolist() == [special.pad]
