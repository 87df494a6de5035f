"""Captioning as a task: the contract of all tasks, hard attention, data, and one line for each mistake."""

import dataclasses
import itertools
import json

import chex
import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import functional, models
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.data.captions import CaptionBatch, captions_of
from jaxformer.data.images import LabeledImages
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation.scores import bleu
from jaxformer.models import choices
from jaxformer.sharding import Placement, mesh
from jaxformer.tasks import language_model, vision
from jaxformer.tasks.base import describe_batch
from jaxformer.tasks.captioning import TASK, DecodeConfig, LossConfig
from jaxformer.tasks.search import Candidate
from jaxformer.tasks.training_setup import make_training_setup
from tests.contracts.task import TaskContract, prepared, quiet, trained
from tests.data.pictures import encoded, write_zip
from tests.modules.small import drawn
from tests.tasks.captioning.small import GRID, RECURRENT, TRANSFORMER, WORDS, tiny
from tests.tasks.vision.small import picture
from tests.tasks.vision.small import tiny as pictures


@pytest.mark.full
class TestContract(TaskContract):
    task = "captioning"
    attentions = ("decoder.cross",)
    refused = (
        ({"data": {"train": ""}}, "no captions: give --data.train FILE and --data.images FOLDER or ARCHIVE"),
        ({"data": {"images": "nowhere"}}, "cannot read .*nowhere: there is no such f"),
        ({"data": {"train": "nowhere.tsv"}}, "cannot read .*nowhere.tsv"),
        ({"data": {"columns": [0, 2]}}, r"my.tsv, line 1: 2 column\(s\), but the image is in column 0 and the caption"),
        ({"data": {"max_length": 3}}, "captions has at most 3 tokens; raise data.max_length"),
        ({"model": {"vocab_size": 300}}, "model.vocab_size is 300, but the tokenizer has"),
        ({"model": {"image": {"num_channels": 2}}}, r"num_channels must be 1 \(gray\) or 3 \(RGB\), got 2"),
        ({"model": {"image": {"image_size": [16, 16]}}}, r"my.zip/.*png is 8 x 8 pixels, but images must be 16 x 16"),
        ({"data": {"shift": 8}}, "data.shift must be below 8, the shorter side of the images, got 8"),
        (
            {"train": {"metric": "bleu"}, "decode": {"validation_images": 0}},
            "train.metric is bleu, but decode.validation_images is 0",
        ),
        ({"mesh": "data=4,context=2"}, "mesh axis context = 2 shards nothing of this model"),
    )

    def seen(self, folder):
        picture(1, 20).save(folder / "light.png")
        return str(folder / "light.png")

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("captions"))

    def change_training_data(self, config, patch):
        patch.setattr(LabeledImages, "split", lambda images, held_out: (images, images))

    def test_captions_are_kept(self, config, run):
        kept = {}
        scores = jaxformer.evaluate(
            run, split="validation", say=str, on_examples=lambda name, rows: kept.update({name: rows})
        )
        rows = kept["validation"]
        own = bleu([row["hypothesis"] for row in rows], [row["references"] for row in rows])
        assert scores["validation"] == [own]
        assert {len(row["references"]) for row in rows} == {1, 2}
        with pytest.raises(DataError, match=r"no test data: train with --data\.test FILE"):
            jaxformer.evaluate(run, say=str)

    def test_commands(self, config, run, tmp_path, capsys):
        """Of a picture in another mode and size."""
        picture(1, 20).convert("L").save(tmp_path / "light.png")
        name, sheet = str(tmp_path / "light.png"), str(tmp_path / "sheet.png")
        options = ["--n-best", "2", "--decode.max_length", "9", "--picture", sheet]
        assert main(["caption", str(run), name, *options]) == 0
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert [line[0] for line in lines] == ["1", "1"]
        assert float(lines[0][1]) >= float(lines[1][1])
        assert (tmp_path / "sheet.png").exists()
        assert main(["caption", str(run), name, "--sample", "--json"]) == 0
        drawn = json.loads(capsys.readouterr().out)
        assert drawn["image"] == name
        assert main(["classify", str(run), name]) == 2
        assert "is a run of captioning, which `classify` cannot use" in capsys.readouterr().err


HARD = dataclasses.replace(RECURRENT, attention=choices.HardAttention(), grid_positions=True)


def hard(**settings):
    return dataclasses.replace(HARD, attention=choices.HardAttention(**settings))


