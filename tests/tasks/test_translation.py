"""From text to text with an untrained model: order, batching, limits, and what is refused."""

import dataclasses
import io

import jax
import numpy as np
import pytest
from rich.console import Console

from jaxformer import demo, models, sharding, training
from jaxformer.config import ConfigError
from jaxformer.data.tokenizer import SubwordTokenizer, load_tokenizer
from jaxformer.errors import DataError
from jaxformer.modules import pure
from jaxformer.sharding import Placement
from jaxformer.tasks import rundir, translation
from jaxformer.tasks.corpora import load_corpora
from jaxformer.tasks.translation_config import DataConfig, DecodeConfig, TrainConfig, TranslationConfig
from jaxformer.tasks.translation_model import make_model
from jaxformer.tasks.translator import Translator

ALL = Placement(sharding.mesh())
SENTENCES = ["The old man sees the house.", "", "She sings.", "Why did the old actress hide her keys?", "  "]


def translator(beam_size=3, **options):
    tokenizer = SubwordTokenizer.train([p.english for p in demo.generate(500)], vocab_size=400)
    config = models.EncoderDecoderConfig(
        400, 400, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1, **options
    )
    net = pure(models.EncoderDecoder, config)
    return Translator(
        net,
        net.init(jax.random.key(1)),
        tokenizer,
        DecodeConfig(beam_size=beam_size, batch_size=2, max_ratio=1.0, max_extra=5),
    )


def test_order_and_empty_sentences():
    """Each sentence is translated as it is alone, whatever it is batched with."""
    one = translator()
    together = one.candidates(SENTENCES, n_best=2)
    assert [c.text for c in together[1]] == ["", ""]
    for sentence, found in zip(SENTENCES, together, strict=True):
        alone = one.candidates([sentence], n_best=2)[0]
        assert [c.tokens for c in alone] == [c.tokens for c in found]
        np.testing.assert_allclose([c.score for c in alone], [c.score for c in found], rtol=1e-4, atol=1e-5)


def test_a_translation_is_one_line(monkeypatch):
    """Bytes can spell what ends a line or a column, and a sentence of spaces has no translation."""
    monkeypatch.setattr(SubwordTokenizer, "decode", lambda self, ids: "a\nb\r\tc\0d\u2028e\x85f")
    assert translator().translate(["She sings.", " \u3000"]) == ["a b  c d e f", ""]


def test_limits_on_length():
    one = translator()
    for sentence, (best,) in zip(SENTENCES, one.candidates(SENTENCES), strict=True):
        assert len(best.tokens) <= len(one.tokenizer.encode([sentence])[0]) + 1 + 5


def test_progress_counts_every_sentence():
    seen = []
    translator().translate(SENTENCES[:1] * 5, progress=seen.append)
    assert seen == [2, 2, 1]


def test_every_device_has_a_sentence():
    """A batch of two on eight devices would have six of them search for translations of nothing."""
    seen = []
    dataclasses.replace(translator(), placement=ALL).translate(SENTENCES[:1] * 10, progress=seen.append)
    assert seen == [8, 2]


def test_attention_rows_sum_to_one():
    found = translator().attention(SENTENCES[0], "Le vieil homme.")
    assert found.weights.shape == (1, 2, len(found.target), len(found.source))
    np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)
    assert found.source[-1] == found.target[-1] == "</s>"


def test_refusals():
    with pytest.raises(ValueError, match=r"n_best must be in \[1, beam_size = 3\], got 4"):
        translator().candidates(SENTENCES, n_best=4)
    short = translator(positions="learned", max_positions=12)
    assert len(short.translate(["She sings."])) == 1
    with pytest.raises(ValueError, match=r"sentence 2 has .* tokens, but the model has 12 positions"):
        short.translate(["She sings.", "The old man sees the house and the garden and the sea and the hills."])


