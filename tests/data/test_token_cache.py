"""Tokenized corpora are saved completely or not at all, and rebuilt if they are damaged."""

import errno
import io
import itertools
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest

from jaxformer.data import token_cache
from jaxformer.data.pairs import Parallel
from jaxformer.data.pipeline import prepare, prepare_tokenizer
from jaxformer.data.token_cache import CHECKSUMS, Ragged, cached_sequences
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.data.small import CORPUS
from tests.permissions import read_only
from tests.selection import first


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(CORPUS.lines(), vocab_size=400)


def saved(array):
    """The bytes of the file that `numpy.save` writes."""
    np.save(stream := io.BytesIO(), array)
    return stream.getvalue()


def test_concatenated_sequences(tmp_path):
    sequences = {"a": [np.array([1, 2]), np.array([], int), np.array([3])], "b": [np.array([70_000])] * 3}
    asked = []

    def make(name):
        asked.append(name)
        return [sequences[name][:1], [], sequences[name][1:]]

    for _ in range(2):
        arrays = cached_sequences(tmp_path, "key", ["a", "b"], make, num_sequences=3, vocab_size=70_001)
        assert all(isinstance(array, Ragged) for array in arrays.values())
        for name, expected in sequences.items():
            assert [arrays[name][i].tolist() for i in range(3)] == [tokens.tolist() for tokens in expected]
        assert arrays["a"].lengths.tolist() == [2, 0, 1]
        assert (tmp_path / "key" / "a.npy").read_bytes() == saved(np.array([1, 2, 3], np.int32))
        assert (tmp_path / "key" / "a-offsets.npy").read_bytes() == saved(np.array([0, 2, 2, 3]))
    assert asked == ["a", "b"]


CHANGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-60],
    "noise": lambda data: b"noise" * 99,
    "unclosed": lambda data: data.replace(b"}", b" ", 1),
    "gone": None,
}
DAMAGE = list(itertools.product(["source-0.npy", "target-0-offsets.npy"], CHANGES))
FEW = *(("source-0.npy", name) for name in ("cut", "noise", "unclosed", "gone")), ("target-0-offsets.npy", "empty")


@pytest.mark.parametrize("damage", first(DAMAGE, *FEW), ids=" ".join)
def test_a_damaged_cache_is_rebuilt(tokenizer, tmp_path, caplog, damage):
    name, change = damage[0], CHANGES[damage[1]]
    corpus = Parallel(CORPUS.source[:9], CORPUS.target[:9])
    before = prepare(corpus, tokenizer, tmp_path)
    (folder,) = tmp_path.iterdir()
    file = folder / name
    expected = file.read_bytes()
    file.unlink() if change is None else file.write_bytes(change(expected))
    after = prepare(corpus, tokenizer, tmp_path)
    assert "is damaged" in caplog.text
    assert file.read_bytes() == expected
    assert list(tmp_path.iterdir()) == [folder]
    np.testing.assert_array_equal(after.target[0].tokens, before.target[0].tokens)


def flip_last(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["source-0.npy", "target-0-offsets.npy", CHECKSUMS])
def test_a_flipped_bit_is_noticed(tokenizer, tmp_path, caplog, name):
    """A token with another value is still a token: it would train another model."""
    prepare(CORPUS, tokenizer, tmp_path)
    before = prepare(CORPUS, tokenizer, None)
    (folder,) = tmp_path.iterdir()
    flip_last(folder / name) if name != CHECKSUMS else (folder / name).write_text("[]")
    after = prepare(CORPUS, tokenizer, tmp_path)
    assert "is damaged" in caplog.text
    np.testing.assert_array_equal(after.source[0].tokens, before.source[0].tokens)
    np.testing.assert_array_equal(after.target[0].offsets, before.target[0].offsets)


def test_a_cache_of_an_earlier_version_is_rebuilt_once(tokenizer, tmp_path, caplog):
    """It has no checksums."""
    prepare(CORPUS, tokenizer, tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / CHECKSUMS).unlink()
    for _ in range(2):
        prepare(CORPUS, tokenizer, tmp_path)
    assert caplog.text.count("or of an earlier version") == 1
    assert (folder / CHECKSUMS).exists()


def test_arrays_that_do_not_match_are_rebuilt(tokenizer, tmp_path, caplog):
    tokens = prepare(CORPUS, tokenizer, tmp_path).source[0].tokens
    (folder,) = tmp_path.iterdir()
    np.save(folder / "source-0.npy", np.array(tokens[:-1]))
    assert len(prepare(CORPUS, tokenizer, tmp_path).source[0].tokens) == len(tokens)
    assert "which are not those of its offsets" in caplog.text


def test_decreasing_offsets_are_rebuilt(tokenizer, tmp_path, caplog):
    lengths = prepare(CORPUS, tokenizer, tmp_path).source[0].lengths
    (folder,) = tmp_path.iterdir()
    offsets = np.load(folder / "source-0-offsets.npy")
    offsets[1] += 1 << 20  # one bit of the file
    np.save(folder / "source-0-offsets.npy", offsets)
    np.testing.assert_array_equal(prepare(CORPUS, tokenizer, tmp_path).source[0].lengths, lengths)
    assert "which are not those of its offsets" in caplog.text


