"""Special tokens are data: any ids, as long as they are ids."""

import pytest

from jaxformer.tokenizers.special_tokens import SpecialTokens


def test_ids():
    assert SpecialTokens(pad=5, bos=5, eos=0, unk=1).ids == {0, 1, 5}
    assert SpecialTokens(pad=5) == SpecialTokens(5, 1, 2, 3)
    assert len({SpecialTokens(), SpecialTokens(0, 1, 2, 3)}) == 1


def test_a_negative_id_is_refused():
    with pytest.raises(ValueError, match="bos must be a token id, got -1"):
        SpecialTokens(bos=-1)
