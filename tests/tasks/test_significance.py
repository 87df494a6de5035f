"""Two runs are compared only on the sentences that both translated."""

import json

import pytest

from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import paired_bootstrap
from jaxformer.tasks import rundir
from jaxformer.tasks.runs import read_run
from jaxformer.tasks.significance import comparisons
from tests.tasks.small import small

REFERENCES = [f"The {animal} number {i} sits on the mat." for i in range(9) for animal in ("Cat", "Dog")]
WORSE = [text.replace("sits on", "sat at") if i % 2 else text for i, text in enumerate(REFERENCES)]


def made(path, hypotheses, references=REFERENCES, config=None):
    rundir.claim(path, "translation", config or small(), ())
    write(path, hypotheses, references)
    return path


def write(path, hypotheses, references=REFERENCES, name="test-best"):
    examples = (
        {"source": "a\u2028line", "reference": r, "hypothesis": h} for r, h in zip(references, hypotheses, strict=True)
    )
    (path / f"examples-{name}.jsonl").write_text(
        "".join(json.dumps(example, ensure_ascii=False) + "\n" for example in examples)
    )


def test_runs_are_compared_on_the_same_sentences(tmp_path, capsys):
    a, b = made(tmp_path / "a", WORSE), made(tmp_path / "b", REFERENCES)
    write(a, WORSE, name="validation-best")
    write(b, REFERENCES, [text.lower() for text in REFERENCES], name="validation-best")  # other references
    write(a, WORSE, name="test-last")  # only here
    found = comparisons(read_run(a), read_run(b))
    assert found == {"test-best": paired_bootstrap(WORSE, REFERENCES, REFERENCES)}
    assert (found["test-best"].system.value, found["test-best"].p_value < 0.01) == (pytest.approx(100), True)
    main(["diff", str(a), str(b)])
    assert f"test-best: {found['test-best']} (paired bootstrap)" in capsys.readouterr().out


def test_case_counts_as_in_the_scores(tmp_path):
    lowered = changed(small(), {"data": {"lowercase": True}})
    a, b = made(tmp_path / "a", WORSE, config=lowered), made(tmp_path / "b", WORSE)
    assert comparisons(read_run(a), read_run(b)) == {}
    b = made(tmp_path / "c", [text.lower() for text in WORSE], config=lowered)
    assert comparisons(read_run(a), read_run(b))["test-best"].p_value == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"source": "x"}', "KeyError: 'reference'"),
        ('{"source": "x", "reference": "y", "hypothesis": 3}', "TypeError: it holds something other than texts"),
        ("[" * 100_000, "RecursionError"),
    ],
    ids=["lacks a text", "number", "deep"],
)
def test_a_damaged_file_is_named(tmp_path, text, message):
    a, b = made(tmp_path / "a", WORSE), made(tmp_path / "b", REFERENCES)
    (b / "examples-test-best.jsonl").write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=rf"examples-test-best\.jsonl cannot be read: {message}"):
        comparisons(read_run(a), read_run(b))


def test_runs_with_an_unknown_language_are_not_compared(tmp_path, capsys):
    """Runs from before codes were checked; BLEU of zh-CN by 13a would count a sentence as one word."""
    a, b = made(tmp_path / "a", WORSE), made(tmp_path / "b", REFERENCES)
    for run in (a, b):
        config = run / "config.json"
        config.write_text(config.read_text().replace('"target_language": "fr"', '"target_language": "zh-CN"'))
    assert main(["diff", str(a), str(b)]) == 2
    shown = capsys.readouterr()
    assert "language must be a two-letter code of ISO 639-1, such as en or zh, got 'zh-CN'" in shown.err
    assert shown.out == ""
