"""``--attention FILE.py:NAME``: a language model with an attention of the user's own, in every command."""

import contextlib
import hashlib
import json
import shutil

import pytest

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.tasks import registry, rundir

TEXT = """from jaxformer import functional as F

def attend(query, key, value, *, mask=None):
    scores = 2.0 * query
    return F.attention(scores, key, value, mask=mask)
"""

LEARNED = """from flax import nnx
from jaxformer import functional as F
import jax.numpy as jnp

class Sharpened(nnx.Module):
    def __init__(self):
        self.factor = nnx.Param(jnp.ones(()), axes=())

    def __call__(self, query, key, value, *, mask=None):
        return F.attention(query * self.factor[...], key, value, mask=mask)

attend = Sharpened()
"""

SETTINGS = (
    "--data.length 8 --data.batch_size 8 --data.cache cache --model.d_model 12 --model.num-heads 1 --model.d_ff 12 "
    "--model.num-layers 1 --model.dropout 0 --train.steps 2 --optimizer.warmup-steps 1 --train.tensorboard False"
).split()
TRAIN = ["train", "language_model", "--data.text", "a.txt", *SETTINGS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text, a run with an attention of its own, and one with the library's."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "a.txt").write_text("to be or not to be, that is the question\n" * 9)
    (folder / "mine.py").write_text(TEXT)
    with contextlib.chdir(folder):
        assert main([*TRAIN, "--out", "run", "--attention", "mine.py:attend"]) == 0
        assert main([*TRAIN, "--out", "plain"]) == 0
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """A folder in which a test may change the text, the file and the runs."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    saved = registry.read_config(folder / "run")
    text = saved.attention.replace(str(folder), str(tmp_path))
    rundir.write_config(tmp_path / "run", "language_model", changed(saved, {"attention": text}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def error(capsys, *words):
    """Returns the only line of a refusal, after the line about the processes."""
    capsys.readouterr()
    assert main(list(words)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("process 0 of 1")]
    lines = [line for line in lines if not line.startswith(("training text", "a vocabulary", "data prepared"))]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_run_remembers_the_file_and_its_hash(folder):
    text = f"{folder / 'mine.py'}:attend@{digest(TEXT)}"
    assert registry.read_config(folder / "run").attention == text
    about = json.loads((folder / "run" / "attention.json").read_text())
    assert (about["name"], about["text"], about["sha256"][:16]) == ("attend", TEXT, digest(TEXT))
    assert registry.read_config(folder / "plain").attention == ""
    assert not (folder / "plain" / "attention.json").exists()


def test_every_command_uses_the_attention(here, capsys):
    """Not the library's, with which the run would have other scores."""
    text = registry.read_config(here / "run").attention
    assert main(["evaluate", "run"]) == 0
    assert main(["generate", "run", "to be", "--decode.max_tokens", "3", "--seed", "1"]) == 0
    assert main(["average", "run"]) == 0
    assert main(["replay", "run", "--steps", "2"]) == 0
    assert "2 of 2 losses equal" in capsys.readouterr().out
    scores = json.loads((here / "run" / "scores-validation-best.json").read_text())
    assert scores["settings"]["attention"] == text
    (here / "other.py").write_text(TEXT.replace("2.0", "9.0"))
    assert main(["evaluate", "run", "--attention", "other.py:attend"]) == 0
    (path,) = (here / "run").glob("scores-*attention*")
    assert path.name == f"scores-validation-best-attention={digest(TEXT.replace('2.0', '9.0'))}.json"
    other = json.loads(path.read_text())
    assert other["held-out text"][0]["value"] != scores["held-out text"][0]["value"]
    assert registry.read_config(here / "run").attention == text
    assert main(["diff", "run", "plain"]) == 1
    assert f"  attention: {text} | \n" in capsys.readouterr().out


def test_a_file_that_changed_is_used_only_if_it_is_given(here, capsys):
    """To a command it is only lent; a training that is resumed remembers it."""
    new = TEXT.replace("2.0", "3.0")
    (here / "mine.py").write_text(new)
    for words in (
        ["evaluate", "run"], ["generate", "run", "a"], ["average", "run"], ["replay", "run"], [*TRAIN, "--out", "run"]
    ):  # fmt: skip
        message = error(capsys, *words)
        assert (
            f"mine.py has changed: its hash is {digest(new)}, that of the run's attention is {digest(TEXT)};" in message
        )
        assert message.endswith(f"--attention {here / 'mine.py'}:attend accepts the file as it is now")
    assert main(["evaluate", "run", "--attention", "mine.py:attend"]) == 0
    assert registry.read_config(here / "run").attention.endswith(digest(TEXT))
    capsys.readouterr()
    assert main([*TRAIN, "--out", "run", "--attention", "mine.py:attend"]) == 0
    assert f"attend@{digest(new)}, was {here / 'mine.py'}:attend@{digest(TEXT)}" in capsys.readouterr().err
    assert registry.read_config(here / "run").attention == f"{here / 'mine.py'}:attend@{digest(new)}"
    assert json.loads((here / "run" / "attention.json").read_text())["text"] == new
    assert main([*TRAIN, "--out", "run"]) == 0
    assert main(["train", "run/config.json", "--out", "run"]) == 0
    assert registry.read_config(here / "run").attention == f"{here / 'mine.py'}:attend@{digest(new)}"


def test_a_file_that_is_gone(here, capsys):
    (here / "mine.py").rename(here / "moved.py")
    message = error(capsys, "evaluate", "run")
    assert message.endswith(
        "attention is no longer in " + f"{here / 'mine.py'}; --attention FILE.py:NAME names another file"
    )
    assert main(["evaluate", "run", "--attention", "moved.py:attend"]) == 0


def test_a_run_with_the_attention_of_the_library_takes_no_other(here, capsys):
    before = (here / "plain" / "config.json").read_text()
    for words in ([*TRAIN, "--out", "plain"], ["evaluate", "plain"], ["average", "plain"], ["replay", "plain"]):
        message = error(capsys, *words, "--attention", "mine.py:attend")
        assert "plain was trained with the library's attention, so it takes no other, got 'mine.py:attend'" in message
    assert (here / "plain" / "config.json").read_text() == before


@pytest.mark.parametrize("given", ["none", "None", ""])
def test_no_text_removes_the_attention_of_a_run(here, capsys, given):
    before = (here / "run" / "config.json").read_text()
    message = error(capsys, *TRAIN, "--out", "run", "--attention", given)
    assert "a run keeps its attention when it resumes, and a new run with --init-from RUN can start with" in message
    assert (here / "run" / "config.json").read_text() == before


@pytest.mark.full
def test_a_new_run_starts_without_the_attention_of_another(here, capsys):
    """It says so; and without the file as it was, that run cannot be read."""
    (here / "mine.py").write_text(LEARNED)
    assert main([*TRAIN, "--out", "learned", "--attention", "mine.py:attend"]) == 0
    capsys.readouterr()
    assert main([*TRAIN, "--init-from", "learned", "--out", "new"]) == 0
    said = capsys.readouterr().err
    assert "14 parameters taken, 0 new, 1 of the other run unused\n  unused: decoder/stack/layers/att" in said
    assert f"attention is {here / 'mine.py'}:attend@{digest(LEARNED)} there and the library's here" in said
    assert registry.read_config(here / "new").attention == ""
    (here / "mine.py").write_text(TEXT)
    message = error(capsys, *TRAIN, "--init-from", "learned", "--out", "other")
    assert f"init_from learned: {here / 'mine.py'} has changed: its hash is {digest(TEXT)}, that of the" in message
    assert f" run's attention is {digest(LEARNED)}; --attention " in message
    assert message.endswith("; with --attention, this run has it, too")
    assert not (here / "other").exists()


def test_other_programs_have_no_such_attention(here, capsys):
    message = error(capsys, "export", "run", "--out", "exported")
    assert message.endswith("which other programs do not have")
    assert "run has an attention of its own" in message
    assert not (here / "exported").exists()


@pytest.mark.parametrize(
    ("text", "given", "settings", "message"),
    [
        (TEXT, "nothing.py:attend", "", "no attention file "),
        (TEXT, "mine.py:atend", "", "mine.py has no attention 'atend'; did you mean 'attend'?"),
        (TEXT, "mine.py", "", "attention must be FILE.py:NAME, a function in a file of your own, got 'mine.py'"),
        (TEXT, "", "", "--attention is empty; leave it out"),
        ("attend = 3", "mine.py:attend", "", "mine.py:attend must be a function or a module, got 3"),
        (
            "import no_such_package",
            "mine.py:attend",
            "",
            "line 1: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("def attend(query:", "mine.py:attend", "", "mine.py, line 1: '(' was never closed"),
        (
            TEXT,
            "mine.py:attend",
            "--model.attention_soft_cap 3",
            "this layer has a score, which the attention function",
        ),
        (
            TEXT.replace("*, mask=None", "**_").replace("mask=mask", "mask=no"),
            "mine.py:attend",
            "",
            "NameError: name 'no'",
        ),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(here, capsys, text, given, settings, message):
    (here / "mine.py").write_text(text)
    assert message in error(capsys, *TRAIN, *settings.split(), "--attention", given, "--out", "new")
    assert not (here / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["translation", "--data.source", "a.txt", "--data.target", "a.txt", "--model", "recurrent"],
        ["vision:convolution", "--data.train", "images"],
    ],
)
def test_a_model_without_attention_functions(here, capsys, words):
    message = error(capsys, "train", *words, "--attention", "mine.py:attend", "--out", "new")
    assert "this model has no attention function, so it takes none; leave it out" in message
    assert not (here / "new").exists()


def test_nothing_in_a_run_is_run(here, capsys):
    """Someone else's run may hold any file, and name it with the right hash."""
    planted = here / "run" / "mine.py"
    planted.write_text(f"open({str(here / 'marker')!r}, 'w')\n{TEXT}")
    text = f"{planted}:attend@{digest(planted.read_text())}"
    config = registry.read_config(here / "run")
    for words in (["evaluate", "run"], [*TRAIN, "--out", "run"], ["train", "run/config.json", "--out", "new"]):
        assert "from which no code is run" in error(capsys, *words, "--attention", "run/mine.py:attend")
    rundir.write_config(here / "run", "language_model", changed(config, {"attention": text}))
    for words in (
        ["evaluate", "run"],
        ["generate", "run", "a"],
        ["average", "run"],
        ["replay", "run"],
        [*TRAIN, "--out", "run"],
        ["train", "run/config.json", "--out", "new"],
        [*TRAIN, "--init-from", "run", "--out", "new"],
    ):
        assert "from which no code is run" in error(capsys, *words)
    assert not (here / "marker").exists()
    assert not (here / "new").exists()


def test_an_attention_whose_rows_are_not_alike_is_refused(here, capsys):
    """In one line, before training and by a search, because that is the user's own code."""
    (here / "mine.py").write_text(
        TEXT.replace("import", "import", 1).replace(
            "    scores = 2.0 * query\n", "    scores = query + ordered(query)\n"
        )
        + "\ndef ordered(x):\n    import jax.numpy as jnp\n"
        + "    return jnp.arange(x.shape[1], dtype=x.dtype)[None, :, None, None]\n"
    )
    for words in (["generate", "run", "a"], [*TRAIN, "--out", "new"]):
        message = error(capsys, *words, "--attention", "mine.py:attend")
        assert "of the attention function attend differs by" in message
    assert not (here / "new").exists()


@pytest.mark.full
def test_an_ensemble_takes_the_attention_of_each_run(here):
    shutil.copytree(here / "run", here / "second")
    (here / "mine.py").write_text(TEXT.replace("2.0", "3.0"))
    words = ["generate", "run", "a", "--decode.max_tokens", "2", "--ensemble", "second", "plain"]
    assert main([*words, "--attention", "mine.py:attend"]) == 0


def test_a_run_from_python_says_how_to_give_its_attention(here, capsys):
    saved = registry.read_config(here / "run")
    rundir.write_config(here / "run", "language_model", changed(saved, {"attention": "python:attend"}))
    message = error(capsys, "evaluate", "run")
    assert "the attention attend was given in Python and has no file: give it again" in message
    assert main(["evaluate", "run", "--attention", "mine.py:attend"]) == 0
    assert jaxformer.load(here / "run", attention="mine.py:attend").steps == (2,)