@pytest.mark.full
def test_starting_from_the_convolutions_of_a_classifier(tmp_path):
    """Every parameter of the grid is taken, and kept if it is frozen; the classification head is left out."""
    sizes = {"widths": GRID.widths, "num_blocks": GRID.num_blocks}
    classifier = pictures(tmp_path, model=models.ResidualNetworkConfig(image_size=(16, 16), **sizes))
    classifier = changed(classifier, {"data": {"resize": "fit"}, "train": {"steps": 2}})
    jaxformer.train(classifier, tmp_path / "eye", console=quiet())
    config = changed(tiny(tmp_path), {"init_from": str(tmp_path / "eye"), "tune": {"frozen": "grid/*"}})
    jaxformer.train(config, tmp_path / "run", console=quiet())
    ours, source = (jaxformer.load(tmp_path / name, checkpoint="last").params for name in ("run", "eye"))
    del source["output"]
    chex.assert_trees_all_equal(ours["grid"], source)
    about = json.loads((tmp_path / "run" / "init.json").read_text())
    assert about["unused"] == ["grid/output/bias", "grid/output/kernel"]
    assert not any(name.startswith("grid/") for name in about["new"])


@pytest.mark.full
@pytest.mark.parametrize("model", [HARD, TRANSFORMER], ids=["hard", "transformer"])
def test_other_models_on_eight_devices(tmp_path, model):
    """Draws do not depend on the mesh either."""
    config = tiny(tmp_path, model=model)
    (one, _), (eight, _) = (trained(*prepared(config, tmp_path, text)) for text in ("data=1", "data=2,fsdp=2,tensor=2"))
    np.testing.assert_allclose(eight, one, rtol=1e-4)


@pytest.mark.full
def test_hard_attention_learns_and_keeps_its_baseline_in_the_state(tmp_path):
    """The moving average of a token's log-probability, with the decay of the settings."""
    config = tiny(tmp_path, model=hard(entropy=0.0, baseline_decay=0.8))
    losses, state = trained(*prepared(changed(config, {"optimizer": {"learning_rate": 1e-2}}), tmp_path), 6)
    average = 0.0
    for loss in losses:
        average = 0.8 * average - 0.2 * loss
    assert float(state.params["baseline"]) == pytest.approx(average, rel=1e-5)
    assert losses[-1] < 0.95 * losses[0]


class Asked:
    """A captioner that records its arguments."""

    def __init__(self, monkeypatch, *names):
        self.options = []
        for name in names:
            ask = lambda model, *inputs, name=name, **options: self.ask(name, *inputs, **options)
            monkeypatch.setattr(models.RecurrentCaptioner, name, ask)

    def ask(self, name, images, tokens, noise=None, **options):
        self.options.append(options | {"name": name, "tokens": tokens, "noise": noise})
        return np.float32(1), np.float32(2)


def batch_of(number):
    ids = np.ones((number, 5), np.int32)
    tokens = functional.Tokens(ids, np.ones((number, 5), bool), right_padded=True)
    return CaptionBatch(np.zeros((number, 8, 8, 3), np.uint8), tokens, ids)


def test_soft_attention_is_trained_by_the_settings_and_validated_without(tmp_path, monkeypatch):
    model = dataclasses.replace(RECURRENT, attention=choices.SoftAttention(doubly_stochastic=0.3))
    network = TASK.network(tiny(tmp_path, model=model, loss=LossConfig(label_smoothing=0.1)), 30)
    asked, batch, key = Asked(monkeypatch, "loss", "doubly_stochastic_loss"), batch_of(3), jax.random.key(0)
    params = drawn(network.net.shapes)
    assert network.sums(params, batch, key)[:2] == network.validation_sums(params, batch)[:2] == (1, 2)
    training, validation = asked.options
    both = {"tokens": batch.tokens, "labels": batch.labels, "noise": None}
    given = {"loss": functional.CrossEntropy(smoothing=0.1), "key": key, "weight": 0.3}
    assert training == both | given | {"name": "doubly_stochastic_loss"}
    assert validation == both | {"loss": functional.CrossEntropy(), "key": None, "name": "loss"}


