"""The tokenizer of a run: trained once, and found under either name."""

import pytest

from jaxformer.data.pairs import Parallel
from jaxformer.data.text import Text
from jaxformer.errors import ConfigError, DataError
from jaxformer.multihost import processes
from jaxformer.tasks import registry, text
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.normalization import TextNormalizer


def test_a_tokenizer_is_trained_once(tmp_path):
    """A run with a tokenizer keeps it, for any settings: it came with `init_from`."""
    first = text.make_run_tokenizer(tmp_path, Text("abc"), None, kind="characters", vocab_size=0)
    assert isinstance(first, CharacterTokenizer)
    assert text.saved_tokenizer(tmp_path) == tmp_path / "tokenizer.json"
    again = text.make_run_tokenizer(tmp_path, Text("other"), None, kind="bpe", vocab_size=400)
    assert again.fingerprint == first.fingerprint == text.run_tokenizer(tmp_path).fingerprint


@pytest.mark.parametrize(
    ("lines", "kind", "message"),
    [
        ("abc", "unigram", "data.vocab_size must be "),
        ("a" * 5000, "unigram", "cannot train a vocabulary: each line of the corpus is empty or longer than "),
        ("abc", "pretrained", "data.tokenizer pretrained comes with "),
    ],
)
def test_errors_name_the_setting_if_there_is_one(tmp_path, lines, kind, message):
    with pytest.raises(ConfigError) as error:
        text.make_run_tokenizer(tmp_path, Parallel((lines,), ()), None, kind=kind, vocab_size=8000)
    assert str(error.value).startswith(message)


def test_another_normalization_is_refused(tmp_path):
    """The tokenizer of `init_from` lacks letters that were not in its training text."""
    lines, size = Parallel(("a B",), ("c D",)), {"kind": "unigram", "vocab_size": 265}
    lower = TextNormalizer(lowercase=True)
    first = text.make_run_tokenizer(tmp_path, lines, None, **size, normalizer=lower)
    assert text.make_run_tokenizer(tmp_path, lines, None, **size, normalizer=lower).normalizer == lower
    with pytest.raises(ConfigError, match=r"for text with data\.lowercase True .* ask for data\.lowercase False"):
        text.make_run_tokenizer(tmp_path, lines, None, **size)
    assert first.fingerprint == text.run_tokenizer(tmp_path).fingerprint


@pytest.mark.parametrize("kind", [ConfigError, DataError, OSError])
def test_all_processes_raise_the_error_of_the_one_that_trains_the_tokenizer(tmp_path, monkeypatch, kind):
    """Otherwise the others would wait for its file."""
    answers = {ConfigError: [False, False], DataError: [False, True, False], OSError: [False, True, True]}
    answer = iter(answers[kind])
    monkeypatch.setattr(processes, "is_first", lambda: False)
    monkeypatch.setattr(processes, "all_true", lambda _: next(answer))
    with pytest.raises(kind, match="process 0 cannot learn the tokenizer"):
        text.make_run_tokenizer(tmp_path, Text("abc"), None, kind="characters", vocab_size=0)


def test_a_run_without_a_tokenizer(tmp_path):
    with pytest.raises(DataError, match=r"has no tokenizer: neither tokenizer\.model nor tokenizer\.json"):
        text.run_tokenizer(tmp_path)


@pytest.mark.parametrize("task", ["language_model", "classification", "captioning"])
def test_the_planned_number_of_tokens(task):
    """That of the model, or of its subwords; the number of characters is known to the data alone."""
    planned = lambda **changes: text.planned_vocab_size(registry.configure(task, **changes), "songs")
    assert planned(model={"vocab_size": 80}, data={"tokenizer": "characters"}) == 80
    assert planned(data={"tokenizer": "bpe", "vocab_size": 500}) == 500
    with pytest.raises(ConfigError, match=r"not known without the songs: give --model\.vocab_size N"):
        planned(data={"tokenizer": "characters"})


@pytest.mark.parametrize(("vocab_size", "rows"), [(7, 8), (8, 16), (8000, 8008)])
def test_a_table_has_a_row_for_the_mask_token(vocab_size, rows):
    assert text.table_size(vocab_size) == rows
