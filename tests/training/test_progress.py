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


def console(**options):
    return Console(file=io.StringIO(), width=200, **options)


def test_lines_have_a_minimum_interval():
    """At most one per interval of seconds, and always the last one."""
    out = console()
    lines = progress.Lines(out, steps=3, seconds=1000.0)
    for step in (1, 2, 3):
        lines.update(step, loss=2.5, tokens_per_second=12_345.6, utilization=None if step < 3 else 0.5)
    lines.say("validated")
    lines.close()
    said = out.file.getvalue().splitlines()
    assert said[-1] == "validated"
    assert said[-2] == "step 3/3: loss 2.500, 12,346 tokens/s, MFU 50%"
    assert len(said) <= 3


def test_a_terminal_shows_a_bar():
    assert isinstance(progress.reporter(console(), start=0, steps=2), progress.Lines)
    dumb = console(force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(progress.reporter(dumb, start=0, steps=2), progress.Lines)  # a bar would never be drawn
    out = console(force_terminal=True, _environ={"TERM": "xterm"})
    bar = progress.reporter(out, start=0, steps=2, unit="images")
    assert isinstance(bar, progress.Bar)
    bar.update(2, loss=1.25, tokens_per_second=1000.0, utilization=0.25)
    bar.tick(2, 4000.0)
    bar.say("above the bar")
    bar.close()
    assert "above the bar" in out.file.getvalue()
    assert "1,000 images/s" in out.file.getvalue()
    assert "1.250" in out.file.getvalue()
    assert "MFU 25%" in out.file.getvalue()
    assert "1:06:40 left" in out.file.getvalue()


def test_lines_between_reports_have_the_time_left():
    out = console()
    lines = progress.Lines(out, steps=2000, seconds=0.0, unit="images")
    lines.tick(1, 75.0)
    lines.update(10, loss=2.5, tokens_per_second=1.0, utilization=None)
    lines.update(2000, loss=1.5, tokens_per_second=1.0, utilization=None)
    assert out.file.getvalue().splitlines() == [
        "step 1/2,000, 1:15 left",
        "step 10/2,000: loss 2.500, 1 images/s, 1:15 left",
        "step 2,000/2,000: loss 1.500, 1 images/s",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_smoothed_loss_is_named_so(terminal):
    """It stands beside the validation loss, which is lower for another reason than the data."""
    for smoothing, name in ((0.1, "smoothed loss 2.500"), (0.0, "loss 2.500")):
        out = console(force_terminal=terminal, _environ={"TERM": "xterm"})
        made = progress.reporter(out, start=0, steps=1, smoothing=smoothing)
        made.update(1, loss=2.5, tokens_per_second=1.0, utilization=None)
        made.close()
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
