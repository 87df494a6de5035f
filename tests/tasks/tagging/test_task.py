"""The tagging task: its contract, words of several tokens, long sentences, warm starts, and refusals."""

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import demo, models
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.data.tagged import IGNORED
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.modules.pure import pure
from jaxformer.tasks import classification, language_model, masked_language_model, registry
from jaxformer.tasks.classification.predictor import ClassVocabulary
from jaxformer.tasks.tagging import TASK, DataConfig, Tagger, TaggingConfig
from jaxformer.tasks.tagging import task as tagging
from jaxformer.tokenizers.characters import CharacterTokenizer
from jaxformer.training.config import AdamConfig, TrainConfig
from tests.contracts.task import TaskContract

PAIRS = demo.generate(60)
SIZES = {
    "d_model": 12,
    "num_heads": 4,
    "d_ff": 20,
    "num_layers": 1,
    "positions": choices.Learned(),
    "max_positions": 32,
}


def tiny(folder, **changes):
    (folder / "train.tsv").write_text("".join(map(demo.tagged, PAIRS)))
    data = {"max_length": 32, "num_shapes": 1, "tokens_per_batch": 512, "held_out": 0.2, "tokenizer": "characters"}
    return TaggingConfig(
        mesh="data=8",
        model=models.TokenClassifierConfig(**SIZES),
        data=DataConfig(train=str(folder / "train.tsv"), cache=str(folder / "cache"), **data),
        optimizer=AdamConfig(learning_rate=1e-2, warmup_steps=2),
        train=TrainConfig(steps=6, validate_every=3, checkpoint_every=2, tensorboard=False, metric="f1"),
        **changes,
    )


