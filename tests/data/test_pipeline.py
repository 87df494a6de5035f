"""Tokenized corpora are prepared once, completely or not at all; batch streams can start at any step."""

import dataclasses
import functools
import itertools
import os
import threading
import time

import chex
import jax
import numpy as np
import pytest

from jaxformer.data.batch_plan import make_batch_plan
from jaxformer.data.pairs import Parallel
from jaxformer.data.pipeline import PlannedPairs, batches, prepare, prepare_tokenizer
from jaxformer.errors import ConfigError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.normalization import TextNormalizer
from jaxformer.tokenizers.special_tokens import SpecialTokens
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.data.small import CORPUS


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(CORPUS.lines(), vocab_size=400)


def test_batch_holds_the_sentences(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=2, multiple_of=4)
    special = tokenizer.special
    batch, (_, pairs, _) = PlannedPairs(tokens, plan).batch(3), plan.batch(3)
    for row, pair in enumerate(pairs):
        source = batch.source.ids[row][batch.source.valid[row]]
        labels = batch.labels[row][batch.target.valid[row]]
        target = batch.target.ids[row][batch.target.valid[row]]
        assert source[-1] == labels[-1] == special.eos
        assert target[0] == special.bos
        assert tokenizer.decode(source[:-1]) == CORPUS.source[pair]
        assert tokenizer.decode(labels[:-1]) == CORPUS.target[pair]
        assert (target[1:] == labels[:-1]).all()
    assert not batch.source.ids[~batch.source.valid].any()
    assert special.pad == 0


def test_a_stream_can_start_at_any_step(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=2, multiple_of=4)
    make = PlannedPairs(tokens, plan).batch
    first = list(itertools.islice(batches(make), 12))
    later = list(itertools.islice(batches(make, start=7), 5))
    for a, b in zip(first[7:], later, strict=True):
        assert (a.source.ids == b.source.ids).all()
        assert (a.labels == b.labels).all()
    assert len(list(batches(make, stop=4))) == 4


def test_tokenizer_is_trained_once(tokenizer, tmp_path, monkeypatch):
    """The same corpus and options find the cached model; other options do not."""
    first = prepare_tokenizer(CORPUS, tmp_path / "new", vocab_size=400, kind="unigram")
    assert first.fingerprint == tokenizer.fingerprint
    trained = []
    monkeypatch.setattr(SubwordTokenizer, "train", lambda *given, **options: trained.append(options) or tokenizer)
    assert prepare_tokenizer(CORPUS, tmp_path / "new", vocab_size=400, kind="unigram").fingerprint == first.fingerprint
    assert not trained
    prepare_tokenizer(CORPUS, tmp_path / "new", vocab_size=401, kind="bpe")
    prepare_tokenizer(Parallel(("a",), ("b",)), tmp_path / "new", vocab_size=400, kind="unigram")
    assert [t["vocab_size"] for t in trained] == [401, 400]


def test_any_number_of_languages_has_a_file(tokenizer, tmp_path, monkeypatch):
    """Their codes were in its name, which the disk refused; and those of two lists are not joined to one name."""
    trained = []
    monkeypatch.setattr(SubwordTokenizer, "train", lambda *given, **options: trained.append(options) or tokenizer)
    for languages in ([f"l{i}" for i in range(200)], ["en", "fr"], ["en-fr"]):
        for _ in range(2):
            prepare_tokenizer(CORPUS, tmp_path, vocab_size=400, kind="unigram", languages=languages)
    assert len(trained) == len(list(tmp_path.iterdir())) == 3


def test_a_tokenizer_that_another_process_trains_is_awaited(tokenizer, tmp_path, monkeypatch):
    """It is read when the other has saved it, and not trained again."""
    trained, waited, holding = [], [], threading.Event()

    def slow(*given, **options):
        trained.append(options)
        holding.set()
        deadline = time.monotonic() + 20
        while not waited and time.monotonic() < deadline:
            time.sleep(0.01)
        return tokenizer

    monkeypatch.setattr(SubwordTokenizer, "train", slow)
    prepared = functools.partial(prepare_tokenizer, CORPUS, tmp_path, vocab_size=400, kind="unigram")
    first = threading.Thread(target=prepared)
    first.start()
    assert holding.wait(60)
    assert prepared(waiting=waited.append).fingerprint == tokenizer.fingerprint
    first.join()
    assert len(trained) == 1
    assert waited[0].startswith(f"process {os.getpid()} on ")
    assert [path.suffix for path in tmp_path.iterdir()] == [".model"]


