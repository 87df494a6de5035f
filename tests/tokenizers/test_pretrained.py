"""Tokenizers of pretrained models: their ids, decoded text, and damaged files."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.text import Text
from jaxformer.data.windows import prepare_text
from jaxformer.errors import ConfigError, DataError
from jaxformer.inspection import attention_maps
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.pretrained import PretrainedTokenizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.tokenizers import pretrained

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


def test_save_and_load(tmp_path):
    saved = PretrainedTokenizer(BERT, SpecialTokens(0, 2, 3, 1))
    saved.save(tmp_path / "tokenizer.json")
    found = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(found, PretrainedTokenizer)
    assert (found.fingerprint, found.special) == (saved.fingerprint, saved.special)
    assert found.encode([TEXT])[0].tolist() == saved.encode([TEXT])[0].tolist()
    assert PretrainedTokenizer(BERT, ALONE).fingerprint != saved.fingerprint


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: saved.pop("special"),
        lambda saved: saved["special"].update(bos=3),
        lambda saved: saved.update(tokenizer="{}"),
        lambda saved: saved.update(tokenizer=3),
        lambda saved: saved["special"].update(eos=10_000),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage):
    path = tmp_path / "tokenizer.json"
    PretrainedTokenizer(BERT, SpecialTokens(0, 2, 3, 1)).save(path)
    saved = json.loads(path.read_text())
    damage(saved)
    path.write_text(json.dumps(saved))
    with pytest.raises(DataError, match="is damaged"):
        load_tokenizer(path)


def test_a_file_on_which_the_package_panics_is_refused():
    """Its error does not derive from Exception, so it passed every handler."""
    saved = json.loads(GPT2)
    saved["model"] |= {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "continuing_subword_prefix": "##"}
    with pytest.raises(ValueError, match="describes no tokenizer"):
        PretrainedTokenizer(json.dumps(saved), ALONE)


SPECIAL, TEXT_A = {"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}


def templated(single, **ids):
    """The content of GPT-2's file with another template."""
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in ids.items()}
    template = {"type": "TemplateProcessing", "single": single, "pair": [TEXT_A], "special_tokens": special}
    return json.dumps(json.loads(GPT2) | {"post_processor": template})


def test_dropout_of_merges_is_not_used():
    """It is for training; the tokens of a text would differ from call to call."""
    saved = json.loads(GPT2)
    saved["model"]["dropout"] = 0.5
    tokenizer = PretrainedTokenizer(json.dumps(saved), ALONE)
    assert {tuple(ids.tolist()) for ids in tokenizer.encode([TEXT] * 20)} == {tuple(BYTES.encode([TEXT])[0].tolist())}


def test_a_template_that_names_no_token_is_refused():
    with pytest.raises(ValueError, match="describes no tokenizer: no entry"):  # a panic
        PretrainedTokenizer(templated([SPECIAL, TEXT_A]), ALONE)


def test_a_template_with_a_token_outside_the_vocabulary_is_refused():
    """A model would read the vector of another token."""
    size = PretrainedTokenizer(GPT2, ALONE).vocab_size
    for single in ([SPECIAL, TEXT_A], [TEXT_A, SPECIAL]):
        PretrainedTokenizer(templated(single, X=size - 1), ALONE)
        with pytest.raises(ValueError, match=f"template has the token {size}, which is not below {size}"):
            PretrainedTokenizer(templated(single, X=size), ALONE)


def test_a_decoder_on_which_the_package_panics_is_refused():
    parts = [{"type": "Fuse"}, {"type": "Strip", "content": "x", "start": 0, "stop": 3}]
    saved = json.loads(GPT2) | {"decoder": {"type": "Sequence", "decoders": parts}}
    with pytest.raises(DataError, match="cannot join the tokens"):
        PretrainedTokenizer(json.dumps(saved), ALONE).decode([])


def test_a_word_without_a_token_is_refused():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "dog": 1}, unk_token="[UNK]"))
    with pytest.raises(DataError, match="cannot split the text: WordLevel error: Missing"):
        PretrainedTokenizer(words.to_str(), ALONE).encode(["cat"])


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
