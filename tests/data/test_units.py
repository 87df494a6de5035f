"""Large corpora are tokenized in units: the same bytes for any number of workers, parts and kills."""

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from jaxformer.data import pipeline, units
from jaxformer.data.pairs import PairFiles, Parallel, read_pairs
from jaxformer.data.pipeline import prepare, prepare_part
from jaxformer.data.units import Share, Units
from jaxformer.errors import DataError, JaxformerError
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.tokenizers.subwords import SubwordTokenizer
from tests.data.small import CORPUS


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.train(CORPUS.lines(), vocab_size=400)


@pytest.fixture
def expected(tokenizer, tmp_path):
    prepare(CORPUS, tokenizer, tmp_path / "expected")
    return contents(tmp_path / "expected")


@pytest.fixture
def small_units(expected, monkeypatch):
    """Six units, with a short last one, of the corpus whose files are `expected`."""
    monkeypatch.setattr(units, "UNIT", 110)
    monkeypatch.setattr(pipeline, "SMALL", 100)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("workers", [1, 2])
def test_units_make_the_same_files(tokenizer, tmp_path, expected, workers):
    done = []
    share = Share(workers=workers, progress=done.append)
    found = prepare(CORPUS, tokenizer, tmp_path / "new", share=share)
    assert contents(tmp_path / "new") == expected
    assert (sum(done), len(done)) == (1200, 6)
    assert isinstance(found.source[0].tokens.base, np.memmap)
    prepare(CORPUS, tokenizer, tmp_path / "new", share=share)
    assert len(done) == 6  # they are read


@pytest.mark.usefixtures("small_units")
def test_sampled_segmentations_do_not_depend_on_units(tokenizer, tmp_path, monkeypatch):
    prepare(CORPUS, tokenizer, tmp_path / "units", num_segmentations=3, seed=4)
    monkeypatch.setattr(pipeline, "SMALL", 1000)
    prepare(CORPUS, tokenizer, tmp_path / "whole", num_segmentations=3, seed=4)
    assert contents(tmp_path / "units") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_parts_in_any_order_and_again(tokenizer, tmp_path, expected, order):
    """A part that is done again keeps its units; a damaged unit is made again; the last part joins all."""
    cache = tmp_path / "new"
    for turn, part in enumerate(order):
        missing = prepare_part(CORPUS, tokenizer, cache, share=Share(part, 4))
        assert (missing == 0) == (turn == 3)
        if turn == 1:
            (folder,) = cache.glob("*.units")
            first, *others = sorted(folder.iterdir())
            times = [path.stat().st_mtime_ns for path in others]
            data = bytearray(first.read_bytes())
            data[len(data) // 2] ^= 1
            first.write_bytes(data)
            for again in order[:2]:
                prepare_part(CORPUS, tokenizer, cache, share=Share(again, 4))
            assert [path.stat().st_mtime_ns for path in others] == times
    assert contents(cache) == expected


@pytest.mark.usefixtures("small_units")
def test_a_unit_of_other_data_is_refused(tokenizer, tmp_path):
    cache = tmp_path / "new"
    prepare_part(CORPUS, tokenizer, cache, share=Share(0, 2))
    (folder,) = cache.glob("*.units")
    other = Parallel(CORPUS.target, CORPUS.source)
    prepare_part(other, tokenizer, cache, share=Share(0, 2))
    (theirs,) = set(cache.glob("*.units")) - {folder}
    (theirs / "000000.npz").write_bytes((folder / "000000.npz").read_bytes())
    with pytest.raises(DataError, match=r"000000\.npz is a unit of other data or settings \(.*\); remove it"):
        prepare_part(other, tokenizer, cache, share=Share(0, 2))
    assert len(list(folder.iterdir())) == 3


@pytest.mark.usefixtures("small_units")
def test_files_that_change_before_a_part_is_made_are_refused(tokenizer, tmp_path):
    """Their tokens would be kept under the hash of the earlier text."""
    write = lambda texts: [(tmp_path / side).write_text("\n".join(texts) + "\n") for side in ("s", "t")]
    write([f"a{i}" for i in range(330)])
    corpus = read_pairs(PairFiles(((tmp_path / "s", tmp_path / "t"),)))
    assert corpus.fingerprint
    write([f"b{i}" for i in range(330)])
    for part in range(3):
        with pytest.raises(DataError, match="has changed since it was first read; start again"):
            prepare_part(corpus, tokenizer, tmp_path / "new", share=Share(part, 3))
    assert not list(tmp_path.glob("new/*.units/*"))


@pytest.mark.usefixtures("small_units")
def test_two_parts_that_end_at_once_join_once(tokenizer, tmp_path, expected, monkeypatch):
    """The other one may join all, and remove the units, after this one has found none missing."""
    cache, missing, done = tmp_path / "new", Units.missing, []

    def then_the_other_joins(work):
        found = missing(work)
        with monkeypatch.context() as patch:
            patch.setattr(Units, "missing", missing)
            prepare_part(CORPUS, tokenizer, cache, share=Share(1, 2))
        return found

    monkeypatch.setattr(Units, "missing", then_the_other_joins)
    assert prepare_part(CORPUS, tokenizer, cache, share=Share(0, 2, progress=done.append)) == 0
    assert len(done) == 3
    assert contents(cache) == expected


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("is_array", [False, True])
def test_a_file_that_is_no_unit_is_made_again(tokenizer, tmp_path, expected, is_array):
    """An array, or an archive with a method or a flag that Python does not read."""
    prepare_part(CORPUS, tokenizer, tmp_path / "new", share=Share(0, 2))
    (folder,) = (tmp_path / "new").glob("*.units")
    path = folder / "000000.npz"
    if is_array:
        np.save(path.with_suffix(".npy"), np.zeros(3))
        path.with_suffix(".npy").rename(path)
    else:
        data = bytearray(path.read_bytes())
        data[data.index(b"PK\x01\x02") + 8] |= 1  # "is encrypted"
        path.write_bytes(data)
    prepare(CORPUS, tokenizer, tmp_path / "new")
    assert contents(tmp_path / "new") == expected


@pytest.mark.usefixtures("small_units")
def test_a_full_disk_loses_nothing(tokenizer, tmp_path, monkeypatch, caplog, expected):
    """A part ends with the error of the disk and keeps what is done; a training holds its tokens in memory."""
    write, cache = units.write_unit, tmp_path / "new"

    def full(path, *others):
        if path.name >= "000002":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, *others)

    with monkeypatch.context() as patch:
        patch.setattr(units, "write_unit", full)
        with pytest.raises(OSError, match="No space left"):
            prepare_part(CORPUS, tokenizer, cache, share=Share())
        with pytest.raises(OSError, match="No space left"):
            prepare(CORPUS, tokenizer, cache, share=Share(0, 2))
        found = prepare(CORPUS, tokenizer, cache)
    assert "units of tokens cannot be kept" in caplog.text
    assert found.source[0].tokens.tobytes() == prepare(CORPUS, tokenizer, None).source[0].tokens.tobytes()
    shutil.rmtree(next(path for path in cache.iterdir() if path.suffix != ".units"))
    (folder,) = cache.glob("*.units")
    assert sorted(path.name for path in folder.iterdir()) == ["000000.npz", "000001.npz"]
    assert prepare_part(CORPUS, tokenizer, cache, share=Share()) == 0
    assert contents(cache) == expected


