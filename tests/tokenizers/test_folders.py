"""Tokenizers of folders: special tokens by their names and ids, and the files of Marian."""

import json

import pytest
from tokenizers import pre_tokenizers

from jaxformer.errors import DataError
from jaxformer.tokenizers.folders import _ROBERTA as ROBERTA
from jaxformer.tokenizers.folders import read_languages, read_tokenizer
from jaxformer.tokenizers.loading import load_tokenizer
from jaxformer.tokenizers.tokenizer_json import tokenizer_files
from tests.tokenizers import marian
from tests.tokenizers import pretrained as tokenizers


def test_ids_of_the_settings_replace_missing_names(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizers.byte_level())
    special = read_tokenizer(tmp_path, {"eos_token_id": [0, 5], "pad_token_id": 7})[0].special
    assert (special.pad, special.bos, special.eos, special.unk) == (0, 0, 0, 0)  # 7 is a letter


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_missing_names_are_those_of_the_family(tmp_path, family):
    names = {"bert": tokenizers.BERT, "roberta": ROBERTA}[family]
    tokenizers.write(tmp_path, tokenizers.word_piece(list(names.values())), {"model_max_length": 512})
    tokenizer, found = read_tokenizer(tmp_path, {"model_type": family, "pad_token_id": 3})
    assert {name: tokenizer.id_of(found[name]) for name in names} == {x: i for i, x in enumerate(names)}
    assert tokenizer.special.pad == tokenizer.id_of(names["pad_token"])


def test_a_marian_begins_with_the_token_of_its_settings(tmp_path):
    vocabulary = marian.write(tmp_path)
    special = read_tokenizer(tmp_path, {"model_type": "marian"})[0].special
    assert (special.pad, special.bos, special.eos, special.unk) == (vocabulary["<pad>"], vocabulary["<pad>"], 0, 1)
    tokenizer, names = read_tokenizer(tmp_path, {"model_type": "marian", "decoder_start_token_id": 3})
    assert tokenizer.special.bos == 3
    assert names == {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: (path / "source.spm").unlink(),
            r"has no source\.spm; the tokenizer of a Marian is source\.spm, ",
        ),
        (lambda path: (path / "target.spm").write_bytes(b"x"), "is damaged: it holds no sentencepiece model"),
        (lambda path: (path / "target_vocab.json").write_text("{}"), "has two vocabularies"),
        (lambda path: (path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}'), "has no <pad>"),
        (lambda path: (path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "<pad>": 9}'), "is damaged: the ids"),
    ],
)
def test_files_of_another_tokenizer_are_refused(tmp_path, change, message):
    marian.write(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        read_tokenizer(tmp_path, {"model_type": "marian"})


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"source_lang": "de", "target_lang": "zh"}, {"source_language": "de", "target_language": "zh"}),
        ({"source_lang": "eng", "target_lang": 3}, {}),
        ({"source_lang": "jp", "target_lang": "de"}, {"target_language": "de"}),
        ({}, {}),
    ],
)
def test_languages_have_two_letters(tmp_path, names, found):
    assert read_languages(tmp_path) == {}
    tokenizers.write(tmp_path, "{}", names)
    assert read_languages(tmp_path) == found


def test_another_token_after_a_text_is_refused(tmp_path):
    """Such as that of models of embeddings, whose texts end with another token than the answers of a chat."""
    content = json.loads(tokenizers.byte_level(begin="<s>", end=True))
    tokenizers.write(tmp_path, json.dumps(content), {"eos_token": "<s>"})
    with pytest.raises(
        DataError, match=r"tokenizer\.json puts <\|endoftext\|> after a text; only .* <s>, can be there"
    ):
        read_tokenizer(tmp_path, {})
    tokenizers.write(tmp_path, json.dumps(content), {"eos_token": tokenizers.END})
    assert read_tokenizer(tmp_path, {})[0].special.eos == 0


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_the_end_of_a_text_is_the_separator_only_of_masked_language_models(tmp_path, family):
    """Vocabularies may name both."""
    names = tokenizers.BERT | {"eos_token": "[MASK]", "bos_token": "[UNK]"}
    content = tokenizers.word_piece()
    if family != "bert":
        content = json.dumps(json.loads(content) | {"post_processor": None})
    tokenizers.write(tmp_path, content, names | {"do_lower_case": True})
    tokenizer, _ = read_tokenizer(tmp_path, {"model_type": family})
    found = tokenizer.pieces([tokenizer.special.bos, tokenizer.special.eos])
    assert found == (["[CLS]", "[SEP]"] if family == "bert" else ["[UNK]", "[MASK]"])