def test_each_normalization_has_its_own_tokenizer_and_tokens(tmp_path):
    """The cache does not mix them; the tokens of each side are of the normalized text."""
    forms = [TextNormalizer(), TextNormalizer(lowercase=True), TextNormalizer(False, "moses", "en", "fr")]
    for form in forms * 2:
        tokenizer = prepare_tokenizer(CORPUS, tmp_path, vocab_size=400, kind="unigram", normalizer=form)
        assert tokenizer.normalizer == form
        tokens = prepare(CORPUS, tokenizer, tmp_path, num_segmentations=2)
        for side, ragged, texts in (("source", tokens.source, CORPUS.source), ("target", tokens.target, CORPUS.target)):
            for variant in ragged:
                assert [tokenizer.normalized(ids) for ids in variant] == form(texts, side)
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("damage", ["cut", "flipped", "of an earlier version"])
def test_a_damaged_tokenizer_is_trained_again(tmp_path, caplog, damage):
    """A flipped bit of a score makes another vocabulary, which sentencepiece reads without an error."""
    first = prepare_tokenizer(CORPUS, tmp_path, vocab_size=400, kind="bpe")
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    place = data.index(b"the") + 6  # in the score of a piece
    data[place] ^= 1
    file.write_bytes({"cut": data[:99], "flipped": data, "of an earlier version": first._model}[damage])
    for _ in range(2):
        assert prepare_tokenizer(CORPUS, tmp_path, vocab_size=400, kind="bpe").fingerprint == first.fingerprint
    assert caplog.text.count("training it again") == 1


def test_sampled_segmentations(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path, num_segmentations=3)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=1024, num_shapes=1, multiple_of=1)
    first, again = (PlannedPairs(tokens, plan).batch(0) for _ in range(2))
    assert (first.source.ids == again.source.ids).all()
    rows = PlannedPairs(tokens, plan).batch(0), plan.batch(0)[1]
    assert tokenizer.decode(rows[0].source.ids[0][rows[0].source.valid[0]][:-1]) == CORPUS.source[rows[1][0]]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def redrawn(request):
    tokenizer = SubwordTokenizer.train(CORPUS.lines(), vocab_size=400, kind=request.param)
    tokens = prepare(CORPUS, tokenizer, None, num_segmentations=0, alpha=0.2, seed=5)
    return tokenizer, tokens, make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=3, multiple_of=4)


def texts_of(batch, side):
    """The tokens of each sentence of a batch, without the end."""
    ids = batch.source.ids if side == "source" else batch.labels
    valid = batch.source.valid if side == "source" else batch.target.valid
    return [tuple(row[own][:-1].tolist()) for row, own in zip(ids, valid, strict=True) if own.any()]


def test_segmentations_drawn_in_each_epoch(redrawn):
    """Every epoch has its own, with the same sentences and shapes; they are functions of epoch and sentence."""
    tokenizer, tokens, plan = redrawn
    make = PlannedPairs(tokens, plan).batch
    seen = [{}, {}, {}]
    for step in range(3 * plan.steps_per_epoch):
        shape, pairs, epoch = plan.batch(step)
        batch = make(step)
        assert batch.source.shape == (shape[0], shape[1])
        assert batch.labels.shape == (shape[0], shape[2])
        for side, corpus in (("source", CORPUS.source), ("target", CORPUS.target)):
            for pair, ids in zip(pairs.tolist(), texts_of(batch, side), strict=True):
                assert tokenizer.decode(ids) == corpus[pair]
                seen[epoch][side, pair] = ids
    assert set(seen[0]) == set(seen[1]) == set(seen[2])
    assert len(seen[0]) == 2 * (len(CORPUS) - len(plan.skipped))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        changed = sum(seen[one][key] != seen[other][key] for key in seen[0])
        assert changed > 0.9 * len(seen[0])
    stored = {key: {tuple(x[key[1]].tolist()) for x in getattr(tokens, key[0])} for key in seen[0]}
    assert sum(seen[0][key] not in stored[key] for key in stored) > 0.5 * len(stored)
    step = plan.steps_per_epoch + 2
    some = PlannedPairs(tokens, plan).batch(step, rows=lambda number: np.arange(1, number, 2))
    chex.assert_trees_all_equal(some, jax.tree.map(lambda x: x[1::2], make(step)))


def test_segmentations_of_another_seed_differ(redrawn):
    _, tokens, plan = redrawn
    other = dataclasses.replace(tokens, redrawn=dataclasses.replace(tokens.redrawn, seed=6))
    one, another = (PlannedPairs(x, plan).batch(0) for x in (tokens, other))
    assert texts_of(one, "target") != texts_of(another, "target")


