"""The measurements on an accelerator: their runner, and every part in tiny mode on this machine's processor."""

import importlib
import math
import re
import sys
import textwrap
import time
import types

import jax
import pytest

from benchmarks.accelerator import __main__ as command
from benchmarks.accelerator import attention, contract, quality, repeat, runner, training
from benchmarks.accelerator.record import Case, Record, Settings, Unfinished
from jaxformer.config import fingerprint
from jaxformer.errors import ConfigError
from jaxformer.functional.attention import api


def settings(folder, *, seconds=300.0, **options):
    return Settings(folder, time.monotonic() + seconds, **options)


def run(out, part):
    """Runs a part in this process, in tiny mode, and returns the record and the report."""
    arguments = ["--here", "--tiny", "--part", part, "--out", str(out)]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as in the command
        assert command.main(arguments) == 0
    record = Record(out / f"part-{part}.json", tiny=True)
    module = importlib.import_module(f"benchmarks.accelerator.{command.PARTS[part][0]}")
    return record, runner.report(module, record, settings(out, tiny=True))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("parts", [*(part for part in command.PARTS if part not in "45"), "45"])
def test_every_case_in_tiny_mode(tmp_path, parts):
    """The fifth part translates with the model that the fourth trains."""
    for part in parts:
        record, text = run(tmp_path, part)
        module = importlib.import_module(f"benchmarks.accelerator.{command.PARTS[part][0]}")
        assert set(record.cases) == {case.name for case in module.cases(settings(tmp_path, tiny=True))}
        assert not {name: entry for name, entry in record.cases.items() if "error" in entry}
        assert text.endswith("complete")
        title, machine, *_ = text.splitlines()
        assert "tiny mode" in title
        assert record.sessions[0]["versions"]["jax"] in machine
        if part == "1":
            assert not [name for name, entry in record.cases.items() if entry.get("result", {}).get("broken")]
        if part == "6":
            assert re.search(r"^default .* yes ", text, re.MULTILINE)


@pytest.mark.full
def test_the_command_runs_a_part_once(tmp_path, capsys, monkeypatch):
    """The fourth part runs in its own process, as on an accelerator; a second call has nothing to do."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(jax.config.jax_compilation_cache_dir))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("COMMIT", "the commit")
    name = "train tinyshakespeare characters_large"
    arguments = ["--tiny", "--part", "4", "--out", str(tmp_path), "--cases", name]
    assert command.main(arguments) == 0
    record = Record(tmp_path / "part-4.json", tiny=True)
    assert record.cases[name]["result"]["steps"] == 6
    text = (tmp_path / "part-4.txt").read_text()
    assert "commit the commit" in text
    assert "left for the next call: train multi30k published, score multi30k published" in text
    assert text in capsys.readouterr().out
    before = (tmp_path / "part-4.json").read_text()
    assert runner.work(quality, record, settings(tmp_path, tiny=True), [name]) == 0  # nothing is measured twice
    assert command.main(arguments) == 0
    assert (tmp_path / "part-4.json").read_text() == before


@pytest.mark.full
def test_violations_of_the_contract_are_found(tmp_path, monkeypatch):
    """`jax.nn` by itself gives empty rows the mean of all values, and lets NaN of unseen keys through."""

    def bare(request):
        mask = None if request.mask is None else request.mask.dense(request.query.shape[1], request.key.shape[1])
        return jax.nn.dot_product_attention(request.query, request.key, request.value, mask=mask)

    monkeypatch.setitem(api.implementations, "xla", api.Implementation(bare, lambda request: None))
    part = settings(tmp_path, tiny=True)
    (case,) = (case for case in contract.cases(part) if case.name == "xla float32")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        broken = case.run(part)["broken"]
    assert "dense: a query without keys has an output or a gradient that is not 0" in broken
    assert "causal and padding: NaN in an unseen key changes a result" in broken
    assert any(finding.startswith("dense: error of the output") for finding in broken)
    assert not [finding for finding in broken if finding.startswith("none")]


def test_a_training_resumes_in_the_next_call(tmp_path):
    """The first call has no time for it, and the data must exist."""
    part = settings(tmp_path, tiny=True)
    assert [case.name for case in quality.cases(part)][1] == "score multi30k published"
    with pytest.raises(Unfinished, match="the training comes first"):
        quality.cases(part)[1].run(part)
    with pytest.raises(Unfinished, match=re.escape("--data must be a folder with multi30k/train.en, got none")):
        quality.cases(settings(tmp_path))[0].run(settings(tmp_path))
    first, second = (
        quality.configuration(quality.CHARACTERS, settings(tmp_path, seconds=s, tiny=True)) for s in (9, 99)
    )
    assert first.train.minutes < second.train.minutes
    assert fingerprint(first) == fingerprint(second)  # it is the same run


def test_the_parts_are_described(capsys):
    assert command.main(["--part", "list"]) == 0
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == list("123456")


FAKE = """
    import os, pathlib, signal, time
    from benchmarks.accelerator.record import Case, Refused, Unfinished

    TITLE = "a part"

    def note(name, settings):
        with (settings.out / "ran.txt").open("a") as file:
            print(name, os.environ.get("XLA_FLAGS", ""), file=file)

    def cases(settings):
        def good(name):
            def run(settings):
                note(name, settings)
                return {"value": float("nan")}
            return run

        def bad(settings):
            raise ValueError("the kernel   says\\nno")

        def dead(settings):
            print("illegal address", file=__import__("sys").stderr, flush=True)
            os.kill(os.getpid(), signal.SIGABRT)

        def slow(settings):
            note("slow", settings)
            signal.pause()

        def missing(settings):
            raise Refused("not installed")

        def later(settings):
            note("later", settings)
            if (settings.out / "ran.txt").read_text().count("later") < 2:
                raise Unfinished("step 3 of 6")
            return {"value": 1}

        return [
            Case("one", good("one"), 0), Case("bad", bad, 0), Case("dead", dead, 0), Case("two", good("two"), 0),
            Case("flagged", good("flagged"), 0, "other", "--xla_backend_optimization_level=0"),
            Case("missing", missing, 0), Case("later", later, 0), Case("long", good("long"), 1e6),
            *([Case("slow", slow, 0)] if (settings.out / "slow").exists() else []),
        ]

    def table(results):
        return "results: " + ", ".join(results)
