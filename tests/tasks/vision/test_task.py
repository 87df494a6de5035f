"""Image classification as a task: the contract of all tasks, its splits, and one line for each mistake."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.data.idx import write_idx
from jaxformer.data.image_batches import Augmentation, ImageBatch
from jaxformer.data.images import LabeledImages
from jaxformer.errors import ConfigError, DataError
from jaxformer.sharding import Placement, mesh
from jaxformer.tasks import classes, language_model, runner
from jaxformer.tasks.base import Trained
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.vision import TASK
from tests.contracts.task import TaskContract, evaluated, prepared, trained
from tests.data.pictures import write_zip
from tests.modules.small import drawn, quick
from tests.selection import first
from tests.tasks.vision.small import CONVOLUTION, files, picture, tiny


@pytest.mark.full
class TestContract(TaskContract):
    task = "vision"
    attentions = ("encoder.self",)
    refused = (
        ({"data": {"train": ""}}, "no images: give --data.train FOLDER, ARCHIVE or IDX-FILE"),
        ({"data": {"train": "nowhere"}}, "cannot read .*nowhere: there is no such f"),
        ({"data": {"train_labels": "nowhere.tsv"}}, "cannot read .*nowhere.tsv"),
        ({"data": {"classes": "dark,light,green"}}, "my.zip has no example of the class 'green'"),
        (
            {"data": {"classes": "dark,lite"}},
            r"my.zip/light/1.png: the label 'light' is not one of the classes dark, lite",
        ),
        ({"data": {"classes": "one"}}, "data: classes must be two or more different names"),
        ({"model": {"num_classes": 3}}, "model.num_classes is 3, but the data have 2"),
        ({"data": {"shift": 8}}, "data.shift must be below 8, the shorter side of the images, got 8"),
        ({"model": {"num_channels": 2}}, r"num_channels must be 1 \(gray\) or 3 \(RGB\), got 2"),
        ({"model": {"image_size": [16, 16]}}, r"my.zip/dark/.*png is 8 x 8 pixels, but images must be 16 x 16"),
        ({"mesh": "data=4,context=2"}, "mesh axis context = 2 shards nothing of this model"),
    )

    def seen(self, folder):
        picture(1, 20).save(folder / "light.png")
        return str(folder / "light.png")

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("images"))

    def change_training_data(self, config, patch):
        patch.setattr(LabeledImages, "split", lambda images, held_out: (images, images))

    def test_examples_are_kept(self, config, run):
        (accuracy, *_), rows = evaluated(run)
        assert accuracy.value == pytest.approx(100 * np.mean([row["label"] == row["guess"] for row in rows]))
        assert all(row["image"].split("/")[-2] == row["label"] for row in rows)

    def test_commands(self, config, run, tmp_path, capsys):
        """Of a picture in another mode and size."""
        picture(1, 20).convert("L").save(tmp_path / "light.png")
        assert main(["classify", str(run), str(tmp_path / "light.png"), "--picture", str(tmp_path / "maps.png")]) == 0
        label, probabilities, name = capsys.readouterr().out.splitlines()[-1].split("\t")
        assert label in probabilities
        assert name.endswith("light.png")
        assert (tmp_path / "maps.png").exists()


@pytest.mark.full
def test_a_convolutional_network_on_eight_devices(tmp_path):
    config = tiny(tmp_path, model=dataclasses.replace(CONVOLUTION, attention=None))
    one, eight = (trained(*prepared(config, tmp_path, text))[0] for text in ("data=1", "data=2,fsdp=2,tensor=2"))
    np.testing.assert_allclose(eight, one, rtol=1e-5)


@pytest.mark.full
def test_a_convolutional_network_learns(tmp_path):
    """With attention to its grid, on one device."""
    config = changed(tiny(tmp_path, model=CONVOLUTION), {"optimizer": {"learning_rate": 3e-3}})
    losses = trained(*prepared(config, tmp_path), 12)[0]
    assert losses[-1] < 0.7 * losses[0]


def test_splits(tmp_path):
    """Held out by the contents of images, before some of the rest are chosen; or a file of its own."""
    config = tiny(tmp_path)
    corpus, few = (TASK.read(changed(config, {"data": {"max_images": n}})) for n in (0, 10))
    assert (len(corpus.train), len(corpus.validation), corpus.test) == (48, 12, None)
    assert corpus.classes == ("dark", "light")
    assert len(few.train) == 10
    assert few.validation.fingerprint == corpus.validation.fingerprint
    write_zip(tmp_path / "other.zip", {f"test/{name}": data for name, data in files(4).items()})
    named = {"validation": str(tmp_path / "other.zip"), "test": str(tmp_path / "other.zip" / "test")}
    corpus = TASK.read(changed(config, {"data": named}))
    assert (len(corpus.train), len(corpus.validation), corpus.test.labels) == (
        60,
        4,
        ("dark", "dark", "light", "light"),
    )


def test_numbers_of_an_idx_file_are_the_same_classes_in_every_part(tmp_path):
    """Also where the numbers of the training images do not begin at 0, and with names for them."""
    write_idx(tmp_path / "images", np.random.default_rng(0).integers(0, 256, (10, 8, 8), np.uint8))
    for part, labels in (("train", [1, 2] * 5), ("test", [1, 2, 2, 1, 1, 1, 1, 1, 1, 1])):
        write_idx(tmp_path / part, np.array(labels, np.uint8))
    parts = {part: str(tmp_path / "images") for part in ("train", "test")}
    labels = {f"{part}_labels": str(tmp_path / part) for part in parts}
    config = changed(tiny(tmp_path), {"data": parts | labels})
    corpus = TASK.read(config)
    assert (corpus.classes, corpus.test.labels[:3]) == (("1", "2"), ("1", "2", "2"))
    with pytest.raises(DataError, match=r"no example of the class 'zero'"):
        TASK.read(changed(config, {"data": {"classes": "zero,one,two"}}))
    write_idx(tmp_path / "train", np.array([0, 1, 2, 0, 1] * 2, np.uint8))
    corpus = TASK.read(changed(config, {"data": {"classes": "zero,one,two"}}))
    assert (corpus.classes, corpus.test.labels[:3]) == (("zero", "one", "two"), ("one", "two", "two"))


def test_training_images_are_changed_and_others_are_not(tmp_path):
    config = changed(tiny(tmp_path, seed=7), {"data": {"crop": 0.5}})
    data = TASK.prepare(config, TASK.read(config), tmp_path)
    assert (data.train.augmentation, data.validation.augmentation) == (Augmentation(1, True, 0.5), None)
    assert data.train.plan.seed == 7
    assert len(data.lengths) == 0
    assert "48 training images (dark 27, light 21), 12 for validation" in data.report[0]
    plain = {image.tobytes() for image in data.train.images}
    batch = next(iter(data.batches(0, np.arange)))
    assert sum(image.tobytes() in plain for image in batch.images) < 8
    held_out = {image.tobytes() for image in data.validation.images}
    batch = next(iter(data.validation_batches(np.arange)))
    assert all(image.tobytes() in held_out for image in batch.images[batch.valid])
    assert batch.valid.sum() == 12


@pytest.mark.full
def test_validation_metrics_are_those_of_the_predictor(tmp_path):
    """Summed over batches in one pass: those of all probabilities at once."""
    config = tiny(tmp_path)
    corpus = TASK.read(config)
    data = TASK.prepare(config, corpus, tmp_path)
    setup = make_training_setup(TASK, config, 2, Placement(mesh("data=4", jax.devices()[:4])))
    state = setup.new_state()
    trained = Trained(setup.network.net, state.params, setup.placement, (0,))
    predictor = TASK.predictor(config, data.vocabulary, trained)
    found = runner.Validation(TASK, config, corpus, data, setup)(state)
    right, correlation = classes.scores(data.validation.labels, predictor.probabilities(data.validation.images))
    assert (found["accuracy"], found["matthews"]) == pytest.approx((right.value, correlation.value))


def test_runs_that_cannot_be_a_start_are_refused(tmp_path):
    config = tiny(tmp_path, init_from="run")
    with pytest.raises(ConfigError, match=r"is a run of language_model; this is a run of vision with --model t"):
        config.check_init(language_model.LanguageModelingConfig())
    with pytest.raises(ConfigError, match=r"is a run of vision with --model convolution; this is a run of vision"):
        config.check_init(tiny(tmp_path, model=CONVOLUTION))
    config.check_init(tiny(tmp_path))


def test_a_batch_of_images_has_no_length(tmp_path):
    config = tiny(tmp_path)
    setup = make_training_setup(TASK, config, 2, Placement(mesh("data=1", jax.devices()[:1])))
    with pytest.raises(ConfigError, match="images have no length: a batch is --batch ROWSx1, got --batch ROWSx2"):
        setup.abstract_batch(4, 2)
    with pytest.raises(ConfigError, match="the number of classes is not known without the data"):
        TASK.vocab_size(config)
    assert TASK.vocab_size(changed(config, {"data": {"classes": "a,b,c"}})) == 3


@pytest.mark.parametrize("pooling", first(["class_token", "mean"], "class_token"))
def test_images_that_fill_up_a_batch_do_not_count(tmp_path, pooling):
    """Neither in the cross entropy nor in the balance of experts."""
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    model = {"feed_forward": {"kind": "experts", "load_balancing_weight": 1.0}, "dropout": 0.0, "pooling": pooling}
    network = TASK.network(changed(tiny(tmp_path), {"model": model}), 2)
    params, loss = drawn(network.net.shapes), quick(network.sums)

    def mean(images, valid):
        batch = ImageBatch(images, np.zeros(len(images), np.int32), np.array(valid))
        total, count, _ = loss(params, batch, jax.random.key(1))
        return total / count

    alone = mean(images[:1], [True])
    np.testing.assert_allclose(mean(images, [True, False, False]), alone, rtol=1e-6)
    assert abs(mean(images, [True, True, True]) - alone) > 1e-3
