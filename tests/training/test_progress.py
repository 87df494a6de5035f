"""Display of training progress, and the peak that utilization refers to."""

import io
import os
import re
import sys
import types

import jax
import pytest
from rich.console import Console

from jaxformer.training import progress
from jaxformer.training.hooks import Means
from tests.training.small import fit, new_state, start


def console(**options):
    return Console(file=io.StringIO(), width=200, **options)


def test_lines_have_a_minimum_interval():
    """At most one per interval of seconds, and always the last one."""
    out = console()
    lines = progress.Display(out, seconds=1000.0, peak_flops=2.0)
    lines.started(start(steps=3))
    for step in (1, 2, 3):
        lines.reported(step, {}, Means(2.5, 12_345.6, 0.0 if step < 3 else 1.0))
        lines.step(step, {})
    lines.say("validated")
    lines.ended(3, "done")
    said = out.file.getvalue().splitlines()
    assert said[-1] == "validated"
    assert said[-2] == "step 3/3: loss 2.500, 12,346 tokens/s, MFU 50%"
    assert len(said) <= 3


@pytest.mark.parametrize(("terminal", "bar"), [("xterm", True), ("dumb", False), (None, False)])
def test_a_terminal_shows_a_bar(terminal, bar):
    """Unlike one that cannot redraw a line, where it would never be drawn, and unlike a file."""
    out = console(force_terminal=terminal is not None, _environ={"TERM": terminal or ""})
    display = progress.Display(out, unit="images", peak_flops=100.0)
    display.started(start(steps=2001, worked=2.0))
    display.reported(1, {}, Means(1.25, 1000.0, 25.0))
    display.step(1, {})
    display.say("above the bar")
    display.ended(2, "done")
    said = out.file.getvalue()
    assert ("━" in said) == ("\x1b[?25h" in said) == bar
    for text in ("above the bar", "1,000 images/s", "loss 1.250", "MFU 25%"):
        assert text in said
    assert ("1:06:40 left" in said) == bar


