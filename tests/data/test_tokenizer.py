"""Files of tokenizers, and texts with the tokens that they begin with."""

import pytest

from jaxformer.data.pretrained_tokenizer import PretrainedTokenizer
from jaxformer.data.special_tokens import SpecialTokens
from jaxformer.data.subword_tokenizer import SubwordTokenizer
from jaxformer.data.tokenizer import encode_texts, load_tokenizer
from jaxformer.errors import DataError
from tests.data import pretrained


def test_a_text_begins_with_the_tokens_of_its_template():
    tokenizer = PretrainedTokenizer(pretrained.byte_level(begin="<s>"), SpecialTokens(0, 0, 0, 0))
    (first,) = tokenizer.start
    own, texts = tokenizer.encode(["The man.", ""]), encode_texts(tokenizer, ["The man.", ""], "target")
    assert [ids.tolist() for ids in texts] == [[first, *own[0]], [first]]
    assert texts[1].dtype == own[1].dtype
    trained = SubwordTokenizer.train(pretrained.LINES, vocab_size=320)
    assert encode_texts(trained, ["The man."])[0].tolist() == trained.encode(["The man."])[0].tolist()


@pytest.mark.parametrize("data", [b"", b"garbage", b"{", b"{}"])
def test_a_damaged_file_is_named(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match=r"tokenizer\.model is damaged"):
        load_tokenizer(tmp_path / "tokenizer.model")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