@pytest.mark.usefixtures("small_units")
def test_a_worker_that_ends_is_an_error(tmp_path):
    """It cannot read its tokenizer; a scheduler may start the command again."""

    class Broken(CharacterTokenizer):
        def _file(self):
            return b"noise"

    tokenizer = Broken("".join(sorted({character for line in CORPUS.lines() for character in line})))
    with pytest.raises(JaxformerError, match="a process that tokenizes ended with 1; run it again") as error:
        prepare(CORPUS, tokenizer, tmp_path / "new", share=Share(workers=2))
    assert error.value.exit_code == 1


@pytest.mark.usefixtures("small_units")
def test_several_processes_wait_for_each_other(tokenizer, tmp_path, expected):
    """As threads: each makes its units, and the first joins all; the wait ends if no process writes."""
    cache, found = tmp_path / "new", {}

    def work(part):
        found[part] = prepare(CORPUS, tokenizer, cache, share=Share(part, 2, patience=30))

    threads = [threading.Thread(target=work, args=(part,)) for part in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(cache) == expected
    assert found[0].source[0].tokens.tobytes() == found[1].source[0].tokens.tobytes()
    began = time.monotonic()
    with pytest.raises(JaxformerError, match=r"3 of 6 units of .* are missing, and no other process has written there"):
        prepare(CORPUS, tokenizer, tmp_path / "alone", share=Share(0, 2, patience=0.5))
    assert time.monotonic() - began < 20


PROGRAM = """
import sys
from benchmarks.data_preparation import sampled
from jaxformer.data.pairs import PairFiles, read_pairs
from jaxformer.data.pipeline import prepare
from jaxformer.data.sources import split_by_source
from jaxformer.data.units import Share, Units
from jaxformer.tokenizers.loading import load_tokenizer
import pathlib
folder = pathlib.Path(sys.argv[1])
tokenizer = load_tokenizer(folder / "tokenizer")
with sampled() as found:
    pairs = read_pairs(PairFiles(((folder / "s", folder / "t"),)))
    train, *_ = split_by_source(pairs, held_out=[1000, 1000], seed=0)
    tokens = prepare(train, tokenizer, folder / "cache", share=Share(workers=2))
    tokens.lengths()
print(int(found["memory"]))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_bounded(tokenizer, tmp_path):
    """200,000 pairs (60 MB of text) need at most 200 MB above imports, workers included, without mapped files."""
    draw = random.Random(0)
    lines = [line for line in CORPUS.lines() if len(line) > 25]
    for side in ("s", "t"):
        with (tmp_path / side).open("w") as file:
            file.writelines(" ".join(draw.choices(lines, k=4)) + f" {i}\n" for i in range(200_000))
    tokenizer.save(tmp_path / "tokenizer")
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True)
    assert 20e6 < int(result.stdout) < 200e6


@pytest.mark.usefixtures("small_units")
def test_another_run_joins_the_units_first(tokenizer, tmp_path, monkeypatch, caplog, expected):
    """It removes them while this one reads them, and has kept the same arrays."""
    blocks = units.Units.blocks

    def late(self, side):
        monkeypatch.setattr(units.Units, "blocks", blocks)
        prepare(CORPUS, tokenizer, tmp_path / "new")  # by the other run
        return blocks(self, side)

    monkeypatch.setattr(units.Units, "blocks", late)
    found = prepare(CORPUS, tokenizer, tmp_path / "new")
    assert isinstance(found.source[0].tokens.base, np.memmap)
    assert contents(tmp_path / "new") == expected
    assert not caplog.text
