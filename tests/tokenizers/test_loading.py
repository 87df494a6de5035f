"""Files of tokenizers that are damaged or missing."""

import pytest

from jaxformer.errors import DataError
from jaxformer.tokenizers.loading import load_tokenizer


@pytest.mark.parametrize("data", [b"", b"garbage", b"{", b"{}"])
def test_a_damaged_file_is_named(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match=r"tokenizer\.model is damaged"):
        load_tokenizer(tmp_path / "tokenizer.model")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
