"""Captions: tables and JSON give the same data, errors name the line, batches are pure functions of their number."""

import json

import numpy as np
import pytest

from jaxformer.data.captions import PlannedCaptions, caption_plan, captions_of, read_captions
from jaxformer.data.image_batches import Augmentation
from jaxformer.data.images import read_images
from jaxformer.errors import DataError
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.data.pictures import write_folder

PAIRS = (("a.png", "one dog"), ("b/c.png", "two dogs"), ("a.png", "a  dog runs"))
COCO = {
    "images": [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b/c.png"}],
    "annotations": [{"image_id": {"a.png": 7, "b/c.png": 8}[name], "caption": text} for name, text in PAIRS],
}
FILES = {
    "x.tsv": "".join(f"{name}\t{text}\n" for name, text in PAIRS),
    "x.json": json.dumps({"a.png": ["one dog", "a  dog runs"], "b/c.png": "two dogs"}),
    "COCO.JSON": json.dumps(COCO),
}


@pytest.fixture
def store(tmp_path):
    return read_images(write_folder(tmp_path / "images", ["a.png", "b/c.png", "unused.png"]))


@pytest.mark.parametrize("name", FILES)
def test_all_formats_give_the_same_captions(tmp_path, store, name):
    """An image with two captions occurs once; an image without a caption is left out."""
    (tmp_path / name).write_text(FILES[name])
    found = read_captions(tmp_path / name, store)
    assert [store.names[i] for i in found.indices] == ["a.png", "b/c.png"]
    assert captions_of(found) == [("one dog", "a dog runs"), ("two dogs",)]


def test_columns(tmp_path, store):
    (tmp_path / "x.tsv").write_text("train\tone dog\ta.png\n")
    assert captions_of(read_captions(tmp_path / "x.tsv", store, columns=(2, 1))) == [("one dog",)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.tsv", "a.png\tdog\nd.png\tcat\n", r"x\.tsv, line 2: .*images has no image 'd\.png'"),
        (
            "x.tsv",
            "a.png\n",
            r"x\.tsv, line 1: 1 column\(s\), but the image is in column 0 and the caption in column 1",
        ),
        ("x.tsv", "a.png\t\n", r"x\.tsv, line 1: the caption of a\.png must be a text, got ''"),
        ("x.tsv", "a.png\tdog\na.png\ta\tcat\n", r"x\.tsv, line 2: 3 columns, but line 1 has 2"),
        ("x.tsv", "\n", r"x\.tsv holds no caption"),
        ("x.json", "{", r"x\.json, line 1: not valid JSON: "),
        ("x.json", "[1]", r"x\.json must hold an object of names and captions, or of images and annotations"),
        ("x.json", '{"a.png": ["dog", 3]}', r"x\.json, 'a\.png': the caption of a\.png must be a text, got 3"),
        ("x.json", '{"d.png": "dog"}', r"x\.json, 'd\.png': .*images has no image 'd\.png'"),
        ("x.json", '{"images": [{}], "annotations": []}', r"x\.json, image 1: there must be id and file_name"),
        ("x.json", '{"images": [], "annotations": [{"image_id": 3}]}', r"x\.json, annotation 1: there must be"),
        (
            "x.json",
            '{"images": [], "annotations": [{"image_id": 3, "caption": "a"}]}',
            r"x\.json, annotation 1: .*images has no image 3",
        ),
        ("x.json", "[" * 10**5, r"x\.json: not valid JSON: (maximum recursion depth|Stack overflow)"),
        ("x.json", '{"a.png": "dog", "a.png": "cat"}', r"x\.json: not valid JSON: an object has two entries 'a\.png'"),
        ("x.json", r'{"a.png": "a \ud800 dog"}', r"x\.json, 'a\.png': the caption of a\.png has half a surrogate pair"),
        (
            "x.json",
            '{"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "b/c.png"}], "annotations": []}',
            r"x\.json, image 2: an image before it has the id 1 already",
        ),
        ("x.json", '"\xff"', r"^[^:]*x\.json, line 1: not UTF-8"),
        ("x.json", '{"images": 3, "annotations": []}', r"x\.json, an object: there must be id and file_name"),
    ],
)
def test_mistakes(tmp_path, store, name, text, message):
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=message):
        read_captions(tmp_path / name, store)


def test_each_caption_shifts_its_image_by_its_own_draws():
    """One image with 30 captions; a resumed run must see the same pixels."""
    image = np.random.default_rng(0).integers(0, 256, (1, 6, 7, 3), np.uint8)
    captions, changes = [np.array([5 + i]) for i in range(30)], Augmentation(shift=2, crop=0.6)
    plan = caption_plan(np.ones(30, int), 30, max_length=9, seed=3)
    batch = PlannedCaptions(image, np.zeros(30, int), captions, SpecialTokens(), plan, changes).batch(1)
    expected = changes(np.repeat(image, 30, 0), np.random.default_rng((3, 1, 3)).random((30, 6)))
    np.testing.assert_array_equal(batch.images, expected[batch.labels[:, 0] - 5])


def test_batches_are_functions_of_their_number_and_rows():
    """Each caption occurs once per epoch with its own image; rows of a process equal those of the full batch."""
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 4, 4, 1), np.uint8) + 1
    owners, special = np.array([0, 0, 1, 2, 2]), SpecialTokens()
    captions = [np.full(length, 10 * owners[i] + i) for i, length in enumerate((2, 3, 1, 9, 4))]
    plan = caption_plan(np.array([len(ids) for ids in captions]), 2, max_length=5, seed=3)
    assert (plan.shapes, plan.skipped.tolist()) == (((2, 5, 5),), [3])
    planned = PlannedCaptions(images, owners, captions, special, plan, Augmentation(shift=1))
    seen = []
    for step in range(plan.steps_per_epoch):
        batch, again = planned.batch(step), planned.batch(step)
        half = planned.batch(step, rows=lambda number: np.arange(number)[1:])
        np.testing.assert_array_equal(half.labels, batch.labels[1:])
        np.testing.assert_array_equal(half.images, batch.images[1:])
        np.testing.assert_array_equal(batch.images, again.images)
        for row in np.flatnonzero(batch.tokens.valid.any(1)):
            labels = batch.labels[row][batch.tokens.valid[row]]
            assert batch.tokens.ids[row, 0] == special.bos
            np.testing.assert_array_equal(batch.tokens.ids[row, 1 : len(labels)], labels[:-1])
            assert labels[-1] == special.eos
            assert batch.images[row].max() == labels[0] // 10 + 1
            seen.append(int(labels[0]) % 10)
        assert not batch.images[~batch.tokens.valid.any(1)].any()
    assert sorted(seen) == [0, 1, 2, 4]
    with pytest.raises(DataError, match=r"none of 2 captions has at most 3 tokens; raise data\.max_length"):
        caption_plan(np.array([3, 4]), 2, max_length=3)
