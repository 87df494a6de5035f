"""The command line for its users: a process, its output and its exit code."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from jaxformer import demo
from jaxformer.cli.main import COMMANDS, main
from jaxformer.tasks import rundir
from jaxformer.tasks.language_model import LanguageModelingConfig

TINY = (
    "--model.d_model 16 --model.num-heads 2 --model.d_ff 32 --model.num-encoder-layers 1 --model.num-decoder-layers 1 "
    "--data.vocab-size 400 --data.tokens-per-batch 512 --data.num-shapes 1 --data.max-length 64 --train.steps 6 "
    "--train.validate-every 3 --train.checkpoint-every 3 --decode.validation-sentences 4 --train.keep-last 2"
).split()


def jaxformer(*arguments, cwd, **options):
    environment = {**os.environ, "XDG_CACHE_HOME": str(pathlib.Path(__file__).parents[1] / ".cache")}
    environment.pop("JAXFORMER_DATA", None)
    return subprocess.run(
        [sys.executable, "-m", "jaxformer.cli.main", *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=240, check=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    pairs = demo.generate(700)
    (folder / "my.en").write_text("".join(f"{p.english}\n" for p in pairs))
    (folder / "my.fr").write_text("".join(f"{p.french}\n" for p in pairs))
    return folder


@pytest.fixture(scope="module")
def run(files):
    """A run trained on the user's own two files, as the README says."""
    own = ["--data.source", "my.en", "--data.target", "my.fr", "--data.held-out", "30"]
    done = jaxformer("train", "translation", *own, "--out", "run", *TINY, cwd=files)
    assert done.returncode == 0, done.stderr
    assert "640 pairs" in done.stderr
    assert "compiled training programs: " in done.stderr
    return files / "run"


def test_run_directory(run):
    names = {path.name for path in run.iterdir()}
    expected = "config.json provenance.json tokenizer.model checkpoints log.jsonl curves.png tensorboard".split()
    assert {*expected} <= names
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log if "loss" in entry] == list(range(1, 7))
    assert [entry["step"] for entry in log if "validation_bleu" in entry] == [3, 6]
    about = json.loads((run / "provenance.json").read_text())
    assert about["versions"]["jax"]
    assert about["data"]["train"]


def test_training_again_changes_nothing(run, monkeypatch, capsys):
    monkeypatch.chdir(run.parent)
    log = (run / "log.jsonl").read_text()
    assert main(["train", str(run / "config.json"), "--out", str(run)]) == 0
    assert "resumed from step 6" in capsys.readouterr().err
    assert (run / "log.jsonl").read_text() == log


@pytest.mark.full
def test_replay(run):
    """In another process; `tests/contracts/test_own_attention.py` replays a run outside of the full tests."""
    again = jaxformer("replay", run, "--steps", 3, cwd=run.parent)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == "3 of 3 losses equal the logged ones bit for bit"


def test_runs_and_diff(run, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    assert main(["diff", str(run), str(other)]) == 0
    saved = json.loads((other / "config.json").read_text())
    saved["config"]["seed"] = 7
    (other / "config.json").write_text(json.dumps(saved))
    capsys.readouterr()
    assert main(["diff", str(run), str(other)]) == 1
    assert "settings:\n  seed: 0 | 7\nversions: the same\n" in capsys.readouterr().out
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{other}  translation  done  step 6/6"
    assert any(line.startswith("    validation_loss ") for line in lines)


@pytest.mark.full
def test_translate_evaluate_average_inspect(run):
    one = jaxformer("translate", run, "The old man sees the house.", "A dog runs.", cwd=run)
    assert one.returncode == 0
    assert len(one.stdout.splitlines()) == 2
    (run / "in.txt").write_text("The old man sees the house.\n\nA dog runs.\n")
    assert jaxformer("translate", run, "--file", "in.txt", "--out", "out.txt", cwd=run).returncode == 0
    translated = (run / "out.txt").read_text().splitlines()
    assert [translated[0], translated[2]] == one.stdout.splitlines()
    assert translated[1] == ""
    piped = jaxformer("translate", run, "--n-best", 3, cwd=run, input="A dog runs.\nA dog runs.\n")
    numbers, scores, best = zip(*(line.split("\t") for line in piped.stdout.splitlines()), strict=True)
    assert numbers == ("1", "1", "1", "2", "2", "2")
    assert best[0] == one.stdout.splitlines()[1]
    assert list(map(float, scores[:3])) == sorted(map(float, scores[:3]), reverse=True)

    assert main(["average", str(run), "--last", "1", "--mesh", "data=4,fsdp=2"]) == 0
    assert "steps 3, 6" in jaxformer("average", run, "--last", 2, cwd=run).stdout
    scored = jaxformer("evaluate", run, "--checkpoint", "average", "--decode.beam_size", 2, cwd=run.parent)
    assert scored.returncode == 0
    assert "BLEU" in scored.stdout
    assert "chrF2" in scored.stdout
    assert "tok:13a" in scored.stdout
    examples = [json.loads(line) for line in (run / "examples-test-average-beam_size=2.jsonl").read_text().splitlines()]
    assert [example["number"] for example in examples] == list(range(1, 31))
    assert {"corpus", "source", "reference", "hypothesis", "score", "bleu", "chrf"} < set(examples[0])
    saved = json.loads((run / "scores-test-average-beam_size=2.json").read_text())
    assert saved["steps"] == [3, 6]
    assert saved["settings"]["decode"]["search"]["beam_size"] == 2

    drawn = jaxformer(
        "inspect", run, "--source", "A dog runs.", "--target", "Un chien court.", "--out", "map.svg", cwd=run
    )
    assert drawn.returncode == 0
    assert "chien" in drawn.stdout
    assert (run / "map.svg").read_text().lstrip().startswith("<?xml")


MISTAKES = """
train demo --out x --train.stepz 3
train demo --out x --optimizer.learning_rate nan
train demo --out x --model.d_model 0
train language_model --out x --data.batch_size 10000000000
train dmeo --out x
train bad.json --out x
plan demo --topology v5e:4x4 --batch 99999999999x128
plan demo --topology v5e:4x4 --model.d_modle 3
translate run --decode.beam_siez 3 a
evaluate run --decode.max_ratio inf
generate run --decode.temperature cold a
generate run --top-p 2 a
inspect run --source a --decode.beam_size 0
"""


def test_mistakes_are_found_before_anything_heavy_is_imported(tmp_path):
    """JAX alone takes a second, on a loaded machine ten."""
    (tmp_path / "bad.json").write_text('{"task": "translation", "config": ' + "[" * 10_000 + "]" * 10_000 + "}")
    rundir.claim(tmp_path / "run", "language_model", LanguageModelingConfig(), ())
    program = (
        "import sys; from jaxformer.cli.main import main\n"
        f"codes = [main(line.split()) for line in {MISTAKES.strip().splitlines()}]\n"
        "print(*codes); print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    codes, modules = done.stdout.splitlines()
    assert set(codes.split()) == {"2"}, done.stderr
    assert len(done.stderr.splitlines()) == len(codes.split()), done.stderr
    assert set(modules.split()) & {"jax", "jaxlib", "flax", "optax", "orbax", "numpy", "grain", "sacrebleu"} == set()
    assert {path.name for path in tmp_path.iterdir()} == {"bad.json", "run"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert f"jaxformer {command}" in said
    examples = said.partition("examples:\n")[2].partition("\n\n")[0]
    assert examples
    for line in examples.splitlines():  # pasted into a shell, a remark must not become arguments
        assert "  " not in line.strip().partition("  # ")[0], line