def test_segmentations_that_are_too_long_are_drawn_again(redrawn):
    """A sentence keeps its given tokens if no draw fits."""
    tokenizer, tokens, _ = redrawn
    ids = tokens.source[0][7]
    longer = [tokens.redrawn(ids, epoch=epoch, sentence=0, limit=999) for epoch in range(40)]
    limit = int(np.median([len(drawn) for drawn in longer]))
    drawn = [tokens.redrawn(ids, epoch=epoch, sentence=0, limit=limit) for epoch in range(40)]
    assert {tokenizer.decode(one) for one in drawn} == {CORPUS.source[7]}
    assert max(map(len, drawn)) == limit
    assert len({one.tobytes() for one in drawn}) > 5
    others = [tokens.redrawn(ids, epoch=0, sentence=sentence, limit=limit) for sentence in range(40)]
    assert len({one.tobytes() for one in others}) > 5
    kept = [a for a, b in zip(longer, drawn, strict=True) if len(a) <= limit and a.tobytes() == b.tobytes()]
    assert len(kept) == sum(len(a) <= limit for a in longer)
    assert tokens.redrawn(ids, epoch=0, sentence=0, limit=len(ids) - 1).tolist() == ids.tolist()


def test_another_corpus_is_another_folder(tokenizer, tmp_path):
    prepare(CORPUS, tokenizer, tmp_path)
    prepare(Parallel(CORPUS.source, (*CORPUS.target[:-1], "Autre.")), tokenizer, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_other_special_tokens_reach_the_batch(tmp_path):
    """The order of BART and Marian: bos 0, pad 1, eos 2; the sentences are the same, padding is 1."""
    special = SpecialTokens(pad=1, bos=0, eos=2, unk=3)
    tokenizer = SubwordTokenizer.train(CORPUS.lines(), vocab_size=400, special=special)
    assert tokenizer.special == special
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=2, multiple_of=4)
    for step in range(3):
        batch, (_, pairs, _) = PlannedPairs(tokens, plan).batch(step), plan.batch(step)
        assert (batch.source.ids[~batch.source.valid] == 1).all()
        assert (batch.target.ids[~batch.target.valid] == 1).all()
        assert (batch.labels[~batch.target.valid] == 1).all()
        assert (batch.target.ids[: len(pairs), 0] == 0).all()
        for row, pair in enumerate(pairs):
            labels = batch.labels[row][batch.target.valid[row]]
            assert labels[-1] == 2
            assert tokenizer.decode(labels) == CORPUS.target[pair]
            assert tokenizer.decode(batch.source.ids[row]) == CORPUS.source[pair]  # padding and eos are silent


def test_rows_of_several_hosts_form_the_batch(tokenizer, tmp_path):
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    plan = make_batch_plan(*tokens.lengths(), tokens_per_batch=512, num_shapes=2, multiple_of=4)
    for step in (0, 5, plan.steps_per_epoch - 1):
        expected = PlannedPairs(tokens, plan).batch(step).source.ids
        num_rows = len(expected)
        hosts = [np.arange(0, num_rows + 4, 2), np.arange(1, num_rows + 4, 2)]
        parts = [PlannedPairs(tokens, plan).batch(step, rows=lambda _, mine=mine: mine) for mine in hosts]
        joined = np.stack([part.source.ids for part in parts], 1).reshape(-1, expected.shape[1])
        np.testing.assert_array_equal(joined[:num_rows], expected)
        assert not any(part.source.valid[-2:].any() for part in parts)


def test_characters(tmp_path):
    tokenizer = prepare_tokenizer(CORPUS, tmp_path, kind="characters")
    assert isinstance(tokenizer, CharacterTokenizer)
    tokens = prepare(CORPUS, tokenizer, tmp_path)
    assert tokenizer.decode(tokens.target[0][7]) == CORPUS.target[7]
    with pytest.raises(ConfigError, match="num_segmentations must be 1 for tokens with one segmentation, got 2"):
        prepare(CORPUS, tokenizer, tmp_path, num_segmentations=2)
    with pytest.raises(ConfigError, match="num_segmentations must be 1 for tokens with one segmentation, got 0"):
        prepare(CORPUS, tokenizer, tmp_path, num_segmentations=0)


def test_several_threads_make_batches_and_keep_their_order():
    """Two at a time: each of a pair waits for the other."""
    pair = threading.Barrier(2)

    def make(number):
        pair.wait(timeout=20)
        return number

    assert list(batches(make, stop=8, num_threads=2)) == list(range(8))


def test_an_error_in_a_thread_is_raised_unchanged():
    def make(number):
        if number == 5:
            raise ConfigError("the fifth")
        return number

    with pytest.raises(ConfigError) as error:
        list(batches(make, stop=8, num_threads=2))
    assert str(error.value) == "the fifth"
