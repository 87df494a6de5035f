"""Lists of runs: every file may be missing, damaged or of another program. Two are compared on the same sentences."""

import dataclasses
import json
import os
from typing import get_args

import pytest

from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.evaluation.scores import paired_bootstrap
from jaxformer.tasks import rundir
from jaxformer.tasks.runs import comparisons, find_runs, read_run
from jaxformer.tasks.translation import TranslationConfig
from jaxformer.training.loop import Reason
from jaxformer.training.phase_timer import PhaseTimer
from tests.tasks.small import small
from tests.training.small import start


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{", "cannot read"),
        ("config.json", '{"task": "translation", "config": {"train": {"steps": "many"}}}', "damaged file: ValueError"),
        ("scores-test-best.json", '{"test": [{"name": "BLEU"}]}', "damaged file: KeyError"),
        ("scores-test-best.json", '{"test": [{"name": "BLEU", "value": [2]}]}', "damaged file: TypeError"),
        ("log.jsonl", '{"step": 1, "loss": "high"}', "damaged file: ValueError"),
        ("scores-test-best.json", '{"test": [{"name": "BLEU", "value": "high"}]}', "damaged file: ValueError"),
        ("config.json", '{"task": "translation", "config": {"train": {"steps": 1e999}}}', "damaged file: Overflow"),
        ("log.jsonl", '{"step": 1, "loss": [2]}', "damaged file: TypeError"),
        ("log.jsonl", "[" * 100_000, "not started"),
        ("time.json", "[" * 100_000, "not started"),
        ("provenance.json", '{"starts": [3]}', "damaged file: TypeError"),
        ("provenance.json", "[]", "cannot read"),
        ("log.jsonl", None, "cannot be read"),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(tmp_path, capsys, name, content, said):
    for run in ("a", "b", "c"):
        rundir.claim(tmp_path / run, "translation", small(), ())
    if content is None:
        (tmp_path / "b" / name).mkdir()
    else:
        (tmp_path / "b" / name).write_text(content)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text('{"of": "another program"}')
    states = [run.state for run in find_runs(tmp_path)]
    assert (states[0], states[2:]) == ("not started", ["not started"])
    assert said in states[1]
    assert main(["runs", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_runs_as_json(tmp_path, capsys):
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert capsys.readouterr().out == ""
    rundir.claim(tmp_path / "a", "translation", small(), ())
    (tmp_path / "a" / "scores-test-best.json").write_text('{"test": [{"name": "BLEU", "value": null}]}')
    assert main(["runs", str(tmp_path), "--json"]) == 0
    steps, results = small().train.steps, {"test-best test BLEU": None}
    facts = {"path": str(tmp_path / "a"), "task": "translation", "state": "not started", "step": 0, "steps": steps}
    assert json.loads(capsys.readouterr().out) == facts | {"results": results}


@pytest.mark.parametrize("name", ["config.json", "log.jsonl", "time.json"])
def test_a_named_pipe_does_not_block(tmp_path, name):
    rundir.claim(tmp_path, "translation", small(), ())
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    (run,) = find_runs(tmp_path)
    assert run.state == "not started" or "it is a named pipe" in run.state


def test_runs_may_be_links(tmp_path):
    """As to a larger disk; a run that is also listed directly is listed once, and cycles end."""
    rundir.claim(tmp_path / "disk" / "far", "translation", small(), ())
    rundir.claim(tmp_path / "runs" / "near", "translation", small(), ())
    for name, target in (("far", "disk/far"), ("a", "runs/near"), ("again", "runs")):
        (tmp_path / "runs" / name).symlink_to(tmp_path / target)
    assert [run.path for run in find_runs(tmp_path / "runs")] == [tmp_path / "runs" / x for x in ("far", "near")]


@pytest.mark.parametrize("reason", [name for names in get_args(Reason) for name in get_args(names)])
def test_the_state_gives_the_reason_for_the_end(tmp_path, reason):
    rundir.claim(tmp_path, "translation", small(), ())
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    PhaseTimer(tmp_path / "time.json").ended(small().train.steps, reason)
    said = {"patience": "--train.patience", "time": "--train.minutes", "terminated": "SIGTERM", "interrupted": "Ctrl-C"}
    assert read_run(tmp_path).state == ("done" if reason == "done" else f"stopped by {said[reason]}")


def test_a_run_that_wants_more_steps_is_not_done(tmp_path):
    """However its next start ends, the end of the start before does not count."""
    rundir.claim(tmp_path, "translation", small(), ())
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    for reason in ("done", "patience"):
        PhaseTimer(tmp_path / "time.json").ended(1, reason)
        assert (read_run(tmp_path).state == "unfinished") == (reason == "done")
        PhaseTimer(tmp_path / "time.json").started(start(small().train.steps, step=1))
        assert read_run(tmp_path).state == "unfinished"


def test_a_repeated_setting_is_refused(tmp_path, capsys):
    """Python would silently take the last one."""
    rundir.claim(tmp_path, "translation", small(), ())
    path = tmp_path / "config.json"
    saved = json.dumps(json.loads(path.read_text()))
    path.write_text(saved.replace('"seed": ', '"seed": 5, "seed": ', 1))
    assert main(["train", str(path), "--out", "x"]) == 2
    assert "'seed' is there twice" in capsys.readouterr().err


def test_differences_as_json(tmp_path, capsys):
    for name, seed, score in (("a", 0, "39.5"), ("b", 7, "null")):
        rundir.claim(tmp_path / name, "translation", dataclasses.replace(small(), seed=seed), ())
        (tmp_path / name / "scores-test-best.json").write_text(f'{{"test": [{{"name": "BLEU", "value": {score}}}]}}')
    for first, code in (("a", 1), ("b", 0)):
        assert main(["diff", str(tmp_path / first), str(tmp_path / "b"), "--json"]) == code
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert found["settings"] == ({"seed": [0, 7]} if code else {})
        assert found["results"] == ({"test-best test BLEU": [39.5, None]} if code else {})
        assert (found["data"], found["comparisons"]) == ({}, {})


@pytest.mark.parametrize("command", ["runs", "diff"])
def test_control_characters_in_a_run_are_escaped(tmp_path, capsys, command):
    for name in "ab":
        rundir.claim(tmp_path / name, f"\x1b]0;{name}\x07", small(), ())
    arguments = [tmp_path] if command == "runs" else [tmp_path / "a", tmp_path / "b"]
    assert main([command, *map(str, arguments)]) == (command == "diff")
    said = capsys.readouterr().out
    assert r"\x1b]0;a\x07" in said
    assert "\x1b" not in said


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


CHINESE = ["老人在房子里看书", "房子是白色的而且很大", "他们昨天去了学校"] * 6


def test_several_corpora_are_compared_each_in_its_language(tmp_path, capsys):
    """As they are scored; the language of other files is that with which they were translated."""
    corpora = {"en_de": {"target_language": "de"}, "en_zh": {"target_language": "zh"}}
    files = {"source": "a", "target": "b"}
    config = changed(TranslationConfig(), {"data": {"corpora": {x: files | y for x, y in corpora.items()}}})
    said = {"a": (WORSE, [text[:-1] for text in CHINESE]), "b": (REFERENCES, CHINESE)}
    for name, texts in said.items():
        path = made(tmp_path / name, WORSE, config=config)
        rows = [
            {"corpus": corpus, "source": "x", "reference": r, "hypothesis": h}
            for corpus, references, its in zip(corpora, (REFERENCES, CHINESE), texts, strict=True)
            for r, h in zip(references, its, strict=True)
        ]
        (path / "examples-test-best.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write(path, texts[1], CHINESE, name="file-c-best-to=zh")
        (path / "scores-file-c-best-to=zh.json").write_text('{"settings": {"to": "zh"}}')
    german = paired_bootstrap(WORSE, REFERENCES, REFERENCES, language="de")
    chinese = paired_bootstrap(said["a"][1], CHINESE, CHINESE, language="zh")
    assert comparisons(read_run(tmp_path / "a"), read_run(tmp_path / "b")) == {
        "test-best en_de": german,
        "test-best en_zh": chinese,
        "file-c-best-to=zh": chinese,
    }
    assert "tok:zh" in chinese.system.signature
    main(["diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert f"test-best en_zh: {chinese} (paired bootstrap)" in capsys.readouterr().out


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
