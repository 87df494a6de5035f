"""The classification task: its contract, warm starts, tuning, and refusals."""

import io
import json

import chex
import jax
import numpy as np
import pytest
from rich.console import Console

import jaxformer
from jaxformer import demo, models, sharding
from jaxformer import functional as F
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.sharding import Placement
from jaxformer.tasks import language_model, masked_language_model, registry, rundir, runner, vision
from jaxformer.tasks.classification import TASK, ClassificationConfig, DataConfig, TextClassifier, predictor
from jaxformer.tasks.classification import task as classification
from jaxformer.tasks.classification.config import SHAPE
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.training.config import AdamConfig, TrainConfig
from tests.contracts.task import TaskContract, evaluated, prepared, trained
from tests.selection import first

TEXTS = [pair.english for pair in demo.generate(160)]
LABELS = ["question" if text.endswith("?") else "statement" for text in TEXTS]
SIZES = {
    "d_model": 12,
    "num_heads": 4,
    "d_ff": 20,
    "num_layers": 1,
    "positions": choices.Learned(),
    "max_positions": 48,
}
QUIET = Console(quiet=True)


def write(path, labels=LABELS, texts=TEXTS):
    path.write_text("".join(f"{label}\t{text}\n" for label, text in zip(labels, texts, strict=True)))
    return str(path)


def tiny(folder, **changes):
    data = {"max_length": 48, "num_shapes": 2, "tokens_per_batch": 768, "held_out": 0.2}
    return ClassificationConfig(
        mesh="data=8",
        model=models.ClassifierConfig(**SIZES),
        data=DataConfig(train=write(folder / "train.tsv"), tokenizer="characters", cache=str(folder / "cache"), **data),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False, metric="accuracy"),
        **changes,
    )


