"""The runner: what it refuses, and what it leaves behind."""

import dataclasses
import pathlib
import re
import runpy

import jax
import pytest

import jaxformer
from jaxformer import demo, training
from jaxformer.data.tokenizer import load_tokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import registry, rundir, runner
from tests.contracts.task import quiet
from tests.tasks.small import small


def test_settings_put_right_are_not_another_run(tmp_path):
    """What ended for its settings, before a step, is in nobody's way: the advice of its message can be followed."""
    wrong = small(cache=str(tmp_path / "cache"))
    for config in (wrong, dataclasses.replace(wrong, data=dataclasses.replace(wrong.data, vocab_size=500))):
        with pytest.raises(DataError, match=r"model\.max_positions is 8"):
            jaxformer.train(config, tmp_path / "run", console=quiet())
    assert load_tokenizer(tmp_path / "run" / "tokenizer.model").vocab_size == 500
    assert registry.read_config(tmp_path / "run").data.vocab_size == 500


def test_scores_are_of_the_data_of_the_run(tmp_path):
    """Otherwise what is held out may have been trained on."""
    rundir.claim(tmp_path, "translation", small(), ())
    rundir.write_provenance(tmp_path, data={"train": "another", "validation": "one"})
    with pytest.raises(ConfigError, match="a run on other data, by its hash: train was 'another'"):
        jaxformer.evaluate(tmp_path, object())


def test_a_checkpoint_is_a_number_of_digits(tmp_path):
    with training.Checkpoints(tmp_path) as saved:
        saved.save(2, {"x": jax.numpy.ones(2)}, {})
        with pytest.raises(ConfigError, match="no checkpoint '²'"):
            runner._choose(saved, "²")


def test_the_python_lines_of_the_readme(tmp_path, monkeypatch, capsys):
    """From two files to a translation, with a tiny model in place of the default one."""
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    pairs = demo.generate(300)
    (tmp_path / "my.en").write_text("".join(f"{pair.english}\n" for pair in pairs))
    (tmp_path / "my.fr").write_text("".join(f"{pair.french}\n" for pair in pairs))
    (tmp_path / "lines.py").write_text(lines)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
    data = {"vocab_size": 400, "held_out": 20, "num_shapes": 1, "cache": str(tmp_path / "cache")}

    def tiny(name, **settings):
        settings["data"] = settings["data"] | data
        settings["train"] = settings["train"] | {"steps": 2, "validate_every": 2, "tensorboard": False}
        return registry.configure(
            name, **settings, model=sizes, optimizer={"warmup_steps": 1}, decode={"max_ratio": 1.0}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(vars(jaxformer), "configure", tiny)
    runpy.run_path(str(tmp_path / "lines.py"))
    assert capsys.readouterr().out.startswith("['")


def test_results_may_be_read_without_a_console(tmp_path, capsys):
    """Progress goes to standard error, so that a script's own output stays clean."""
    config = registry.configure(
        "language_model",
        data={"text": str(tmp_path / "a.txt"), "length": 8, "batch_size": 8, "cache": str(tmp_path / "cache")},
        model={"d_model": 8, "num_heads": 1, "d_ff": 8, "num_layers": 1},
        train={"steps": 1, "validate_every": 1, "tensorboard": False},
        optimizer={"schedule": "constant"},
    )
    (tmp_path / "a.txt").write_text("".join(f"{pair.english}\n" for pair in demo.generate(30)))
    jaxformer.train(config, str(tmp_path / "run"))
    output = capsys.readouterr()
    assert output.out == ""
    assert "validation loss" in output.err


@pytest.mark.parametrize(
    ("text", "expected"), [("a/b", ("a/b", "best")), ("a/b:last", ("a/b", "last")), ("a:3", ("a", "3"))]
)
def test_where_a_warm_start_comes_from(text, expected):
    run, checkpoint = runner._split_init(text)
    assert (str(run), checkpoint) == expected