def test_hard_attention_draws_for_each_word_in_each_step(tmp_path, monkeypatch):
    """Without a key nothing is drawn."""
    network = TASK.network(tiny(tmp_path, model=hard(entropy=0.2), loss=LossConfig(label_smoothing=0.1)), 30)
    asked, batch = Asked(monkeypatch, "loss", "reinforced_loss"), batch_of(200)
    params = drawn(network.net.shapes)
    for key in (jax.random.key(0), jax.random.key(1), None):
        network.sums(params, batch, key)
    *drawn_twice, without = asked.options
    given = {"tokens": batch.tokens, "labels": batch.labels, "loss": functional.CrossEntropy(smoothing=0.1)}
    assert without == given | {"key": None, "noise": None, "name": "loss"}
    assert {"smoothing": 0.1, "entropy": 0.2}.items() <= drawn_twice[0].items()
    assert drawn_twice[0]["key"] is not None
    noise = np.stack([options["noise"] for options in drawn_twice])
    assert noise.shape == (2, 200, 5, 16)
    assert len(np.unique(noise)) > 0.98 * noise.size
    mean = np.stack([options["mean"] for options in drawn_twice])
    assert mean.shape == (2, 200)
    assert ((mean.mean(1) > 0.4) & (mean.mean(1) < 0.6)).all()
    assert (mean[0] != mean[1]).any()


def test_with_a_soft_attention_rate_of_0_every_caption_is_drawn(tmp_path, monkeypatch):
    network = TASK.network(tiny(tmp_path, model=hard(soft_attention_rate=0.0)), 30)
    asked = Asked(monkeypatch, "reinforced_loss")
    network.sums(drawn(network.net.shapes), batch_of(2), jax.random.key(0))
    assert asked.options[0]["mean"] is None


@dataclasses.dataclass(frozen=True)
class Knowing:
    """A captioner that recognizes images by their pixels and returns their captions."""

    texts: dict
    decode: DecodeConfig

    def candidates(self, images):
        assert self.decode.finder.beam_size == 1
        return [[Candidate(self.texts[image.tobytes()], 0.0, ())] for image in images]


def test_validation_captions_the_first_images(tmp_path):
    """Greedily, each compared with its own captions."""
    config = tiny(tmp_path)
    corpus = TASK.read(config)
    data = TASK.prepare(config, corpus, tmp_path)
    captions = captions_of(corpus.validation)  # the last one, as BLEU needs four words
    texts = {image.tobytes(): own[-1] for image, own in zip(data.validation.images, captions, strict=True)}
    found = TASK.measure(config, corpus, data, Knowing(texts, config.decode), {})
    assert found == {"bleu": pytest.approx(100)}


def test_columns_of_a_table(tmp_path):
    config = tiny(tmp_path)
    (tmp_path / "my.tsv").write_text("".join(f"{WORDS[i % 2][0]}\tx\t{i}.png\n" for i in range(60)))
    corpus = TASK.read(changed(config, {"data": {"columns": [2, 0]}}))
    assert set(corpus.train.labels) == {"a dark picture", "a light picture"}


def test_data(tmp_path):
    """Images are held out with all their captions; a batch has an image for each caption."""
    config = tiny(tmp_path, seed=7)
    corpus = TASK.read(config)
    assert (len(corpus.train), len(corpus.validation), corpus.test) == (48, 12, None)
    data = TASK.prepare(config, corpus, tmp_path)
    assert data.train.plan.seed == 7
    number = sum(len(label.split("\n")) for label in corpus.train.labels)
    assert f"{number} captions of 48 training images" in data.report[0]
    special, seen = data.vocabulary.special, []
    for batch in itertools.islice(data.batches(0, np.arange), data.train.plan.steps_per_epoch):
        for row in np.flatnonzero(batch.tokens.valid.any(1)):
            text = data.vocabulary.decode(batch.labels[row][batch.tokens.valid[row]][:-1].tolist())
            light = batch.images[row].mean() > 100
            assert text in WORDS[int(light)]
            ends = batch.tokens.ids[row, 0], batch.labels[row][batch.tokens.valid[row]][-1]
            assert ends == (special.bos, special.eos)
            seen.append(text)
    assert len(seen) == number
    plain = {image.tobytes() for image in data.train.images}
    assert not all(image.tobytes() in plain for image in batch.images[batch.tokens.valid.any(1)])  # they are moved
    batch = next(iter(data.validation_batches(np.arange)))
    held_out = {image.tobytes() for image in data.validation.images}
    assert all(image.tobytes() in held_out for image in batch.images[batch.tokens.valid.any(1)])
    named = changed(config, {"data": {"validation": config.data.train, "test": config.data.train}})
    corpus = TASK.read(named)
    assert [len(part) for part in (corpus.train, corpus.validation, corpus.test)] == [60, 60, 60]


