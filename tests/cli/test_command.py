"""Options as typed fields: words that they take, messages about mistakes, and settings among them."""

import dataclasses
import pathlib
from typing import Annotated, Literal

import pytest

from jaxformer.cli import command
from jaxformer.cli.command import REQUIRED, Options, Run, Text, Word, option, parsed, split_settings, word
from jaxformer.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Draw(Options):
    """Draws texts.

    examples:
      jaxformer draw run text
    """

    setting_prefix = "--decode."
    short = ("--top-p", "--sample")

    run: Run = word("A run.")
    inputs: tuple[Text, ...] = word("Texts.", ())
    n_best: int = option("A number.", 1)
    split: Literal["test", "validation"] | None = option("A part.")
    others: tuple[Run, ...] = option("More runs, 100 % of them.", ())
    json: bool = option("A flag.", False)


@dataclasses.dataclass(frozen=True)
class Learn(Options):
    """Learns."""

    setting_prefix = "--"

    config: Annotated[str, Word("CONFIG")] = word("A configuration.")
    out: Run = option("A run.", REQUIRED)


def test_words_become_fields():
    """Options may stand between positional words, and a text may look like an option."""
    words = ["--json", "run", "a", "--n-best", "3", "-1 is cold", "--others", "b", "c", "--split=test", "--", "--json"]
    options, settings = parsed(Draw, words)
    others = (pathlib.Path("b"), pathlib.Path("c"))
    texts = ("a", "-1 is cold", "--json")
    expected = Draw(pathlib.Path("run"), texts, n_best=3, split="test", others=others, json=True)
    assert (options, settings) == (expected, [])
    assert parsed(Draw, ["run"]) == (Draw(pathlib.Path("run")), [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "RUN is missing"),
        ("run --n-best two", "--n-best: got 'two', expected int"),
        ("run --n-best", "--n-best needs a value"),
        ("run --others --json", "--others needs a value"),
        ("run --split train", "--split: got 'train', expected one of 'test', 'validation'"),
        ("run --others s3://x", "--others: 's3://x' is not a path: mount the bucket first"),
        ("run --n-bets 3", "unknown option --n-bets; did you mean --n-best?"),
        ("run --n_best=3", "unknown option --n_best; did you mean --n-best?"),
        ("run --top-q 3", "unknown option --top-q; did you mean --top-p?"),
        ("run --frob", "unknown option --frob; jaxformer test_command --help lists all"),
        ("run --n 3", "unknown option --n; jaxformer test_command --help lists all"),
        ("run --json=yes", "--json: ignored explicit argument 'yes'"),
        ("run --top-p", "--top-p needs a value"),
    ],
)
def test_mistakes_are_one_line(words, message):
    with pytest.raises(ConfigError) as caught:
        parsed(Draw, words.split())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_all_settings_follow_their_configuration():
    words = "--train.steps=20 demo --data.columns 1 0 --out run --model.remat".split()
    settings = ["--train.steps=20", "--data.columns", "1", "0", "--model.remat"]
    assert parsed(Learn, words) == (Learn("demo", out=pathlib.Path("run")), settings)
    with pytest.raises(ConfigError, match=r"^CONFIG comes before its settings: jaxformer .* --seed"):
        parsed(Learn, "--seed 3 demo --out run".split())
    with pytest.raises(ConfigError, match=r"^--out is missing$"):
        parsed(Learn, ["demo"])


def test_the_help_has_options_settings_and_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        parsed(Draw, ["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for text in (
        "Draws texts.",
        "--others RUN [RUN ...] More runs, 100 % of them.",
        "examples: jaxformer draw run text",
    ):
        assert text in said
    assert f"--top-p X {command.SHORT['--top-p'][1]}" in said
    assert "--decode.NAME VALUE a setting of the search" in said


@pytest.mark.parametrize(
    ("arguments", "rest", "settings"),
    [
        (["run", "--decode.x", "2", "a"], ["run", "a"], ["--decode.x", "2"]),
        (["run", "--decode.x=2", "a"], ["run", "a"], ["--decode.x=2"]),
        (["run", "a", "--decode.x", "-1"], ["run", "a"], ["--decode.x", "-1"]),
        (["--decode.x", "--n-best", "3", "run"], ["--n-best", "3", "run"], ["--decode.x"]),
        (["run", "--", "--decode.x", "2"], ["run", "--", "--decode.x", "2"], []),
        ([], [], []),
    ],
)
def test_settings_are_split_off(arguments, rest, settings):
    assert split_settings(arguments) == (rest, settings)