"""

CHILD = """
    import pathlib, sys, time
    sys.path[:0] = sys.argv[1:3]
    import fake
    from benchmarks.accelerator import runner
    from benchmarks.accelerator.record import Record, Settings

    runner.header = lambda: {"device": "D", "driver": "1", "python": "3", "versions": {}, "date": "", "commit": ""}
    out, minutes, names = pathlib.Path(sys.argv[1]), float(sys.argv[4]), sys.argv[6:]
    record = Record(out / "part-9.json", tiny=False)
    sys.exit(runner.work(fake, record, Settings(out, time.monotonic() + 60 * minutes), names))
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A part without a device, and the command for a process of it."""
    (tmp_path / "fake.py").write_text(textwrap.dedent(FAKE))
    (tmp_path / "child.py").write_text(textwrap.dedent(CHILD))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fake", raising=False)
    return importlib.import_module("fake"), [
        sys.executable,
        str(tmp_path / "child.py"),
        str(tmp_path),
        str(runner.ROOT),
    ]


def supervise(fake, folder, *, seconds=120.0, only=()):
    part, child = fake
    record = Record(folder / "part-9.json", tiny=False)
    runner.supervise(part, record, settings(folder, seconds=seconds), only=only, command=child)
    return Record(folder / "part-9.json", tiny=False)


def ran(folder):
    return (folder / "ran.txt").read_text().splitlines()


@pytest.mark.full
def test_a_failing_case_does_not_stop_the_others(fake, tmp_path):
    """Errors, dead processes and missing packages are recorded; the next call measures nothing twice."""
    record = supervise(fake, tmp_path)
    assert record.cases["bad"]["error"] == "ValueError: the kernel says no"
    assert record.cases["dead"]["error"] == "the process ended with SIGABRT: illegal address"
    assert record.cases["missing"]["refused"] == "not installed"
    assert record.cases["one"]["result"] == {"value": "nan"}
    flags = "--xla_backend_optimization_level=0"
    assert ran(tmp_path) == ["one ", "two ", f"flagged {flags}", "later "]
    text = runner.report(fake[0], record, settings(tmp_path))
    assert "results: one, two, flagged\n" in text
    assert text.endswith("left for the next call: later (step 3 of 6), long")

    record = supervise(fake, tmp_path)
    assert ran(tmp_path)[4:] == ["later "]
    assert record.cases["later"]["result"] == {"value": 1}
    record.forget_errors()
    assert not {"bad", "dead", "missing"} & set(record.cases)
    assert {"one", "two"} < set(record.cases)


@pytest.mark.full
def test_a_part_ends_at_its_deadline_and_skips_a_case_that_never_ends(fake, tmp_path):
    """The next call tries the interrupted case once more."""
    (tmp_path / "slow").touch()
    record = Record(tmp_path / "part-9.json", tiny=False)
    while "slow" not in record.cases:  # on a busy machine a process may not begin before its deadline
        record = supervise(fake, tmp_path, seconds=2, only=["slow"])
    assert record.cases["slow"]["error"] == "given up after 2 interruptions: not done at the deadline"
    assert ran(tmp_path) == ["slow ", "slow "]


def test_a_part_that_was_killed_resumes_with_the_next_case(fake, tmp_path):
    record = Record(tmp_path / "part-9.json", tiny=False)
    record.begin({"device": "D"})
    record.start("one")
    record.finish("one", {"result": {}}, 1.0)
    record.start("two")  # the last sign of the killed process
    assert supervise(fake, tmp_path, only=["one"]).open["two"]["interruptions"] == 1
    assert not (tmp_path / "ran.txt").exists()
    record = supervise(fake, tmp_path, only=["one", "two"])
    assert ran(tmp_path) == ["two "]
    assert record.running is None


def test_a_process_that_cannot_start_is_reported(tmp_path, fake):
    part, _ = fake
    nothing = [sys.executable, "-c", "raise SystemExit('no device')"]
    record = Record(tmp_path / "part-9.json", tiny=False)
    with pytest.raises(ConfigError, match=r"'one' ended with exit code 1 before it began: no device"):
        runner.supervise(part, record, settings(tmp_path), command=nothing)


def test_a_device_that_fails_gets_a_new_process(tmp_path, monkeypatch):
    """The process continues after it runs out of memory, but not after other errors of the device."""
    errors = {"memory": "RESOURCE_EXHAUSTED: out of memory", "address": "INTERNAL: illegal address"}

    def failing(name):
        def run(settings):
            raise jax.errors.JaxRuntimeError(errors[name])

        return Case(name, run, 0)

    part = types.SimpleNamespace(cases=lambda _: [failing("memory"), failing("address"), Case("last", dict, 0)])
    monkeypatch.setattr(runner, "header", lambda: {"device": "D"})
    record = Record(tmp_path / "part-9.json", tiny=False)
    assert runner.work(part, record, settings(tmp_path), ["memory", "address", "last"]) == runner.AGAIN
    assert list(record.cases) == ["memory", "address"]
    assert "illegal address (tests/benchmarks/test_accelerator.py" in record.cases["address"]["error"]


@pytest.mark.full
def test_ctrl_c_is_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.runner, "supervise", interrupted)
    assert command.main(["--part", "6", "--out", str(tmp_path), "--tiny"]) == 130
    assert capsys.readouterr().err == "stopped; the same command resumes here\n"


def test_wheels_are_installed_without_an_index(tmp_path):
    """A wheel is built here once; a folder with a broken one is refused with pip's message."""
    import zipfile

    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "brought-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("brought.py", "VALUE = 1\n")
        wheel.writestr("brought-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        wheel.writestr("brought-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("brought-1.0.dist-info/RECORD", "")
    command.install(tmp_path / "wheels", tmp_path / "site")
    assert (tmp_path / "site" / "brought.py").read_text() == "VALUE = 1\n"
    (tmp_path / "site" / "brought.py").unlink()
    command.install(tmp_path / "wheels", tmp_path / "site")  # the same wheels: nothing to do
    assert not (tmp_path / "site" / "brought.py").exists()
    (tmp_path / "wheels" / "broken-1.0-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(ConfigError, match="--wheels: pip refuses: ERROR"):
        command.install(tmp_path / "wheels", tmp_path / "site")


def entry(gradient, chosen="reference"):
    return {"forward": gradient / 3, "gradient": gradient, "chosen": chosen, "sample": [0.0]}


def test_the_proposed_choice_of_implementation():
    """The choice is compared with the best of this library, and the threshold is where blockwise stays ahead."""
    grid = {
        ("causal", 512): {"reference": entry(1.0), "blockwise": entry(2.0)},
        ("causal", 1024): {"reference": entry(4.0), "blockwise": entry(2.0)},
        ("packed", 1024): {"reference": entry(4.0, "blockwise"), "blockwise": entry(4.1, "blockwise")},
        ("causal", 2048): {"blockwise": entry(3.0, "blockwise"), "jax.nn": entry(1.0)},
    }
    assert attention.blockwise_from(grid) == 1024**2
    slow, threshold = attention.proposal(grid)
    assert slow == "causal 1,024: reference is chosen, but blockwise is 2.00 times as fast"
    assert "the faster is blockwise from T S = 1,048,576" in threshold
    del grid["causal", 1024]
    assert attention.proposal(grid)[0] == "the choice is the best at every shape measured, within 5%"
    assert attention.blockwise_from({("causal", 512): grid["causal", 512]}) == math.inf
    assert attention.blockwise_from({}) is None


def test_the_comparison_of_two_runs():
    result = {"losses": ["00", "01"], "state": "a", "seconds": 0.01}
    other = {**result, "losses": ["00", "02"], "state": "b"}
    text = repeat.table({"default 1": result, "default 2": other, "reproducible 1": result, "reproducible 2": result})
    first, second = (line.split() for line in text.splitlines()[1:])
    assert first[:5] == ["default", "a", "b", "no", "2"]
    assert second[:5] == ["reproducible", "a", "a", "yes", "-"]
    assert repeat.table({"default 1": result}).splitlines()[1].split()[:4] == ["default", "a", "-", "-"]


def test_the_time_is_compared_with_the_plan():
    result = {"seconds": 0.05, "tokens per second": 327_680.0, "utilization": 0.5, "compile": 30.0, "peak": None}
    result |= {"peak of the program": 12e9, "flops": 1.0, "operations": []}
    rows = training.table({"big 16384": result, "plan big 16384": {"peak": 13e9, "estimate": 0.04}}).splitlines()
    cells = rows[1].split()
    assert cells == ["big", "16384", "50.00", "327,680", "50%", "30.0", "-", "12.00", "13.00", "40.00"]
    assert len(rows) == 2
