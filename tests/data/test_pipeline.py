"""Tokenized corpora are prepared once, whole or not at all, and batches do not depend on where reading starts."""

import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxformer import demo
from jaxformer.data.batch import Batch
from jaxformer.data.batch_plan import make_batch_plan
from jaxformer.data.pipeline import batches, make_batch, prepare, prepare_tokenizer
from jaxformer.data.sources import Parallel
from jaxformer.data.tokenizer import BEGIN, END, PAD, Tokenizer

PAIRS = demo.generate(600)
CORPUS = Parallel(tuple(p.english for p in PAIRS), tuple(p.french for p in PAIRS))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train((*CORPUS.source, *CORPUS.target), vocab_size=400)


def test_batch_holds_the_sentences(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=2, multiple_of=4)
    batch, (_, pairs, _) = make_batch(tokens, plan, 3), plan.batch(3)
    for row, pair in enumerate(pairs):
        source = batch.source[row][batch.source_valid[row]]
        labels = batch.labels[row][batch.target_valid[row]]
        target = batch.target[row][batch.target_valid[row]]
        assert source[-1] == labels[-1] == END
        assert target[0] == BEGIN
        assert tokenizer.decode(source[:-1]) == CORPUS.source[pair]
        assert tokenizer.decode(labels[:-1]) == CORPUS.target[pair]
        assert (target[1:] == labels[:-1]).all()
    assert not batch.source[~batch.source_valid].any()
    assert PAD == 0


def test_stream_starts_anywhere(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=2, multiple_of=4)
    whole = list(itertools.islice(batches(tokens, plan), 12))
    later = list(itertools.islice(batches(tokens, plan, start=7), 5))
    for a, b in zip(whole[7:], later, strict=True):
        assert (a.source == b.source).all()
        assert (a.labels == b.labels).all()
    assert len(list(batches(tokens, plan, stop=4))) == 4


def test_tokenizer_is_trained_once(tokenizer, tmp_path, monkeypatch):
    """The same corpus and options find the first one's model; other options do not."""
    first = prepare_tokenizer(CORPUS, tmp_path / "new", vocab_size=400, kind="unigram")
    assert first.fingerprint == tokenizer.fingerprint
    trained = []
    monkeypatch.setattr(Tokenizer, "train", lambda *given, **options: trained.append(options) or tokenizer)
    assert prepare_tokenizer(CORPUS, tmp_path / "new", vocab_size=400, kind="unigram").fingerprint == first.fingerprint
    assert not trained
    prepare_tokenizer(CORPUS, tmp_path / "new", vocab_size=401, kind="bpe")
    prepare_tokenizer(Parallel(("a",), ("b",)), tmp_path / "new", vocab_size=400, kind="unigram")
    assert [t["vocab_size"] for t in trained] == [401, 400]


@pytest.mark.parametrize("name", ["about.json", "source-0.npy", "target-0-offsets.npy"])
@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:-60], lambda data: b"noise" * 99, None])
def test_a_damaged_cache_is_made_anew(tokenizer, tmp_path, caplog, name, change):
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


def test_arrays_that_do_not_belong_together_are_made_anew(tokenizer, tmp_path, caplog):
    tokens = prepare(CORPUS, tokenizer, tmp_path).source[0].tokens
    (folder,) = tmp_path.iterdir()
    np.save(folder / "source-0.npy", np.array(tokens[:-1]))
    assert len(prepare(CORPUS, tokenizer, tmp_path).source[0].tokens) == len(tokens)
    assert "which are not those of its offsets" in caplog.text


def test_a_damaged_tokenizer_is_trained_anew(tmp_path, caplog):
    first = prepare_tokenizer(CORPUS, tmp_path, vocab_size=400, kind="bpe")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:99])
    assert prepare_tokenizer(CORPUS, tmp_path, vocab_size=400, kind="bpe").fingerprint == first.fingerprint
    assert "training it anew" in caplog.text


def test_sampled_segmentations(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path, num_segmentations=3)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=1024, num_shapes=1, multiple_of=1)
    first, again = (make_batch(tokens, plan, 0) for _ in range(2))
    assert (first.source == again.source).all()
    rows = make_batch(tokens, plan, 0), plan.batch(0)[1]
    assert tokenizer.decode(rows[0].source[0][rows[0].source_valid[0]][:-1]) == CORPUS.source[rows[1][0]]


def test_prepared_once(tokenizer, tmp_path):
    prepare(CORPUS, tokenizer, tmp_path)
    (folder,) = tmp_path.iterdir()
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    prepare(CORPUS, tokenizer, tmp_path)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def test_another_corpus_is_another_folder(tokenizer, tmp_path):
    prepare(CORPUS, tokenizer, tmp_path)
    prepare(Parallel(CORPUS.source, (*CORPUS.target[:-1], "Autre.")), tokenizer, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_too_long_for_the_shape():
    with pytest.raises(ValueError, match="6 tokens, END included, does not fit length 5"):
        Batch.from_tokens([np.arange(4, 9)], [np.arange(4, 6)], (1, 5, 5))


@pytest.mark.faults
def test_killed_while_preparing(tokenizer, tmp_path):
    """A SIGKILL at any time leaves no half corpus: the next call makes or finds a whole one."""
    tokenizer.save(tmp_path / "t.model")
    program = (
        "import pathlib, sys\n"
        "from jaxformer import demo\n"
        "from jaxformer.data.pipeline import prepare\n"
        "from jaxformer.data.sources import Parallel\n"
        "from jaxformer.data.tokenizer import Tokenizer\n"
        "pairs = demo.generate(600)\n"
        "corpus = Parallel(tuple(p.english for p in pairs), tuple(p.french for p in pairs))\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "print('go', flush=True)\n"
        "prepare(corpus, Tokenizer.load(root / 't.model'), root / 'cache', num_segmentations=20)\n"
    )
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ
        )
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    tokens = prepare(CORPUS, tokenizer, tmp_path / "cache", num_segmentations=20)
    for variant in (0, 19):
        assert [tokenizer.decode(tokens.source[variant][i]) for i in range(600)] == list(CORPUS.source)
