"""``average``: the arguments of the runner, and the printed lines; the tests of tasks have the other commands."""

import json
import shutil

import pytest

import jaxformer
from jaxformer import training
from jaxformer.cli import main
from jaxformer.cli.runs import average
from jaxformer.errors import ConfigError
from jaxformer.tasks import registry, restore, run_lock
from jaxformer.tokenizers.characters import CharacterTokenizer
from tests.contracts.task import quiet


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps that learns nothing, so the first step is the best; the last two are also kept."""
    folder = tmp_path_factory.mktemp("averaged")
    (folder / "a.txt").write_text("to be or not to be, that is the question\n" * 9)
    config = jaxformer.configure(
        "language_model",
        data={"text": str(folder / "a.txt"), "length": 8, "batch_size": 8, "cache": str(folder / "cache")},
        model={"d_model": 6, "num_heads": 1, "d_ff": 6, "num_layers": 1, "dropout": 0.0},
        train={"steps": 4, "validate_every": 1, "checkpoint_every": 1, "tensorboard": False, "keep_last": 2},
        optimizer={"schedule": "constant", "learning_rate": 0.0, "weight_decay": 0.0},
    )
    jaxformer.train(config, folder / "run", console=quiet())
    with training.Checkpoints(folder / "run" / "checkpoints") as saved:
        assert (saved.steps(), saved.best_step()) == ([1, 3, 4], 1)
    return folder / "run"


@pytest.mark.full
def test_an_old_best_checkpoint_is_not_averaged(run, capsys):
    assert main.main(["average", str(run), "--last", "3"]) == 0
    assert "averaged 2 checkpoints, steps 3, 4 (the run keeps fewer than 3 checkpoints);" in capsys.readouterr().out
    assert jaxformer.load(run, checkpoint="average").steps == (3, 4)
    assert main.main(["average", str(run), "--last", "1"]) == 0
    assert "averaged 1 checkpoint, step 4; use" in capsys.readouterr().out
    assert jaxformer.load(run, checkpoint="average").steps == (4,)
    assert len(list((run / "average").iterdir())) == 1  # nothing of the one before


@pytest.mark.full
def test_the_old_average_stays_until_the_new_one_is_complete(run, monkeypatch):
    """The process is killed before the save, or during it, before any file has its final name."""
    jaxformer.average(run, last=2)

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(training.Checkpoints, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        jaxformer.average(run, last=1)
    monkeypatch.undo()
    assert jaxformer.load(run, checkpoint="average").steps == (3, 4)


def test_a_second_average_at_the_same_time_is_refused(run, capsys):
    with run_lock.held(run / "average"):
        assert main.main(["average", str(run)]) == 1
    assert "average is in use by process" in capsys.readouterr().err


def test_the_last_checkpoints_are_averaged(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(restore, "average", lambda run, **options: asked.append((run, options)) or [4, 6])
    assert average([str(tmp_path)]) == 0
    fewer = "(the run keeps fewer than 5 checkpoints)"
    expected = f"averaged 2 checkpoints, steps 4, 6 {fewer}; use it with --checkpoint average\n"
    assert capsys.readouterr().out == expected
    assert average([str(tmp_path), "--last", "2", "--mesh", "data=4"]) == 0
    assert capsys.readouterr().out == "averaged 2 checkpoints, steps 4, 6; use it with --checkpoint average\n"
    first, second = {"last": 5, "mesh": "", "attention": None}, {"last": 2, "mesh": "data=4", "attention": None}
    assert asked == [(tmp_path, first), (tmp_path, second)]


def test_scores_of_an_earlier_average_are_named(monkeypatch, capsys, tmp_path):
    """Other uses of the word "average", in an ensemble or the name of a test set, do not count."""
    for name, checkpoint, steps in (
        ("test-average", "average", [4, 6]),
        ("test-average-beam_size=8", "average", [2, 4]),
        ("test-best", "best", [4]),
        ("test-best-ensemble-of-2-0a1b2c3d-average=log", "best", [4]),
        ("file-the-average.en-best", "best", [4]),
    ):
        about = {"settings": {"checkpoint": checkpoint}, "steps": steps}
        (tmp_path / f"scores-{name}.json").write_text(json.dumps(about))
    monkeypatch.setattr(restore, "average", lambda run, **options: (4, 6))
    assert average([str(tmp_path), "--last", "2"]) == 0
    said = "these scores are of an earlier average; evaluate again: scores-test-average-beam_size=8.json\n"
    assert capsys.readouterr().err == said


def test_a_replaced_vocabulary_is_noticed(run, tmp_path, capsys):
    """It has the same size, so the parameters fit: the commands that use the run, and its training, refuse it."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    text = (run.parent / "a.txt").read_text().replace("question", "?uestio\n")
    CharacterTokenizer.train([text.replace("b", "B")]).save(copy / "tokenizer.json")
    assert main.main(["generate", str(copy), "to"]) == 2
    assert "another vocabulary than in training" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="another vocabulary than in training"):
        jaxformer.train(registry.read_config(copy), copy, console=quiet())
    assert jaxformer.load(run)