def test_no_bar_is_drawn_in_a_file_that_may_have_colors(monkeypatch):
    """As in the output of a program that a notebook starts, where each redrawn line was one more line."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = progress.StderrConsole()
    assert console.is_terminal
    assert not console.is_interactive


def test_a_notebook_shows_a_bar(monkeypatch):
    """It is drawn in its place, with its text escaped, and at the end as it then is."""
    drawn = []

    class DisplayHandle:
        def display(self, data, raw):
            drawn.append(("new", data["text/html"]))

        def update(self, data, raw):
            drawn.append(("again", data["text/html"]))

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(DisplayHandle=DisplayHandle))
    console = types.SimpleNamespace(is_jupyter=True, quiet=False, print=lambda *_, **__: None)
    display = progress.Display(console, unit="<b>")
    display.started(start(steps=300))
    for step in range(1, 301):
        display.reported(step, {}, Means(2.5, 1000.0, 0.0))
    display.ended(300, "done")
    assert drawn[0] == ("new", '<div>step 0/300 <progress value="0" max="300"></progress> </div>')
    ending = '<div>step 300/300 <progress value="300" max="300"></progress> loss 2.500, 1,000 &lt;b&gt;/s'
    assert drawn[-1][1].startswith(ending)
    assert {kind for kind, _ in drawn[1:]} == {"again"}
    assert len(drawn) < 10


def test_lines_between_reports_have_the_time_left():
    out = console()
    lines = progress.Display(out, seconds=0.0, unit="images")
    lines.started(start(steps=2000, worked=75 / 1999))
    lines.step(1, {})
    lines.reported(10, {}, Means(2.5, 1.0, 0.0))
    lines.reported(2000, {}, Means(1.5, 1.0, 0.0))
    assert out.file.getvalue().splitlines() == [
        "step 1/2,000, 1:15 left",
        "step 10/2,000: loss 2.500, 1 images/s, 1:15 left",
        "step 2,000/2,000: loss 1.500, 1 images/s",
    ]


def test_the_time_left_is_shown_from_the_first_step_on():
    out = console()
    fit(new_state(), 6, hooks=[progress.Display(out, seconds=0.0)], config={"log_every": 0})
    lines = re.sub(r"[0-9.]+ s", "T", out.file.getvalue()).splitlines()
    predicted = "3 more steps take about T on this machine, at T each"
    assert lines[:2] == ["step 1/6, T left", "step 2/6, T left"]
    assert lines[2:6] == [predicted, "step 3/6, T left", "step 4/6, T left", "step 5/6, T left"]
    assert lines[6].startswith("step 6/6: loss ")
    assert len(lines) == 7


def test_a_training_too_short_for_a_prediction_has_none():
    """After the last of three steps, "0 more steps take about 0.0 s" was predicted."""
    out = console()
    fit(new_state(), 3, hooks=[progress.Display(out)])
    assert "take" not in out.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_smoothed_loss_is_named_so(terminal):
    """It stands beside the validation loss, which is lower for another reason than the data."""
    for smoothing, name in ((0.1, "smoothed loss 2.500"), (0.0, "loss 2.500")):
        out = console(force_terminal=terminal, _environ={"TERM": "xterm"})
        made = progress.Display(out, label_smoothing=smoothing)
        made.started(start(steps=1))
        made.reported(1, {}, Means(2.5, 1.0, 0.0))
        made.ended(1, "done")
        said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.file.getvalue())
        assert name in said
        assert ("smoothed" in said) == ("the smoothed loss has label smoothing 0.1; the" in said) == bool(smoothing)


def test_a_count_is_reported_at_intervals():
    said = []
    count = progress.Count(10, "sentences", said.append, seconds=0.0)
    for _ in range(5):
        count(2)
    assert [text.partition(",")[0] for text in said] == [f"{n}/10 sentences" for n in (2, 4, 6, 8, 10)]
    assert said[0].endswith(" left")
    progress.Count(10, "sentences", said.append, seconds=1000.0)(2)
    assert len(said) == 5


def test_peak_of_a_data_sheet(monkeypatch):
    """The sum over all devices."""
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(device_kind="TPU v5 lite", platform="tpu")] * 4)
    assert progress.peak_flops() == (4 * 197e12, "TPU v5 lite data sheet, bf16")


@pytest.mark.parametrize("hosts", [1, 10**9])
def test_peak_that_is_measured(monkeypatch, hosts):
    """Devices of one processor share its cores: one product counts once for each host."""
    monkeypatch.setattr(progress.processes, "num_hosts", lambda: hosts)
    peak, source = progress.peak_flops()
    assert hosts * 1e8 < peak < hosts * 1e15
    assert source == "float32 product of 1024 x 1024 timed on this machine"


def test_a_line_is_printed_verbatim():
    text = io.StringIO()
    progress.print_line(Console(file=text, width=20), "[bold]12[/bold] " + "x" * 40)
    assert text.getvalue() == "[bold]12[/bold] " + "x" * 40 + "\n"


def test_a_console_without_a_reader_stops_printing(monkeypatch):
    """The program continues, also if other code writes next."""
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stderr", os.fdopen(writer, "w", buffering=1))
    quiet = progress.StderrConsole()
    progress.print_line(quiet, "one")
    assert os.read(reader, 10) == b"one\n"
    os.close(reader)
    progress.print_line(quiet, "two")
    assert quiet.quiet
    progress.print_line(quiet, "three")
    print("four", file=sys.stderr, flush=True)
    sys.stderr.close()


def test_a_count_without_progress_prints_nothing():
    """A search may find no token for a text."""
    said = []
    count = progress.Count(3, "texts", said.append, seconds=0.0)
    count(0)
    assert not said
    count(3)
    assert said == ["3/3 texts"]