def test_scores_are_of_the_data_of_the_run(tmp_path):
    """Otherwise what is held out may have been trained on."""
    config, quiet = small(), Console(quiet=True)
    rundir.write_provenance(tmp_path, data={"train": "another", "validation": "one"})
    with pytest.raises(ConfigError, match="a run on other data, by its hash: train was 'another'"):
        translation.evaluate(tmp_path, config, translator(), console=quiet)


def small(**data):
    model = models.EncoderDecoderConfig(
        d_model=16,
        num_heads=2,
        d_ff=32,
        num_encoder_layers=1,
        num_decoder_layers=1,
        positions="learned",
        max_positions=8,
    )
    return TranslationConfig(model=model, data=DataConfig(corpus="grammar", vocab_size=400, **data))


def test_batches_longer_than_the_positions(tmp_path):
    config = small(cache=str(tmp_path / "cache"))
    corpora = load_corpora(config.data, seed=0)
    with pytest.raises(DataError, match=r"model\.max_positions is 8"):
        translation.prepare_run(config, corpora, tmp_path, ALL, console=Console(quiet=True))


def test_lengths_that_a_mesh_cannot_cut(tmp_path):
    """They are not cut, which is said, with what would cut them."""
    placement, said = Placement(sharding.mesh("data=2,context=4")), []
    for multiple in (1, 4):
        config = small(cache=str(tmp_path / "cache"), length_multiple=multiple)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_positions=256))
        console = Console(file=io.StringIO(), width=500)
        corpora = load_corpora(config.data, seed=0)
        plan = translation.prepare_run(config, corpora, tmp_path, placement, console=console).train[1]
        said.append(console.file.getvalue())
        odd = [shape[1] for shape in plan.shapes if shape[1] % 4]
        assert bool(odd) is (multiple == 1)
        assert all(f"{length}" in said[-1] for length in odd)
    assert ["--data.length-multiple 4" in text for text in said] == [True, False]


def test_validation_leaves_out_what_the_model_cannot_number(tmp_path):
    """One long sentence, first of all, would end the training at its first validation."""
    pairs = demo.generate(400)
    for side in ("english", "french"):
        lines = [getattr(pair, side) for pair in pairs]
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines[20:]))
        (tmp_path / f"held.{side}").write_text("".join(f"{line}\n" for line in [" ".join(lines[:20]), *lines[:20]]))
    names = {"source": "english", "target": "french"}
    held = {f"validation_{name}": f"held.{side}" for name, side in names.items()}
    data = DataConfig(
        **names, **held, directory=str(tmp_path), cache=str(tmp_path / "cache"), vocab_size=400, held_out=5
    )
    model = dataclasses.replace(small().model, max_positions=128)
    config = TranslationConfig(model=model, data=data, train=TrainConfig(validation_bleu=3))
    prepared = translation.prepare_run(
        config, load_corpora(data, seed=0), tmp_path, ALL, console=Console(file=io.StringIO())
    )
    assert prepared.validation[1].skipped.tolist() == [0]
    assert 0 <= translation.Validation(config, prepared)(prepared.model.new_state())["bleu"] < 100


def test_a_metric_that_nobody_computes(tmp_path):
    config = TranslationConfig(train=TrainConfig(metric="bleu"))
    with pytest.raises(ConfigError, match="validation_bleu is 0"):
        translation.train(config, tmp_path / "run", console=Console(quiet=True))
    assert not (tmp_path / "run").exists()


def test_vocabulary_must_be_the_tokenizers(tmp_path):
    config = small()
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, source_vocab_size=300, target_vocab_size=300)
    )
    with pytest.raises(ValueError, match="source_vocab_size is 300, but the tokenizer has 400"):
        make_model(config, 400, ALL)


