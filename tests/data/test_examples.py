"""Labeled texts: the formats of public corpora, and errors that name the file and line."""

import numpy as np
import pytest

from jaxformer.data.batch_plan import make_batch_plan
from jaxformer.data.examples import Examples, PlannedTexts, read_examples
from jaxformer.data.token_cache import Ragged
from jaxformer.errors import DataError
from jaxformer.tokenizers.special_tokens import SpecialTokens


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.txt"

    def write(text):
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("1\ta b\n\n0\tc\n", {}, [("1", "a b"), ("0", "c")]),
        ("1 a b\n0 c", {"separator": " "}, [("1", "a b"), ("0", "c")]),
        ("gj04\t1\t*\tOne more.\n", {"columns": (1, 3)}, [("1", "One more.")]),
        ("LOC:city Where ?\n", {"separator": " ", "label_end": ":"}, [("LOC", "Where ?")]),
        ("A text.\tSci/Tech\n", {"columns": (1, 0)}, [("Sci/Tech", "A text.")]),
        ("LOC : city\tWhere ?\n", {"label_end": ":"}, [("LOC", "Where ?")]),
        ("cafe\u0301\te\u0301\n", {"classes": ("caf\u00e9", "b")}, [("caf\u00e9", "e\u0301")]),
    ],
)
def test_formats(file, text, options, expected):
    examples = read_examples(file(text), **options)
    assert list(zip(examples.labels, examples.texts, strict=True)) == expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("1\ta\n0 b\n", {}, r"data.txt, line 2: 1 column\(s\), but the label is in column 0 and the text in column 1"),
        ("1\ta\n\n\tb\n", {}, "data.txt, line 3: the label is empty"),
        ("1\ta\n0\t \n", {}, "data.txt, line 2: the text is empty"),
        ("1\ta\n2\tb\n", {"classes": ("0", "1")}, "data.txt, line 2: the label '2' is not one of the classes 0, 1"),
        ("x\ta\n", {"classes": tuple(map(str, range(5000)))}, r"is not one of the classes 0, 1, .* 19, \.\.\.$"),
        ("1\ta\n0\tb\tc\n", {}, r"data.txt, line 2: 3 columns, but line 1 has 2; a text must not contain '\\t'"),
        ("1,a\n0,b,c\n", {"separator": ","}, "data.txt, line 2: 3 columns, but line 1 has 2; .* contain ','"),
        ("1,a,b\tc\n", {"separator": ",", "columns": (0, 1, 2)}, "data.txt, line 1: a text of a pair holds a tab"),
        ("\n\n", {}, "data.txt holds no example"),
        (":x a\n", {"separator": " ", "label_end": ":"}, "data.txt, line 1: the label is empty"),
    ],
)
def test_mistakes(file, text, options, message):
    with pytest.raises(DataError, match=message):
        read_examples(file(text), **options)


def test_chosen_examples_depend_on_their_texts_and_keep_their_order():
    examples = Examples(tuple(f"text {i}" for i in range(60)), tuple("ab" * 30), "file")
    five, fifteen = examples.first(5), examples.first(15)
    assert set(zip(five.texts, five.labels, strict=True)) < set(zip(fifteen.texts, fifteen.labels, strict=True))
    assert list(fifteen.texts) == sorted(fifteen.texts, key=examples.texts.index)
    turned = Examples(examples.texts[::-1], examples.labels[::-1], "file")
    assert set(turned.first(5).texts) == set(five.texts) != set(examples.texts[:5])
    assert examples.first(100) == examples


def test_a_split_keeps_equal_texts_together():
    texts = tuple(f"text {i // 2}" for i in range(100))
    train, validation = Examples(texts, tuple("ab" * 50)).split(0.2)
    assert not set(train.texts) & set(validation.texts)
    assert (len(train) + len(validation), 18 <= len(validation) <= 22) == (100, True)
    assert Examples(texts, tuple("ab" * 50)).split(0.2)[1] == validation
    assert Examples(texts, tuple("ab" * 50)).split(20)[1] == validation
    assert train.fingerprint != validation.fingerprint
    with pytest.raises(DataError, match=r"my\.tsv: cannot set aside 1 of 3 examples: only 1 of them differ;"):
        Examples(("x",) * 3, ("a", "b", "b"), "my.tsv").split(0.1)


def test_batches_hold_every_example_and_its_label():
    """Texts keep their first tokens; rows that pad a batch are empty."""
    lengths = np.array([3, 9, 1, 4, 2])
    tokens = Ragged(np.arange(10, 10 + lengths.sum()), np.concatenate([[0], np.cumsum(lengths)]))
    labels, special = np.array([0, 1, 2, 3, 4], np.int32), SpecialTokens()
    plan = make_batch_plan(
        np.minimum(lengths + 2, 8) - 1, np.zeros(5, int), tokens_per_batch=32, num_shapes=1, max_length=8, multiple_of=4
    )
    planned, seen = PlannedTexts(tokens, labels, special, plan), {}
    for step in range(plan.steps_per_epoch):
        batch = planned.batch(step)
        assert batch.tokens.shape == (4, 8)
        for row, valid, label in zip(batch.tokens.ids, batch.tokens.valid, batch.labels, strict=True):
            if valid.any():
                assert valid.tolist() == [True] * valid.sum() + [False] * (8 - valid.sum())
                assert (row[0], row[valid][-1]) == (special.bos, special.eos)
                seen[int(label)] = row[valid][1:-1].tolist()
            else:
                assert not row.any()
    assert seen == {i: tokens[i][:6].tolist() for i in range(5)}
    some = planned.batch(0, rows=lambda count: np.array([0, 2, count]))
    whole = planned.batch(0)
    np.testing.assert_array_equal(some.tokens.ids[:2], whole.tokens.ids[[0, 2]])
    np.testing.assert_array_equal(some.labels[:2], whole.labels[[0, 2]])
    assert not some.tokens.valid[2].any()