def test_prepared_once(tokenizer, tmp_path):
    prepare(CORPUS, tokenizer, tmp_path)
    (folder,) = tmp_path.iterdir()
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    prepare(CORPUS, tokenizer, tmp_path)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def test_a_full_cache_is_named_and_left_unchanged(tokenizer, tmp_path, monkeypatch, caplog):
    """The tokens are held in memory instead."""
    expected = prepare(CORPUS, tokenizer, tmp_path / "good")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(token_cache._ArrayFile, "add", full)
    tokens = prepare(CORPUS, tokenizer, tmp_path / "full")
    assert f"tokens cannot be kept in {tmp_path / 'full'}/" in caplog.text
    assert "(No space left on device), and are held in memory" in caplog.text
    assert list((tmp_path / "full").iterdir()) == []
    for side in ("source", "target"):
        (ragged,), (memory,) = getattr(expected, side), getattr(tokens, side)
        np.testing.assert_array_equal(memory.tokens, ragged.tokens)
        np.testing.assert_array_equal(memory.offsets, ragged.offsets)
        assert memory.tokens.dtype == ragged.tokens.dtype


def test_without_a_cache_tokens_are_held_in_memory(tokenizer, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    tokens = prepare(CORPUS, tokenizer, None)
    assert tokenizer.decode(tokens.source[0][3]) == CORPUS.source[3]
    assert prepare_tokenizer(CORPUS, None, kind="unigram", vocab_size=400).vocab_size == 400
    assert (os.listdir(), caplog.text) == ([], "")


def test_a_read_only_cache_is_used(tokenizer, tmp_path, caplog):
    prepare(CORPUS, tokenizer, tmp_path)
    corpus = Parallel(CORPUS.source[:9], CORPUS.target[:9])
    with read_only(tmp_path):
        assert isinstance(prepare(CORPUS, tokenizer, tmp_path).source[0].tokens.base, np.memmap)
        assert caplog.text == ""
        assert len(prepare(corpus, tokenizer, tmp_path).source[0]) == 9
        assert "(Permission denied), and are held in memory" in caplog.text
        assert prepare_tokenizer(corpus, tmp_path, kind="bpe", vocab_size=310).vocab_size == 310
        assert "the tokenizer is not kept for later runs: [Errno 13] Permission denied" in caplog.text


def test_files_of_a_killed_process_are_removed(tokenizer, tmp_path):
    left = tmp_path / ".tmp-0123abcd-key"
    left.mkdir()
    os.utime(left, (0, 0))
    prepare(CORPUS, tokenizer, tmp_path)
    assert not left.exists()


@pytest.mark.faults
def test_killed_while_preparing(tokenizer, tmp_path):
    """A SIGKILL at any time leaves no incomplete corpus: the next call makes or finds a complete one."""
    tokenizer.save(tmp_path / "t.model")
    program = (
        "import pathlib, sys\n"
        "from jaxformer import demo\n"
        "from jaxformer.data.pipeline import prepare\n"
        "from jaxformer.data.sources import Parallel\n"
        "from jaxformer.tokenizers.loading import load_tokenizer\n"
        "pairs = demo.generate(600)\n"
        "corpus = Parallel(tuple(p.english for p in pairs), tuple(p.french for p in pairs))\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "print('go', flush=True)\n"
        "prepare(corpus, load_tokenizer(root / 't.model'), root / 'cache', num_segmentations=20)\n"
    )
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ
        )
        assert process.stdout.readline() == b"go\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    tokens = prepare(CORPUS, tokenizer, tmp_path / "cache", num_segmentations=20)
    for variant in (0, 19):
        assert [tokenizer.decode(tokens.source[variant][i]) for i in range(600)] == list(CORPUS.source)


@pytest.mark.parametrize("indices", [[], [2], [3, 0, 0, 1, 4]])
def test_take_equals_a_loop(indices):
    lists = [[], [7], [5, 6, 7], [], [9, 8]]
    ragged = Ragged.join([np.array(ids, np.uint8) for ids in lists])
    taken = ragged.take(np.array(indices, np.int64))
    assert [taken[i].tolist() for i in range(len(taken))] == [lists[i] for i in indices]
    assert taken.tokens.dtype == np.uint8


def test_sequences_of_the_stored_dtype_are_copied_once():
    """Pixels are many: only the list that `make` returns and the concatenated array are in memory."""
    number, size = 20, 1 << 18
    tracemalloc.start()
    try:
        make = lambda _: [[np.zeros(size, np.uint8) for _ in range(number)]]
        found = cached_sequences(None, "pixels", ["pixels"], make, num_sequences=number, vocab_size=256)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found["pixels"].tokens.dtype == np.uint8
    assert peak < 2.1 * number * size


def test_lengths_of_very_long_sequences_are_exact():
    assert Ragged(np.zeros(0), np.array([0, 3, 70_003])).small_lengths.tolist() == [3, 70_000]
    assert Ragged(np.zeros(0), np.array([0, 3, 9_003])).small_lengths.dtype == np.uint16
