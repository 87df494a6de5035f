"""Text for a language model: read exactly, split by the public conventions; bad files are named."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import text as texts
from jaxformer.data.text import LONGEST, Text, Texts, read_text, split_text
from jaxformer.errors import ConfigError, DataError


def write(path, data):
    path.write_bytes(data)
    return path


def test_files_are_joined_in_order(tmp_path):
    first, second = write(tmp_path / "a", b"\xef\xbb\xbfone\r\ntwo"), write(tmp_path / "b", "dr\u00e9i\n".encode())
    assert read_text(first, second).characters == "one\ntwo\ndr\u00e9i\n"
    assert read_text(second, first).characters == "dr\u00e9i\none\ntwo"
    assert read_text(second).report() == "5 characters"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a holds no text"),
        (b" \n\n", "a holds no text"),
        (b"x\n\xff\n", r"a, line 2: not UTF-8 \(byte 0xff\)"),
        (b"one\rtwo\r", "a ends its lines with carriage returns alone"),
    ],
)
def test_bad_files_are_named(tmp_path, data, message):
    good = write(tmp_path / "good", b"text")
    with pytest.raises(DataError, match=message):
        read_text(good, write(tmp_path / "a", data))


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        read_text(tmp_path / "nowhere")
    with pytest.raises(DataError, match="name at least one file"):
        read_text()


def test_the_split_of_tinyshakespeare():
    train, held_out = split_text(Text("x" * 1_115_394))
    assert (len(train), len(held_out)) == (1_003_854, 111_540)


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(st.text(min_size=2), st.floats(0.01, 0.99))
def test_a_split_keeps_every_character(characters, share):
    size = int(len(characters) * (1 - share))
    if 0 < size < len(characters):
        train, held_out = split_text(Text(characters), held_out=share)
        assert train.characters + held_out.characters == characters
    else:
        with pytest.raises(DataError, match="cannot hold out"):
            split_text(Text(characters), held_out=share)


def test_a_number_of_characters_is_held_out():
    train, held_out = split_text(Text("to be or not"), held_out=3)
    assert (train.characters, held_out.characters) == ("to be or ", "not")
    with pytest.raises(DataError, match="cannot hold out 12 of a text of 12 characters"):
        split_text(Text("to be or not"), held_out=12)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan"), 0, -1, True])
def test_impossible_shares_are_refused(share):
    with pytest.raises(ConfigError, match="held_out must be a fraction between 0 and 1, or an integer from 1"):
        split_text(Text("a text"), held_out=share)


def test_different_texts_have_different_fingerprints():
    assert Text("a").fingerprint == Text("a").fingerprint != Text("b").fingerprint


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab \n\r\u2028"), max_size=60))
def test_lines_join_to_the_text(characters):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "LONGEST", 7)
        lines = Text(characters).lines()
    assert "".join(lines) == characters
    assert all(0 < len(line) <= 7 for line in lines)
    assert all("\n" not in line[:-1] for line in lines)


def test_long_lines_are_cut_before_spaces():
    lines = Text("word " * 1000).lines()
    assert max(map(len, lines)) <= LONGEST
    assert all(line.startswith(" ") for line in lines[1:])
    assert Text("\u2603" * 5000).lines() == ["\u2603" * LONGEST] * 5


def test_several_texts_have_the_lines_of_one():
    parts = ["one\ntwo", "three\n", "", "x" * (2 * LONGEST), "four five"]
    several, joined = Texts(tuple(map(Text, parts))), Text("\n".join(parts))
    assert [*several.lines()] == joined.lines()
    assert several.fingerprint == joined.fingerprint
