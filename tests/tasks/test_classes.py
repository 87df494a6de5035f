"""Names of classes are saved with a run, and chosen from the settings or the data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.data.examples import Examples
from jaxformer.errors import DataError
from jaxformer.tasks import classes, classification, rundir, vision
from jaxformer.tasks.classification import ClassificationConfig
from jaxformer.tasks.config import TaskConfig

EXAMPLES = Examples(("x", "y", "z"), ("b", "a", "b"))


def test_names_are_saved(tmp_path):
    classes.save(tmp_path, ("é", "b"))
    assert classes.load(tmp_path) == ("é", "b")
    stamp = (tmp_path / classes.FILE).stat().st_mtime_ns
    classes.save(tmp_path, ("é", "b"))
    assert (tmp_path / classes.FILE).stat().st_mtime_ns == stamp
    classes.save(tmp_path, ("a", "b", "c"))  # of another classifier, from which this run starts
    assert classes.load(tmp_path) == ("a", "b", "c")


def test_names_of_a_run_that_has_begun_do_not_change(tmp_path):
    """Its parameters would be useless with others, which are refused later."""
    rundir.write_config(tmp_path, "classification", ClassificationConfig())
    classes.save(tmp_path, ("a", "b"))
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    classes.save(tmp_path, ("a", "aa", "b"))
    assert classes.load(tmp_path) == ("a", "b")


def test_the_output_layer_of_other_classes_is_not_taken(tmp_path):
    """Of as many classes, or of the same ones in another order; a run without classes has another head anyway."""
    there, here, params = tmp_path / "there", tmp_path / "here", {"encoder": np.zeros(1), "output": np.zeros(2)}
    there.mkdir()
    classes.save(here, ("a", "b"))
    assert classes.renamed(params, TaskConfig(), there, here) is params
    classes.save(there, ("a", "b"))
    for task in (vision.TASK, classification.TASK):
        assert task.renamed(params, task.config(), there, here) == params
    for other in (("b", "a"), ("a", "c")):
        classes.save(there, other)
        for task in (vision.TASK, classification.TASK):
            found = task.renamed(params, task.config(), there, here)
            assert found == {"encoder": params["encoder"], "output_of_other_classes": params["output"]}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"classes": 3}', pytest.param("[" * 100_000, id="deep")])
def test_damaged_files_are_named(tmp_path, text):
    with pytest.raises(DataError, match=r"cannot read .*classes\.json"):
        classes.load(tmp_path)
    (tmp_path / classes.FILE).write_text(text)
    with pytest.raises(DataError, match=r"classes\.json is damaged: it holds no names of classes"):
        classes.load(tmp_path)


def test_names_come_from_the_settings_or_the_data():
    assert classes.choose(EXAMPLES, (), "x") == ("a", "b")
    assert classes.choose(EXAMPLES, ("b", "a"), "x") == ("b", "a")
    with pytest.raises(DataError, match=r"my\.file has no example of the class 'c', which data\.classes names"):
        classes.choose(EXAMPLES, ("a", "b", "c"), "my.file")
    with pytest.raises(DataError, match=r"my\.file has one class, 'a'; a classifier needs two or more"):
        classes.choose(Examples(("x",), ("a",)), (), "my.file")


def test_a_corpus_counts_its_classes():
    corpus = classes.LabeledCorpus(EXAMPLES, EXAMPLES, None, ("b", "a"))
    assert corpus.indices(EXAMPLES).tolist() == [0, 1, 0]
    assert corpus.counts() == "b 2, a 1"
    assert classes.Classes(("b", "a")).fingerprint != classes.Classes(("a", "b")).fingerprint
    assert classes.Classes(("b", "a")).vocab_size == 2
    many = tuple(map(str, range(30)))
    assert classes.LabeledCorpus(Examples(many, many), EXAMPLES, None, many).counts() == "30 classes of 1 to 1"


def test_a_class_missing_in_a_split_is_reported():
    """A class without training data is never predicted; one without validation data is not in the metrics."""
    whole = classes.LabeledCorpus(EXAMPLES, EXAMPLES, None, ("a", "b"))
    assert whole.warnings() == []
    some = Examples(("x",), ("b",))
    assert dataclasses.replace(whole, train=some).warnings()[1:] == ["WARNING: 1 of 2 classes without training data: a"]
    more = dataclasses.replace(whole, validation=some, classes=("a", "b", "c", "d", "e", "f", "g"))
    assert more.warnings()[1:] == [
        "WARNING: 5 of 7 classes without training data: c, d, e, f, g",
        "WARNING: 6 of 7 classes without validation data: a, c, d, e, f, ...",
    ]


def test_a_class_of_one_example_may_be_a_misspelled_label():
    """It becomes a class; if every class has one example, there is no warning."""
    train = Examples(("x", "y", "z", "w"), ("good", "good", "bad", "goood"))
    corpus = classes.LabeledCorpus(train, Examples(("v", "u"), ("bad", "good")), None, ("bad", "good", "goood"))
    lone, _ = corpus.warnings()
    assert lone.startswith(
        "WARNING: 1 of 3 classes with a single example: goood; if a label is misspelled, data.classes"
    )
    each = Examples(("x", "y"), ("a", "b"))
    assert not any("single" in line for line in classes.LabeledCorpus(each, each.first(0), None, ("a", "b")).warnings())


@pytest.mark.full
def test_metrics_of_batches_are_those_of_all_examples():
    """Rows that pad a batch never count."""
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((3, 8, 3)).astype(np.float32), rng.integers(0, 3, (3, 8)).astype(np.int32)
    where = np.arange(8) < np.array([[8], [8], [5]])
    batches = [classes.losses(*map(jnp.asarray, batch)) for batch in zip(logits, labels, where, strict=True)]
    sums = {name: sum(np.asarray(batch[2][name]) for batch in batches) for name in batches[0][2]}
    right, correlation = classes.scores(labels[where], logits[where])
    assert classes.measure(TaskConfig(), None, None, None, sums) == pytest.approx(
        {"accuracy": right.value, "matthews": correlation.value}
    )
    log_p = np.asarray(jax.nn.log_softmax(logits))[where]
    assert sum(float(batch[0]) for batch in batches) == pytest.approx(-log_p[range(21), labels[where]].sum(), rel=1e-5)
    assert sum(float(batch[1]) for batch in batches) == 21


def test_scores():
    right, correlation = classes.scores(np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
    assert (right.name, right.value) == ("accuracy", pytest.approx(200 / 3))
    assert correlation.value == pytest.approx(50)
