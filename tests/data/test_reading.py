"""What is known about the lines of large files is kept, and is the same when it is read."""

import itertools

import pytest

from jaxformer.data import pairs, reading
from jaxformer.data.distinct import without
from jaxformer.data.pairs import FilePairs, PairFiles
from jaxformer.data.reading import read_split, read_without


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "LARGE", 100)
    for side in ("s", "t"):
        (tmp_path / side).write_text("".join(f"{side}{i // 2} é\n" for i in range(60)) + "\n" + "x" * 10_001)
    return PairFiles(((tmp_path / "s", tmp_path / "t"),))


def facts(parts):
    texts = [(part.load().source, part.load().target, part.load().empty, part.load().overlong) for part in parts]
    return [part.fingerprint for part in parts], [part.report() for part in parts], texts


def test_files_are_read_once(files, tmp_path, monkeypatch):
    """A second start, of this content and these settings, only hashes them; another content is read."""
    expected = facts(read_split(files, held_out=5, parts=2, cache=None))
    assert facts(read_split(files, held_out=5, parts=2, cache=tmp_path / "c")) == expected
    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_pairs", None)
        kept = read_split(files, held_out=5, parts=2, cache=tmp_path / "c")
        assert isinstance(kept[0], FilePairs)
        assert [part.fingerprint for part in kept] == expected[0]
    assert facts(kept) == expected
    assert len(read_split(files, held_out=6, parts=1, cache=tmp_path / "c")) == 2
    (path := files.files[0][1]).write_text(path.read_text().replace("t7", "u7"))
    assert facts(read_split(files, held_out=5, parts=2, cache=tmp_path / "c"))[0] != expected[0]
    assert len(list((tmp_path / "c").iterdir())) == 3


def test_pairs_that_are_left_out_are_found_once(files, tmp_path, monkeypatch):
    train, *_ = read_split(files, held_out=5, parts=1, cache=tmp_path / "c")
    texts = {"s3 é", "t8 é"}
    expected = facts([without(train, texts)])
    assert facts([read_without(train, texts, cache=tmp_path / "c")]) == expected
    monkeypatch.setattr(reading, "without", None)
    (kept, *_) = read_split(files, held_out=5, parts=1, cache=tmp_path / "c")
    found = read_without(kept, texts, cache=tmp_path / "c")
    with monkeypatch.context() as patch:
        patch.setattr(PairFiles, "side", None)
        assert found.fingerprint == expected[0][0]
    assert facts([found]) == expected
    with pytest.raises(TypeError):  # others are looked for
        read_without(kept, {"s3 é"}, cache=tmp_path / "c")


def test_the_same_pairs_in_other_lines(tmp_path, monkeypatch):
    """A blank line has moved, or is gone: what is known of one file holds for no other."""
    monkeypatch.setattr(pairs, "LARGE", 1)
    for lines in (["a\tA", "", "b\tB", "c\tC"], ["a\tA", "b\tB", "", "c\tC"], ["a\tA", "b\tB", "c\tC"]):
        (tmp_path / "table").write_text("\n".join(lines))
        (kept,) = read_split(PairFiles(((tmp_path / "table",),)), held_out=0, parts=0, cache=tmp_path / "c")
        assert read_without(kept, {"c"}, cache=tmp_path / "c").load().source == ("a", "b")


def test_texts_that_are_left_out_are_told_apart(files, tmp_path):
    train, *_ = read_split(files, held_out=5, parts=1, cache=tmp_path / "c")
    for texts in ({"s3 é", "t8 é"}, {"s3 ét8 é"}):
        assert facts([read_without(train, texts, cache=tmp_path / "c")]) == facts([without(train, texts)])


def test_two_tables_are_not_two_sides(files, tmp_path):
    (paths,) = files.files
    for path in paths:
        path.write_text("".join(f"{path.name}{i}\tx\n" for i in range(60)))
    for own, number in ((files, 60), (PairFiles(tuple((path,) for path in paths)), 120)):
        (kept,) = read_split(own, held_out=0, parts=0, cache=tmp_path / "c")
        assert len(kept.load()) == number


def test_any_flipped_bit_of_what_is_kept_is_noticed(files, tmp_path):
    """Headers of arrays are read as Python, and a digit of a fingerprint would make other data of the same files."""
    expected = [part.fingerprint for part in read_split(files, held_out=5, parts=2, cache=tmp_path / "c")]
    for name in ("facts.json", "codes.npy"):
        (path,) = (tmp_path / "c").glob(f"*/{name}")
        content = path.read_bytes()
        for place, bit in itertools.product(range(1, 128, 3), (2, 5)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            found = read_split(files, held_out=5, parts=2, cache=tmp_path / "c")
            assert [part.fingerprint for part in found] == expected


@pytest.mark.parametrize("name", ["facts.json", "codes.npy"])
@pytest.mark.parametrize("place", [-2, None])
def test_damage_is_noticed(files, tmp_path, caplog, name, place):
    expected = facts(read_split(files, held_out=5, parts=2, cache=tmp_path / "c"))
    (path,) = (tmp_path / "c").glob(f"*/{name}")
    data = bytearray(path.read_bytes())
    if place is None:
        path.write_bytes(data[:-9])
    else:
        place = data.index(b"\\u00e9") + 5 if name == "facts.json" else place  # a letter of a text that is held out
        data[place] ^= 1
        path.write_bytes(data)
    assert facts(read_split(files, held_out=5, parts=2, cache=tmp_path / "c")) == expected
    assert "is damaged" in caplog.text
    assert path.exists()


def test_small_files_leave_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "LARGE", 1 << 20)
    read_split(files, held_out=5, parts=1, cache=tmp_path / "c")
    assert not (tmp_path / "c").exists()
