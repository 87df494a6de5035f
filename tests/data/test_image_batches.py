"""Batches of images are pure functions of their number; broken images are found before the first batch."""

import numpy as np
import pytest

from jaxformer.data.image_batches import Augmentation, PlannedImages, decode_all, draws, image_plan
from jaxformer.data.images import LabeledImages, label_images, read_images
from jaxformer.errors import ConfigError, DataError
from tests.data.pictures import picture, write_folder

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 6, 7, 3), np.uint8)
DRAWS = np.random.default_rng(1).random((11, 6))


def test_one_epoch_holds_every_image_once_and_the_last_batch_is_padded():
    planned = PlannedImages(IMAGES, np.arange(11, dtype=np.int32), image_plan(11, 4, seed=3))
    for epoch in range(2):
        parts = [planned.batch(3 * epoch + i) for i in range(3)]
        labels = np.concatenate([part.labels[part.valid] for part in parts])
        assert sorted(labels) == list(range(11))
        assert sorted(len(part.labels[part.valid]) for part in parts) == [3, 4, 4]
        for part in parts:
            np.testing.assert_array_equal(part.images[part.valid], IMAGES[part.labels[part.valid]])
            assert not part.images[~part.valid].any()
    assert planned.batch(0).labels.tolist() != planned.batch(3).labels.tolist()
    ordered = PlannedImages(IMAGES, np.arange(11, dtype=np.int32), image_plan(11, 4, shuffle=False))
    assert ordered.batch(1).labels.tolist() == [4, 5, 6, 7]


def test_rows_of_a_process_equal_those_of_the_full_batch():
    """With the same random changes; rows beyond the batch are empty."""
    planned = PlannedImages(IMAGES, np.zeros(11, np.int32), image_plan(11, 4, seed=3), Augmentation(shift=2, crop=0.5))
    whole, part = planned.batch(1), planned.batch(1, rows=lambda number: np.array([1, 3, number + 1]))
    np.testing.assert_array_equal(part.images[:2], whole.images[[1, 3]])
    assert part.valid.tolist() == [True, True, False]
    again = PlannedImages(IMAGES, np.zeros(11, np.int32), image_plan(11, 4, seed=3), Augmentation(shift=2, crop=0.5))
    np.testing.assert_array_equal(again.batch(1).images, whole.images)


def test_augmentations_are_functions_of_seed_epoch_and_image():
    make = lambda seed, number: PlannedImages(
        np.repeat(IMAGES[:1], number, 0), np.arange(number, dtype=np.int32), image_plan(number, number, seed=seed),
        Augmentation(shift=2, flip=True, crop=0.6),
    )  # fmt: skip
    by_label = lambda batch: batch.images[np.argsort(batch.labels)]
    first = by_label(make(0, 20).batch(0))
    assert len(np.unique(first, axis=0)) == 20  # each image has its own
    np.testing.assert_array_equal(by_label(make(0, 30).batch(0))[:20], first)  # whatever else there is
    assert (by_label(make(0, 20).batch(1)) != first).any()
    assert (by_label(make(1, 20).batch(0)) != first).any()


def test_augmentations_are_the_same_in_every_version():
    """A run that is resumed by another version sees the same pixels."""
    assert draws(3, 1, 4)[0, :3].tolist() == [0.44479944058720544, 0.877671203398233, 0.7561182529181246]


def test_shifts_are_uniform_and_fill_with_black():
    found = Augmentation(shift=1)(np.repeat(IMAGES[:1], 4000, 0), np.random.default_rng(0).random((4000, 6)))
    padded = np.pad(IMAGES[0], ((1, 1), (1, 1), (0, 0)))
    windows = [padded[r : r + 6, c : c + 7] for r in range(3) for c in range(3)]
    counts = [(found == window).all((1, 2, 3)).sum() for window in windows]
    assert sum(counts) == 4000
    assert min(counts) > 4000 / 9 * 0.8


def test_flips():
    found = Augmentation(flip=True)(IMAGES, DRAWS)
    mirrored = DRAWS[:, 3] < 0.5
    assert 0 < mirrored.sum() < 11
    np.testing.assert_array_equal(found[mirrored], IMAGES[mirrored][:, :, ::-1])
    np.testing.assert_array_equal(found[~mirrored], IMAGES[~mirrored])