@pytest.mark.parametrize(
    ("captions", "add", "message"),
    [
        ("0.png\tdark\n\ngone.png\tdark\n", {}, "my.tsv, line 3: {folder}/my.zip has no image 'gone.png'"),
        ("0.png\tdark\n1.png\t \n", {}, "my.tsv, line 2: the caption of 1.png must be a text, got ' '"),
        ("0.png dark\n", {}, "my.tsv, line 1: 1 column(s), but the image is in column 0 and the caption in column 1"),
        ("", {}, "my.tsv holds no caption"),
        ("0.png\tdark\n1.png\tlight\n2.png\tdark\n", {"1.png": b"text"}, "1.png is not an image that can be read"),
    ],
)
def test_mistakes_give_one_line_and_leave_no_files(tmp_path, capsys, captions, add, message):
    """With exit code 2, naming the file and the line."""
    write_zip(tmp_path / "my.zip", {f"{i}.png": encoded(picture(i)) for i in range(4)} | add)
    (tmp_path / "my.tsv").write_text(captions)
    settings = ["--data.train", str(tmp_path / "my.tsv"), "--data.images", str(tmp_path / "my.zip")]
    settings += ["--model.image.image_size", "8", "8", "--data.cache", str(tmp_path / "cache")]
    settings += ["--data.held_out", "0.4", "--data.tokenizer", "characters"]
    assert main(["train", "captioning:tiny", *settings, "--out", str(tmp_path / "run")]) == 2
    assert message.format(folder=tmp_path) in capsys.readouterr().err.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} - {"cache"} == {"my.zip", "my.tsv"}


def test_contradicting_settings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.shift must be below 8, the shorter side of the images, got 8"):
        changed(tiny(tmp_path), {"data": {"shift": 8}}).check()
    for name in ("entropy", "soft_attention_rate", "baseline_decay"):  # settings of hard attention only
        with pytest.raises(ConfigError, match=rf"unknown setting 'model\.attention\.{name}'"):
            changed(tiny(tmp_path), {"model": {"attention": {name: 0.5}}})
    config = changed(tiny(tmp_path, model=TRANSFORMER), {"model": {"positions": choices.Learned()}})
    with pytest.raises(ConfigError, match=r"data\.max_length is 30, but model\.max_positions is 24"):
        changed(config, {"data": {"max_length": 30}}).check()
    with pytest.raises(ConfigError, match="init_from run is a run of language_model; a captioner with"):
        changed(config, {"init_from": "run"}).check_init(language_model.LanguageModelingConfig())
    with pytest.raises(ConfigError, match=r"is a run of captioning with --model recurrent; a captioner with --model t"):
        changed(config, {"init_from": "run"}).check_init(tiny(tmp_path))
    config.check_init(config)
    network = models.ResidualNetworkConfig(widths=(8, 32), num_blocks=1)
    message = r"another image network: model\.image\.widths is 8 32 in that run and 6 12 in these settings; add --model"
    with pytest.raises(ConfigError, match=message):
        config.check_init(vision.VisionConfig(model=network))
    network = dataclasses.replace(network, widths=(6, 12))
    config.check_init(vision.VisionConfig(model=network))
    attending = vision.VisionConfig(model=dataclasses.replace(network, attention=choices.GainAttention()))
    texts = ("attention gain", "attention.stage 2", "attention.d_attention 1")
    options = " ".join(f"--model.image.{text}" for text in texts)
    with pytest.raises(ConfigError, match=f"attention is gain in that run and none in these settings; add {options}$"):
        config.check_init(attending)
    given = {"attention": {"kind": "gain", "stage": 2, "d_attention": 1}}
    changed(config, {"model": {"image": given}}).check_init(attending)
    message = r"is a run of vision with --model transformer; a captioner with --model transformer starts from another"
    with pytest.raises(ConfigError, match=message):
        config.check_init(vision.VisionConfig())
    with pytest.raises(ConfigError, match="the number of characters is not known without the captions"):
        TASK.vocab_size(config)
    assert TASK.vocab_size(changed(config, {"data": {"tokenizer": "bpe", "vocab_size": 500}})) == 500


def test_words_and_costs_of_a_batch(tmp_path):
    placement = Placement(mesh("data=1", jax.devices()[:1]))
    for model in (RECURRENT, HARD, TRANSFORMER):
        setup = make_training_setup(TASK, tiny(tmp_path, model=model), 30, placement)
        one, many = (setup.abstract_batch(rows, 9) for rows in (1, 16))
        assert describe_batch(many) == "16 images of 8 x 8 pixels and 16 x 9 tokens"
        assert setup.training_flops(many) == 16 * setup.training_flops(one) > 0
