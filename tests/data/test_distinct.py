"""Sentences of several corpora, each once, and pairs without given sentences."""

from jaxformer.data.distinct import DistinctSentences, without
from jaxformer.data.pairs import PairFiles, Parallel, read_pairs


def test_each_sentence_comes_once_and_a_hash_chooses():
    one = Parallel(tuple(f"s{i}" for i in range(400)), tuple(f"t{i}" for i in range(400)))
    other = Parallel(one.target[100:], one.source[100:])
    every = DistinctSentences((one, other), 10_000)
    assert sorted(every.lines()) == sorted({*one.lines()})
    assert {*every.load().source} == {*one.source, *other.source}
    few, fewer = DistinctSentences((one, other), 200), DistinctSentences((other, one), 20)
    assert (few.num_lines, fewer.num_lines) == (200, 20)
    assert {*fewer.lines()} < {*few.lines()} < {*every.lines()}
    assert len({each.fingerprint for each in (every, few, fewer)}) == 3


def test_pairs_without_given_sentences(tmp_path):
    """Those of files stay in them, with the numbers of skipped lines."""
    pairs = Parallel(("a", "b", "c"), ("x", "y", "z"), empty=(4,))
    for name, side in (("s", pairs.source), ("t", pairs.target)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in (*side, "")))
    of_files = read_pairs(PairFiles(((tmp_path / "s", tmp_path / "t"),)))
    for each in (pairs, of_files):
        left = without(each, {"b", "z"})
        assert (left.load().source, left.load().target) == (("a",), ("x",))
        assert (len(left), left.num_skipped) == (1, 1)
        assert left.fingerprint == Parallel(("a",), ("x",)).fingerprint != each.fingerprint
        assert without(each, {"q"}) is each