@pytest.mark.full
class TestContract(TaskContract):
    task = "tagging"
    refused = (
        ({"data": {"train": ""}}, "no sentences: give --data.train FILE"),
        ({"data": {"train": "nowhere.tsv"}}, "nowhere.tsv"),
        ({"data": {"max_length": 33}}, "data.max_length is 33, but model.max_positions is 32"),
        ({"data": {"columns": [0, 1, 2]}}, "columns must be two different numbers from 0, got"),
        ({"model": {"num_classes": 3}}, r"model.num_classes is 3, but the data have \d\d"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("words"))

    def change_training_data(self, config, patch):
        patch.setattr(tagging.TaggedSentences, "split", lambda sentences, held_out: (sentences, sentences))

    def test_scores_are_those_of_the_labels(self, config, run):
        kept = {}
        keep = lambda name, rows: kept.update({name: rows})
        scores = jaxformer.evaluate(run, split="validation", say=str, on_examples=keep)
        pairs = [pair for row in kept["validation"] for pair in zip(row["labels"], row["guesses"], strict=True)]
        assert scores["validation"][0].value == pytest.approx(100 * np.mean([a == b for a, b in pairs]))


def test_the_label_is_at_the_first_token_of_each_word(tmp_path):
    """A long sentence goes on in another row, and no word is lost."""
    config = tiny(tmp_path)
    corpus = TASK.read(config)
    data = TASK.prepare(config, corpus, tmp_path)
    assert isinstance(data.vocabulary, ClassVocabulary)
    tokenizer, found = data.vocabulary.tokenizer, list[tuple[str, str]]()
    for batch in data.validation_batches(np.arange):
        assert batch.tokens.shape[1] == 32
        for ids, labels in zip(batch.tokens.ids, batch.labels, strict=True):
            (places,) = np.nonzero(labels != IGNORED)
            ends = [*places[1:], *np.flatnonzero(ids == tokenizer.special.eos)]
            words = [tokenizer.decode(ids[a:b]).strip() for a, b in zip(places, ends, strict=True)]
            found += zip(words, (corpus.classes[labels[a]] for a in places), strict=True)
    part = corpus.validation
    known = [tokenizer.decode(ids) for ids in tokenizer.encode(part.words)]  # without characters that are new
    assert sorted(found) == sorted(zip(known, part.labels, strict=True))
    assert "further rows for the rest of sentences of more than 30 tokens" in data.report[0]


@pytest.fixture(scope="module")
def tagger():
    tokenizer = CharacterTokenizer.train([pair.english for pair in PAIRS])
    config = models.TokenClassifierConfig(tokenizer.vocab_size, num_classes=3, **SIZES)
    net = pure(models.TokenClassifier, config)
    return Tagger(net, net.init(jax.random.key(0)), ClassVocabulary(tokenizer, ("B-X", "I-X", "O")), 32)


def test_each_word_is_tagged_whatever_its_neighbors(tagger):
    """Words without a token and texts without a word, too; a text alone is tagged as among others."""
    texts = ["She sings.", "", PAIRS[0].english + " " + PAIRS[1].english, ["a\u00ad", "", "old man " * 9]]
    results = tagger.tag(texts)
    assert results[0].words == ("She", "sings", ".")
    assert [len(found.words) for found in results[1:]] == [0, len(demo.words(texts[2])), 3]
    for text, found in zip(texts, results, strict=True):
        (alone,) = tagger.tag([text])
        assert (found.words, found.labels) == (alone.words, alone.labels)
        assert alone.probabilities == pytest.approx(found.probabilities, abs=1e-5)
        assert len(found.labels) == len(found.words)
    with pytest.raises(TypeError, match=r"write \[text\]"):
        tagger.tag("She sings.")


def test_other_runs_to_start_from(tmp_path):
    """The encoder of a masked language model or a classifier fits; a language model has none."""
    config = registry.resolve("tagging:tiny")
    for name in ("masked_language_model:tiny", "classification:tiny", "tagging:tiny"):
        config.check_init(registry.resolve(name))
        registry.resolve("classification:tiny").check_init(registry.resolve(name))
    source = masked_language_model.MaskedLanguageModelingConfig(model=models.EncoderConfig(**SIZES))
    assert (config.with_settings_of(source).model.d_model, config.with_settings_of(source).data.max_length) == (12, 32)
    with pytest.raises(ConfigError, match="is a run of language_model; tagging starts from one of masked_lang"):
        config.check_init(language_model.LanguageModelingConfig())
    assert isinstance(classification.ClassificationConfig(), classification.config.LabelingConfig)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("a\tX\nb\n", [], "my.tsv, line 2: 1 column(s), but the word is in column 0 and its label in column 1"),
        ("a\tX\nb\tY\tZ\n", [], "my.tsv, line 2: 3 columns, but line 1 has 2; a text must not contain"),
        ("a\tX\n\tY\n", [], "my.tsv, line 2: the word is empty"),
        ("a\tX\nb\t\n", [], "my.tsv, line 2: the label is empty"),
        ("\n\n", [], "my.tsv holds no word"),
        ("a\tX\n", [], "my.tsv has one class, 'X'"),
        ("a\tX\n\nb\tY\n", ["--data.validation", "{other}"], "other.tsv, line 2: the label 'Z' is not one of the"),
        ("a\tX\nb\tY\n", ["--data.columns", "0", "0"], "columns must be different numbers from 0, got (0, 0)"),
    ],
)  # fmt: skip
def test_mistakes_give_one_line_and_leave_no_files(tmp_path, capsys, table, options, message):
    """With exit code 2, naming the file and the line."""
    (tmp_path / "my.tsv").write_text(table)
    (tmp_path / "other.tsv").write_text("a\tX\nb\tZ\n")
    options = [option.format(other=tmp_path / "other.tsv") for option in options]
    train = ["train", "tagging:tiny", "--data.train", str(tmp_path / "my.tsv"), "--out", str(tmp_path / "run")]
    assert main([*train, *options]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_fewer_sentences_do_not_change_validation(tmp_path):
    corpus, few = (TASK.read(changed(tiny(tmp_path), {"data": {"max_examples": n}})) for n in (0, 10))
    assert (len(corpus.train) > 40, len(few.train)) == (True, 10)
    assert few.validation == corpus.validation