def test_settings_that_change_no_tokens_are_kept(tmp_path):
    """The chat template is text here; nothing executes it."""
    (tmp_path / "out").mkdir()
    kept = {"chat_template": "{{ messages }}", "model_max_length": 512, "padding_side": "left"}
    tokenizers.write(tmp_path, tokenizers.byte_level(), {"eos_token": tokenizers.END} | kept)
    tokenizer, _ = read_tokenizer(tmp_path, {})
    tokenizer.save(tmp_path / "saved.json")
    written = json.loads(tokenizer_files(load_tokenizer(tmp_path / "saved.json"))["tokenizer_config.json"])
    assert written.items() >= kept.items()
    (tmp_path / "chat_template.jinja").write_text("{{ newer }}")
    assert read_tokenizer(tmp_path, {})[0].settings["chat_template"] == "{{ newer }}"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    both = [{"name": "default", "template": "{{ newer }}"}, {"name": "tool_use", "template": "{{ tools }}"}]
    assert read_tokenizer(tmp_path, {})[0].settings["chat_template"] == both


def test_dropout_of_merges_is_not_exported(tmp_path):
    content = json.loads(tokenizers.byte_level())
    content["model"]["dropout"] = 0.5
    tokenizers.write(tmp_path, json.dumps(content), {"eos_token": tokenizers.END})
    exported = tokenizer_files(read_tokenizer(tmp_path, {})[0])["tokenizer.json"]
    assert json.loads(exported)["model"] == json.loads(tokenizers.byte_level())["model"]


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        ({"legacy": True}, "\u2581 a | \u2581 x </s> \u2581 b"),
        ({"legacy": False}, "\u2581 a | \u2581 x </s> b"),
        ({"add_prefix_space": False}, "\u2581 a | x </s> b"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "\u2581 \u2581 a | \u2581 x </s> \u2581 b"),
    ],
)
def test_a_llama_has_the_spaces_of_its_class(tmp_path, given, pieces):
    """The class of transformers replaces the rules of the published ``tokenizer.json``."""
    names = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizers.write(tmp_path, tokenizers.llama(), names | given)
    tokenizer, _ = read_tokenizer(tmp_path, {"model_type": "llama"})
    found = tokenizer.encode([" a", "x</s>b"])
    assert " | ".join(" ".join(tokenizer.pieces(ids)) for ids in found) == pieces


@pytest.mark.parametrize(
    ("given", "pieces"),
    [
        ({}, "a \u2581 <x> \u2581 b"),
        ({"added_tokens_decoder": {"7": {"content": "<x>", "lstrip": True, "special": True}}}, "a <x> \u2581 b"),
        ({"additional_special_tokens": ["<y>", {"content": "ab"}]}, "a \u2581 <x> \u2581 b"),
        ({"mask_token": "<y>"}, "a \u2581 <x> \u2581 b"),
    ],
)
def test_special_tokens_of_the_settings_are_found_in_texts(tmp_path, given, pieces):
    """Those that the vocabulary has, but that ``tokenizer.json`` does not declare, and other rules for spaces."""
    content = json.loads(tokenizers.llama())
    content["model"]["vocab"] |= {"<x>": 7, "<y>": 8, "ab": 9}
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 7, "content": "<x>"})
    content["normalizer"] = content["normalizer"]["normalizers"][1]
    tokenizers.write(tmp_path, json.dumps(content), {"eos_token": "</s>"} | given)
    tokenizer, _ = read_tokenizer(tmp_path, {"model_type": "llama"})
    assert " ".join(tokenizer.pieces(tokenizer.encode(["a <x> b"])[0])) == pieces
    named = "<y>" in json.dumps(given)
    assert tokenizer.pieces(tokenizer.encode(["<y>"])[0]) == (["<y>"] if named else ["<unk>"] * 3)
    assert tokenizer.is_special(8) == named


SPECIAL = ["<pad>", "</s>", "<mask>", "<unk>"]