def test_run_directories(tmp_path):
    config = small()
    assert rundir.check_run(tmp_path / "run", config) is False
    assert not (tmp_path / "run").exists()
    rundir.claim_run(tmp_path / "run", "translation", config)
    assert rundir.check_run(tmp_path / "run", config) is False  # nothing of it has happened
    (tmp_path / "run" / "checkpoints").mkdir()  # as `jaxformer evaluate` leaves it, where there is nothing to evaluate
    assert rundir.check_run(tmp_path / "run", config) is False
    (tmp_path / "run" / "checkpoints" / "10").mkdir()
    assert rundir.check_run(tmp_path / "run", config) is True
    assert rundir.read_config(tmp_path / "run") == ("translation", config)
    with pytest.raises(ConfigError, match="seed was 0, now 1"):
        rundir.check_run(tmp_path / "run", dataclasses.replace(config, seed=1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        rundir.check_run(tmp_path / "other", config)
    assert (tmp_path / "other" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "run" / "config.json").write_text('{"task": "cooking", "config": {}}')
    with pytest.raises(ConfigError, match="task 'cooking'"):
        rundir.read_config(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"task": [], "config": {}}')
    with pytest.raises(ConfigError, match=r"task \[\]"):
        rundir.read_config(tmp_path / "run")


def test_settings_put_right_are_not_another_run(tmp_path):
    """What ended for its settings, before a step, is in nobody's way: the advice of its message can be followed."""
    wrong = small(cache=str(tmp_path / "cache"))
    for config in (wrong, dataclasses.replace(wrong, data=dataclasses.replace(wrong.data, vocab_size=500))):
        with pytest.raises(DataError, match=r"model\.max_positions is 8"):
            translation.train(config, tmp_path / "run", console=Console(quiet=True))
    assert load_tokenizer(tmp_path / "run" / "tokenizer.model").vocab_size == 500
    assert rundir.read_config(tmp_path / "run")[1].data.vocab_size == 500


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (TrainConfig, {"keep_last": 0}, "keep_last must be at least 1, got 0"),
        (TrainConfig, {"accumulate": 0}, "accumulate must be at least 1"),
        (TrainConfig, {"minutes": float("nan")}, "minutes must be at least 0, got nan"),
        (TrainConfig, {"ema_decay": 1.0}, "ema_decay must be less than 1"),
        (DataConfig, {"num_shapes": 0}, "num_shapes must be at least 1"),
        (DataConfig, {"columns": (0, -3)}, "columns must be at least 0"),
        (TranslationConfig, {"seed": -1}, "seed must be at least 0, got -1"),
        (TranslationConfig, {"seed": 2**32}, r"seed must be less than 2\*\*32"),
        (DecodeConfig, {"max_extra": -1}, "max_extra must be at least 0"),
    ],
)
def test_settings_that_mean_nothing(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": 0}, "no validation data: give --data.validation-source"),
        ({"validation_target": "v"}, "--data.validation-target v is given, but no --data.validation-source"),
        ({"test_target": "t"}, "--data.test-target t is given, but no --data.test-source"),
    ],
)
def test_data_that_is_not_named(tmp_path, settings, message):
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(DataError, match=message):
        load_corpora(DataConfig(source="a", target="a", directory=str(tmp_path), **settings), seed=0)


def test_no_test_data(tmp_path):
    (tmp_path / "a").write_text("one\n")
    data = DataConfig(source="a", target="a", validation_source="a", validation_target="a", held_out=0)
    config = TranslationConfig(data=dataclasses.replace(data, directory=str(tmp_path)))
    with pytest.raises(DataError, match=r"no test data: the run's data\.held_out is 0"):
        translation.evaluate(tmp_path, config, translator(), console=Console(quiet=True))


def test_a_checkpoint_is_a_number_of_digits(tmp_path):
    with training.Checkpoints(tmp_path) as saved:
        saved.save(2, {"x": jax.numpy.ones(2)}, {})
        with pytest.raises(ConfigError, match="no checkpoint '²'"):
            translation._choose(saved, "²")


@pytest.mark.parametrize("text", ['{"task": "transl', "[]", "\ufffd\0"])
def test_a_damaged_file_of_a_run_is_named(tmp_path, text):
    for name in ("config.json", "provenance.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        rundir.read_config(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read .*provenance\.json"):
        rundir.check_data(tmp_path, {"train": "abc"})