@pytest.mark.full
class TestContract(TaskContract):
    task = "classification"
    attentions = ("encoder.self",)
    refused = (
        ({"data": {"train": ""}}, "no examples: give --data.train FILE"),
        ({"data": {"train": "nowhere.tsv"}}, "nowhere.tsv"),
        ({"data": {"columns": [0, 2]}}, r"train.tsv, line 1: 2 column\(s\)"),
        (
            {"data": {"classes": "statement,query"}},
            r"train.tsv, line \d+: the label 'question' is not one of the classes",
        ),
        ({"data": {"classes": "statement,question,answer"}}, "train.tsv has no example of the class 'answer'"),
        ({"data": {"classes": "one"}}, "data: classes must be two or more different names"),
        ({"data": {"max_length": 49}}, "data.max_length is 49, but model.max_positions is 48"),
        ({"model": {"num_classes": 3}}, "model.num_classes is 3, but the data have 2"),
        ({"model": {"vocab_size": 7}}, r"model.vocab_size is 7, but the data have \d\d"),
        (
            {"tune": {"frozen": "encodr/*"}},
            r"tune.frozen: no parameter matches 'encodr/\*'; the parameters are encoder/",
        ),
        ({"tune": {"frozen": "*"}}, "matches every parameter, so none is trained"),
        ({"tune": {"adapters": {"kind": "lora", "targets": "*/bias"}}}, "tune.adapters.targets: .* match no matrix"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("texts"))

    def change_training_data(self, config, patch):
        patch.setattr(classification.Examples, "split", lambda examples, held_out: (examples, examples))

    def test_probabilities_and_words(self, config, run):
        """A text alone is classified as among others; the words are its words, and their weights a part of 1."""
        classifier = jaxformer.load(run)
        assert isinstance(classifier, TextClassifier)
        texts = ["Does the old man see the house?", "She sings.", TEXTS[3] + " " + TEXTS[4]]
        results, (alone,) = classifier.classify(texts), classifier.classify(texts[1:2])
        assert set(results[0].probabilities) == {"question", "statement"}
        for result, row in zip(results, classifier.probabilities(texts), strict=True):
            assert sum(result.probabilities.values()) == pytest.approx(1, abs=1e-5)
            assert list(result.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-5)
            assert result.probabilities[result.label] == max(result.probabilities.values())
            assert 0 < sum(weight for _, weight in result.words) < 1
        assert [word for word, _ in results[1].words] == ["She", "sings", "."]
        assert classifier.classify([""])[0].words == ()
        assert alone.probabilities == pytest.approx(results[1].probabilities, abs=1e-5)
        with pytest.raises(TypeError, match=r"write \[text\]"):
            classifier.classify("She sings.")

    def test_examples_are_kept(self, config, run):
        (accuracy, *_), rows = evaluated(run)
        assert accuracy.value == pytest.approx(100 * np.mean([row["label"] == row["guess"] for row in rows]))


def test_truncated_texts_are_counted(tmp_path, monkeypatch):
    """Each text by its number in use, the count in an evaluation; the first tokens are read."""
    config, read = changed(tiny(tmp_path), {"data": {"max_length": 20}}), list[np.ndarray]()
    corpus = TASK.read(config)
    vocabulary = TASK.prepare(config, corpus, tmp_path).vocabulary
    network = TASK.network(config, vocabulary.vocab_size)

    def guess(net, params, tokens):
        read.append(tokens.ids[tokens.valid])
        return np.full((len(tokens.ids), 2), 0.5), None

    monkeypatch.setattr(predictor, "_classify", guess)
    classifier = TextClassifier(network.net, {}, vocabulary, 20)
    messages = list[str]()
    classifier.classify(["She sees the old house.", "a" * 18, "a" * 19], first=4, warn=messages.append)
    assert messages == [f"text {n} has {size} tokens; only the first 18 are read" for n, size in ((4, 23), (6, 19))]
    assert vocabulary.tokenizer.encode(["She sees the old h"])[0].tolist() in read[0].reshape(3, 20)[:, 1:-1].tolist()
    said, long = list[str](), sum(len(text) > 18 for text in corpus.validation.texts)
    list(TASK.score(config, corpus, classifier, "validation", said.append))
    assert f"{long} of {len(corpus.validation)} texts are cut to their first 18 tokens" in said


def test_sizes_of_the_data_are_accepted_before_they_are_read(tmp_path):
    """With characters, only the data determine the vocabulary size, and settings are checked earlier."""
    for sizes in ({"num_classes": 7}, {"vocab_size": 60}, {"num_classes": 7, "vocab_size": 60}):
        config = changed(tiny(tmp_path), {"model": sizes})
        runner._check_memory(TASK, config, Placement(sharding.mesh("data=1", jax.devices()[:1])), None)
    config = changed(config, {"model": {"num_classes": 1, "vocab_size": 0}})
    with pytest.raises(ConfigError, match="num_classes must be at least 2, got 1"):
        runner._check_memory(TASK, config, Placement(sharding.mesh("data=1", jax.devices()[:1])), None)


def test_the_longest_validation_texts_are_not_truncated(tmp_path):
    """The loss is of the same tokens as the accuracy."""
    config = tiny(tmp_path)
    path = write(tmp_path / "validation.tsv", ["statement"], ["He sees " + "an old man and " * 2 + "me."])
    short = [(label, text) for label, text in zip(LABELS, TEXTS, strict=True) if len(text) < 36]
    train = write(tmp_path / "short.tsv", *zip(*short, strict=True))
    config = changed(config, {"data": {"train": train, "validation": path}})
    data = TASK.prepare(config, TASK.read(config), tmp_path)
    (batch,) = data.validation_batches(np.arange)
    assert max(data.lengths) < 40
    assert data.report[-1] == "WARNING: 1 of 2 classes without validation data: question"
    valid = batch.tokens.valid
    assert valid.sum(1).tolist() == [43] + [0] * (len(valid) - 1)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The settings of a run of masked language modeling, before its first step."""
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "text.txt").write_text("\n".join(TEXTS))
    config = masked_language_model.MaskedLanguageModelingConfig(
        mesh="data=8",
        model=models.EncoderConfig(**SIZES),
        data=masked_language_model.DataConfig(
            text=str(folder / "text.txt"), tokenizer="characters", length=48, batch_size=8, cache=str(folder / "cache")
        ),
        train=TrainConfig(steps=2, validate_every=0, checkpoint_every=0, tensorboard=False),
    )
    rundir.claim(folder / "run", config.task, config, ())
    return folder / "run"


@pytest.fixture(scope="module")
def pretrained(begun):
    """That run after its two steps."""
    jaxformer.train(registry.read_config(begun), begun, console=QUIET)
    return begun


def test_fewer_examples_do_not_change_validation(tmp_path):
    corpus, few = (TASK.read(changed(tiny(tmp_path), {"data": {"max_examples": n}})) for n in (0, 10))
    assert (len(corpus.train) > 100, len(few.train)) == (True, 10)
    assert few.validation == corpus.validation


@pytest.mark.full
@pytest.mark.parametrize("number", [48, 60])
def test_a_classifier_starts_from_a_masked_language_model(pretrained, tmp_path, number):
    """T8: every parameter of the encoder is taken, and the tokenizer; the output is new, and the head unused."""
    changes = {"model": {"max_positions": number}, "train": {"steps": 1}}
    config = changed(tiny(tmp_path, init_from=str(pretrained)), changes)
    jaxformer.train(config, tmp_path / "run", console=QUIET)
    about = json.loads((tmp_path / "run" / "init.json").read_text())
    assert all(name.startswith("encoder/") for name in about["taken"])
    assert len(about["resized"]) == (number > 48)
    assert set(about["new"]) == {"output/kernel", "output/bias"}
    assert not any(name.startswith("encoder/") for name in about["unused"])
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (pretrained / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("reference", first(["classification", "classification:tiny"]))
def test_the_encoder_and_the_tokens_are_those_of_the_other_run(begun, capsys, reference):
    """Missing settings are taken from it; given ones stay, and are refused later if they differ."""
    source = registry.read_config(begun)
    config = jaxformer.configure(reference, init_from=f"{begun}:last")
    assert all(getattr(config.model, name) == getattr(source.model, name) for name in SHAPE)
    assert (config.data.tokenizer, config.data.max_length) == ("characters", min(128, source.model.max_positions))
    config.check_init(source)
    changed(config, {"model": {"max_positions": 96}}).check_init(source)  # its table is extended
    assert config.model.dropout == jaxformer.configure(reference).model.dropout
    given = jaxformer.configure(reference, init_from=str(begun), model={"d_model": 24})
    with pytest.raises(ConfigError, match="d_model is 12 in that run and 24 in"):
        given.check_init(source)
    for option in (["--init-from", str(begun)], [f"--init_from={begun}"]):
        assert main(["train", reference, *option, "--settings"]) == 0
        assert "--model.d_model 12" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"d_model": 24, "num_layers": 2}},
            "has another encoder or vocabulary: model.d_model is 12 in that run and 24 in these settings, "
            "model.num_layers is 1 in that run and 2 in these settings; add --model.d_model 12 --model.num_layers 1",
        ),
        (
            {"data": {"tokenizer": "bpe"}},
            "data.tokenizer is characters in that run and bpe in these settings; add --data.tokenizer characters",
        ),
        ({"init_from": "nowhere"}, "nowhere is not a run"),
    ],
)
def test_another_shape_or_vocabulary_is_refused(begun, tmp_path, changes, message):
    """Before anything is written."""
    config = changed(tiny(tmp_path, init_from=str(begun)), changes)
    with pytest.raises(ConfigError, match=message):
        jaxformer.train(config, tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run" / "config.json").exists()


def test_another_task_is_refused(tmp_path):
    """An image classifier has an encoder, too, but no tokenizer."""
    config = tiny(tmp_path, init_from="run")
    for source in (language_model.LanguageModelingConfig(), vision.VisionConfig()):
        with pytest.raises(ConfigError, match=f"init_from run is a run of {source.task}; classification starts from"):
            config.check_init(source)


def test_frozen_adapters_are_refused(tmp_path):
    """Their names end like those of their matrices, so a pattern may match both."""
    config = changed(tiny(tmp_path), {"tune": {"adapters": {"kind": "lora", "rank": 2}, "frozen": "*/attention/*"}})
    placement = Placement(sharding.mesh("data=8"))
    with pytest.raises(ConfigError, match=r"tune.frozen '\*/attention/\*' also matches every adapter, .* lora/"):
        make_training_setup(TASK, config, (60, 2), placement)
    half = changed(config, {"tune": {"frozen": "encoder/*, lora/*/a", "adapters": {"alpha": 3.0}}})
    assert make_training_setup(TASK, half, (60, 2), placement).network.net.alpha == 3.0


def steps_of(config, run, number=3):
    """The setup of a configuration on one device, its first state, and the state after some steps."""
    data, setup = prepared(config, run)
    first = jax.tree.map(np.array, setup.new_state().params)
    return setup, first, trained(data, setup, number)[1]


@pytest.mark.full
def test_head_only(tmp_path):
    """Frozen parameters keep every bit in spite of weight decay, have no moments, and cost no backward pass."""
    whole = changed(tiny(tmp_path), {"optimizer": {"weight_decay": 0.1}})
    head = changed(whole, {"tune": {"frozen": "encoder/*"}})
    setup, first, state = steps_of(head, tmp_path)
    chex.assert_trees_all_equal(first["encoder"], state.params["encoder"])
    assert (first["output"]["kernel"] != state.params["output"]["kernel"]).all()
    count = lambda tree: sum(x.size for x in jax.tree.leaves(tree))
    assert count(state.optimizer) < 2 * count(first["output"]) + 10
    full = make_training_setup(TASK, whole, TASK.vocabulary(tmp_path).vocab_size, setup.placement)
    flops = [t.lower(8, 48)[0].compile().cost_analysis()["flops"] for t in (setup, full)]
    assert flops[0] < 0.55 * flops[1]


@pytest.mark.full
def test_adapters(tmp_path):
    """Only adapters and the output are trained; a run that starts from this one has the merged parameters.

    Steps have fewer operations than full ones, so their share of the peak is not reported.
    """
    tune = {"frozen": "encoder/*", "adapters": {"kind": "lora", "rank": 2, "targets": "encoder/*attention*"}}
    config = changed(tiny(tmp_path), {"tune": tune, "train": {"steps": 2, "validate_every": 2}})
    text = io.StringIO()
    jaxformer.train(config, tmp_path / "run", console=Console(file=text))
    assert "texts/s" in text.getvalue()
    assert "MFU" not in text.getvalue()
    classifier = jaxformer.load(tmp_path / "run", checkpoint="last")
    assert isinstance(classifier, TextClassifier)
    adapters = classifier.params["lora"]
    assert set(adapters["encoder"]["stack"]["layers"]) == {"attention"}
    assert all(np.asarray(x).any() for x in jax.tree.leaves(adapters))
    _, first, _ = steps_of(config, tmp_path / "run", 0)
    chex.assert_trees_all_equal(first["encoder"], jax.tree.map(np.array, classifier.params["encoder"]))
    text = io.StringIO()
    start = {"init_from": f"{tmp_path / 'run'}:last", "train": {"steps": 1}, "optimizer": {"learning_rate": 0.0}}
    jaxformer.train(changed(tiny(tmp_path), start), tmp_path / "next", console=Console(file=text))
    assert ", 0 new, 0 of the other run unused" in text.getvalue().replace("\n", " ")
    assert "MFU" in text.getvalue()
    again = jaxformer.load(tmp_path / "next")
    assert isinstance(again, TextClassifier)
    assert "lora" not in again.params
    np.testing.assert_allclose(again.probabilities(TEXTS[:8]), classifier.probabilities(TEXTS[:8]), rtol=1e-5)


@pytest.mark.full
def test_the_average_of_embeddings_has_no_attention(tmp_path):
    model = {"num_layers": 0, "positions": None, "final_norm": False, "pooling": "mean"}
    config = changed(tiny(tmp_path), {"model": model, "train": {"steps": 1}})
    jaxformer.train(config, tmp_path / "run", console=QUIET)
    (result,) = jaxformer.load(tmp_path / "run").classify(["She sings."])
    assert result.words == ()


@pytest.mark.parametrize("size", ["", ":tiny"])
def test_built_in_classifiers_have_the_encoders_of_the_masked_language_models(size):
    source = registry.resolve(f"masked_language_model{size}")
    registry.resolve(f"classification{size}").check_init(source)
    network = TASK.network(registry.resolve("classification:average"), (100, 2))
    assert list(network.net.shapes["encoder"]) == ["embeddings"]


@pytest.mark.parametrize("num_types", [0, 2])
def test_pairs_are_one_row_with_two_types(tmp_path, num_types):
    """Both texts in training and validation, an end token between them; without token types, there are none."""
    rows = [f"{label}\t{text}\t{other}\n" for label, text, other in zip(LABELS, TEXTS, TEXTS[::-1], strict=True)]
    config = changed(tiny(tmp_path), {"model": {"num_token_types": num_types, "max_positions": 128}})
    config = changed(config, {"data": {"columns": [0, 1, 2], "max_length": 128, "tokens_per_batch": 1024}})
    (tmp_path / "train.tsv").write_text("".join(rows))
    corpus = TASK.read(config)
    data = TASK.prepare(config, corpus, tmp_path)
    special = data.vocabulary.tokenizer.special
    for batch in (data.train.batch(0), data.validation.batch(0)):
        ids, valid = batch.tokens.ids, batch.tokens.valid
        full = valid[:, 0]
        assert ((ids == special.eos).sum(1) == 2 * full).all()
        second = np.cumsum(ids == special.eos, 1) - (ids == special.eos) > 0
        assert (batch.tokens.types is None) == (num_types == 0)
        if num_types:
            assert (batch.tokens.types == (second & valid)).all()
        net = TASK.network(config, data.vocabulary.vocab_size, F.attention)
        row = net.row(ids.shape[1])
        chex.assert_trees_all_equal_structs(row, batch)
    encode = lambda text: data.vocabulary.tokenizer.encode([text])[0].tolist()
    sides = [[encode(part) for part in text.split("\t")] for text in corpus.validation.texts]
    pairs = [[special.bos, *first, special.eos, *second, special.eos] for first, second in sides]
    found = [row[: int(n)].tolist() for row, n in zip(ids, valid.sum(1), strict=True) if n]
    assert all(row in pairs for row in found)