def test_crops_follow_the_formula():
    """Each pixel is interpolated from its four neighbors in the crop; a pixel's center is at one half."""
    found = Augmentation(crop=0.5)(IMAGES, DRAWS)
    for image, drawn, result in zip(IMAGES.astype(float), DRAWS, found, strict=True):
        side = 0.5 + 0.5 * drawn[0]
        for (i, j), color in np.ndenumerate(result[..., 0]):
            r, c = (
                min(max((k + 0.5) * side - 0.5 + u * (1 - side) * n, 0), n - 1)
                for k, u, n in ((i, drawn[1], 6), (j, drawn[2], 7))
            )
            (top, left), (a, b) = (int(r), int(c)), (r % 1, c % 1)
            corner = lambda y, x, image=image: image[min(y, 5), min(x, 6), 0]
            upper = corner(top, left) * (1 - b) + corner(top, left + 1) * b
            lower = corner(top + 1, left) * (1 - b) + corner(top + 1, left + 1) * b
            assert abs(upper * (1 - a) + lower * a - color) < 0.51


def test_no_augmentation_returns_the_images():
    np.testing.assert_array_equal(Augmentation()(IMAGES, DRAWS), IMAGES)
    for wrong, message in (({"shift": -1}, "shift must be at least 0"), ({"crop": 0.0}, "crop must be more than 0")):
        with pytest.raises(ConfigError, match=message):
            Augmentation(**wrong)


def labeled(folder):
    return label_images(read_images(folder))


def is_mapped(array):
    """Returns True if an array is a view of a file."""
    return array is not None and (isinstance(array, np.memmap) or is_mapped(array.base))


def test_images_are_decoded_once(tmp_path):
    names = [f"x/{number:03}.png" for number in range(150)]  # more than two chunks
    folder = write_folder(tmp_path / "images", names)
    expected = np.stack([np.asarray(picture(number)) for number in range(150)])
    kept = [decode_all(labeled(folder), (6, 4, 3), tmp_path / "cache", resize="refuse") for _ in range(2)]
    assert all(is_mapped(array) for array in kept)
    np.testing.assert_array_equal(kept[0], expected)
    np.testing.assert_array_equal(kept[1], expected)
    assert len(list((tmp_path / "cache").iterdir())) == 1
    np.testing.assert_array_equal(
        decode_all(labeled(folder).take([7, 2]), (6, 4, 3), None, resize="refuse"), expected[[7, 2]]
    )


def test_a_flipped_bit_of_a_cached_image_is_noticed(tmp_path, caplog):
    images, cache = labeled(write_folder(tmp_path / "images", ["x/a.png"])), tmp_path / "cache"
    decode_all(images, (6, 4, 3), cache, resize="refuse")
    (file,) = cache.glob("*/pixels.npy")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = decode_all(images, (6, 4, 3), cache, resize="refuse")
    np.testing.assert_array_equal(found[0], np.asarray(picture(0)))
    assert "pixels.npy has another checksum" in caplog.text


def test_other_settings_have_other_cached_images(tmp_path, monkeypatch):
    """Another size, resizing rule or Pillow version does not use the same cached images."""
    images, cache = labeled(write_folder(tmp_path / "images", ["x/a.png"])), tmp_path / "cache"
    wide, high = (decode_all(images, shape, cache, resize="fit") for shape in ((4, 6, 3), (6, 4, 3)))
    np.testing.assert_array_equal(high[0], np.asarray(picture(0)))
    assert wide.shape == (1, 4, 6, 3)
    assert sorted(wide.ravel()) != sorted(high.ravel())
    with pytest.raises(DataError, match=r"a\.png is 6 x 4 pixels, but images must be 4 x 6"):
        decode_all(images, (4, 6, 3), cache, resize="refuse")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    decode_all(images, (6, 4, 3), cache, resize="fit")
    assert len(list(cache.iterdir())) == 3


def test_pixels_of_another_shape_are_another_image(tmp_path):
    """A file whose header was wrong holds the same bytes when it is right."""
    header, found = bytes([0, 0, 8, 3]), []
    for shape in ((2, 6, 4), (2, 4, 6)):
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        (tmp_path / "images").write_bytes(header + sizes + bytes(range(48)))
        images = LabeledImages(read_images(tmp_path / "images"), (0, 1), ("a", "b"))
        both = [decode_all(images, (4, 4, 1), cache, resize="fit") for cache in (tmp_path / "cache", None)]
        np.testing.assert_array_equal(*both)
        found.append(images.fingerprint)
    assert found[0] == found[1]


def test_a_broken_image_is_named_and_nothing_is_cached(tmp_path):
    folder = write_folder(tmp_path / "images", [f"x/{number:03}.png" for number in range(100)])
    (folder / "x" / "077.png").write_bytes((folder / "x" / "077.png").read_bytes()[:60])
    with pytest.raises(DataError, match=r"images/x/077\.png is broken"):
        decode_all(labeled(folder), (6, 4, 3), tmp_path / "cache", resize="refuse")
    assert not list((tmp_path / "cache").iterdir())