@pytest.mark.parametrize(
    ("family", "given", "pieces"),
    [
        ("t5", {}, "\u2581a b | \u2581a \u2581 x"),
        ("mt5", {}, "\u2581a b | \u2581a \u2581 x"),
        ("pegasus", {}, "\u2581a b \u2581 | \u2581a \u2581 x"),
        ("xlm-roberta", {}, "\u2581a b | \u2581a \u2581 x"),
        ("camembert", {"tokenizer_class": "CamembertTokenizerFast"}, "\u2581a b | \u2581a \u2581 x"),
        ("xlm-roberta", {"add_prefix_space": False}, "a b | a x"),
        ("bart", {"tokenizer_class": "PegasusTokenizer"}, "\u2581a b \u2581 | \u2581a \u2581 x"),
        ("pegasus", {"tokenizer_class": "PreTrainedTokenizerFast"}, "\u2581a b \u2581 | \u2581a \u2581 \u2581 x"),
    ],
)
def test_unigram_families_have_the_spaces_of_their_class(tmp_path, family, given, pieces):
    """It replaces all but the vocabulary and the precompiled normalization."""
    content = tokenizers.unigram(SPECIAL, pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"))
    tokenizers.write(tmp_path, content, {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"} | given)
    tokenizer, _ = read_tokenizer(tmp_path, {"model_type": family, "decoder_start_token_id": 0})
    found = tokenizer.encode(["ab ", "a  x"])
    assert " | ".join(" ".join(tokenizer.pieces(ids)) for ids in found) == pieces


NEW = {"5": {"content": "<new>", "special": True}}


def _cased():
    """The content of a ``tokenizer.json`` like that of a cased BERT."""
    content = json.loads(tokenizers.word_piece())
    content["normalizer"]["lowercase"] = False
    return json.dumps(content)


def _spaced():
    """The content of a ``tokenizer.json`` like that of a GPT-2 with a space before each text."""
    content = json.loads(tokenizers.byte_level())
    content["pre_tokenizer"]["add_prefix_space"] = True
    return json.dumps(content)


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (tokenizers.word_piece, {"do_lower_case": False}, "has do_lower_case False, unlike"),
        (tokenizers.word_piece, {"do_lower_case": True, "strip_accents": False}, "has strip_accents False, unlike"),
        (tokenizers.word_piece, {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, ""),
        (tokenizers.byte_level, {"add_prefix_space": True}, "has add_prefix_space True, unlike"),
        (tokenizers.byte_level, {"add_prefix_space": False, "do_lower_case": True}, ""),
        (tokenizers.byte_level, {"added_tokens_decoder": NEW}, "has the token '<new>', unlike"),
        (tokenizers.byte_level, {"additional_special_tokens": ["<new>"]}, "has the token '<new>', unlike"),
        (tokenizers.byte_level, {"extra_special_tokens": {"image": "<new>"}}, "has the token '<new>', unlike"),
        (tokenizers.byte_level, {"split_special_tokens": True}, "has split_special_tokens True, unlike"),
        (_cased, {"tokenizer_class": "BertTokenizer"}, "has no do_lower_case, for which transformers takes True"),
        (_cased, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, ""),
        (_cased, {"tokenizer_class": "PreTrainedTokenizerFast"}, ""),
        (_spaced, {"tokenizer_class": "GPT2Tokenizer"}, "has no add_prefix_space, for which transformers takes False"),
        (tokenizers.byte_level, {"added_tokens_decoder": {"0": {"content": tokenizers.END}}}, ""),
    ],
)
def test_files_that_disagree_are_refused(tmp_path, content, given, message):
    """The classes of transformers replace rules of ``tokenizer.json`` by those of ``tokenizer_config.json``."""
    tokenizers.write(tmp_path, content(), {"eos_token": "[SEP]", "sep_token": tokenizers.END} | given)
    if not message:
        read_tokenizer(tmp_path, {})
        return
    with pytest.raises(DataError, match=message):
        read_tokenizer(tmp_path, {})


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_files_are_read_again(tmp_path, family):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    if family == "marian":
        marian.write(tmp_path / "in")
    else:
        tokenizers.write(tmp_path / "in", tokenizers.word_piece(), tokenizers.BERT)
    tokenizer, names = read_tokenizer(tmp_path / "in", {"model_type": family})
    for name, content in tokenizer_files(tokenizer, mask=family == "bert").items():
        (tmp_path / "out" / name).write_bytes(content)
    again, named = read_tokenizer(tmp_path / "out", {"model_type": family})
    assert again.fingerprint == tokenizer.fingerprint
    assert names.items() <= named.items()
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]


@pytest.mark.parametrize(
    ("kind", "clean_up", "text"),
    [
        ("word_piece", True, "the cat. the house."),
        ("word_piece", False, "the cat . the house ."),
        ("byte_level", True, "the cat . the house ."),  # BPE, which has the spaces of the text
        ("marian", True, "the cat. the house."),
        ("marian", False, "the cat . the house ."),
    ],
)
def test_spaces_before_marks_are_removed_as_in_transformers(tmp_path, kind, clean_up, text):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    given = {"clean_up_tokenization_spaces": clean_up, "eos_token": tokenizers.END}
    family = "marian" if kind == "marian" else "bert" if kind == "word_piece" else "gpt2"
    if kind == "marian":
        marian.write(tmp_path / "in")
        (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(given))
    else:
        content = json.loads(getattr(tokenizers, kind)())
        content["decoder"] |= {"cleanup": False} if kind == "word_piece" else {}
        tokenizers.write(tmp_path / "in", json.dumps(content), given)
    tokenizer, _ = read_tokenizer(tmp_path / "in", {"model_type": family})
    ids = tokenizer.encode(["the cat . the house ."], "target")[0]
    assert tokenizer.decode(ids) == text
    tokenizer.save(tmp_path / "saved.json")
    assert load_tokenizer(tmp_path / "saved.json").decode(ids) == text
    for name, file in tokenizer_files(tokenizer).items():
        (tmp_path / "out" / name).write_bytes(file)
    assert read_tokenizer(tmp_path / "out", {"model_type": family})[0].decode(ids) == text
