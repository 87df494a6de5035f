"""The runner of a part: its cases one after another, in processes that may fail.

`supervise` starts a process for each group of cases and never touches the device. `work` is that process.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import itertools
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.accelerator.record import Case, Record, Refused, Settings, Unfinished
from jaxformer.errors import ConfigError
from jaxformer.hardware import processor_name

MOST_NAMED = 12
"""The maximum number of remaining cases that a report names."""
AGAIN = 75
"""The exit code of a process that cannot continue: after an error, the device may fail in every call."""
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "tokamax", "torch", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def work(part: types.ModuleType, record: Record, settings: Settings, names: Collection[str]) -> int:
    """Runs cases in this process and records each result; returns the exit code."""
    record.begin(header())
    for case in [case for case in part.cases(settings) if case.name in names]:
        if case.name in record.cases or settings.left < case.seconds:
            continue
        record.start(case.name)
        began, broken = time.monotonic(), False
        try:
            entry: dict[str, Any] = {"result": dict(case.run(settings))}
        except Refused as refusal:
            entry = {"refused": str(refusal)}
        except Unfinished as pause:
            record.pause(case.name, str(pause), time.monotonic() - began)
            say(f"{case.name}: to be continued, {pause}")
            continue
        except Exception as error:
            entry = {"error": described(error)}
            # After an illegal access every further call fails; after a lack of memory none does.
            broken = type(error).__name__ == "JaxRuntimeError" and "RESOURCE_EXHAUSTED" not in str(error)
        seconds = time.monotonic() - began
        record.finish(case.name, entry, seconds)
        outcome = next(iter(entry))
        say(f"{case.name}: {'done' if outcome == 'result' else f'{outcome}: {entry[outcome]}'} ({seconds:.1f} s)")
        if broken:
            return AGAIN
    return 0


def supervise(
    part: types.ModuleType,
    record: Record,
    settings: Settings,
    *,
    only: Collection[str] = (),
    command: Sequence[str],
) -> None:
    """Runs the cases of a part that have no result, in other processes, until all have one or time is up.

    Args:
      only: the names of the cases to run; by default all.
      command: starts `work`; the minutes left and the names of the cases are added to it.

    Raises:
      ConfigError: the process ends before its first case; the message has its last words.
    """
    if record.running is not None:
        record.interrupted("the process and its supervisor were killed")
    tried: set[str] = set()
    while True:
        wanted = (case for case in part.cases(settings) if not only or case.name in only)
        pending = [case for case in wanted if case.name not in record.cases and case.name not in tried]
        pending = [case for case in pending if case.seconds <= settings.left]
        if not pending:
            return
        group = next(list(cases) for _, cases in itertools.groupby(pending, key=lambda case: case.group))
        done, opened = set(record.cases), set(record.open)
        code, words = _run(command, group, settings)
        record.__init__(record.path, tiny=record.tiny)
        if record.running is not None:
            if code is None:
                tried.add(record.running)
                record.interrupted("not done at the deadline")
            else:
                record.finish(record.running, {"error": f"the process ended with {_ending(code)}: {words}"}, 0)
        elif code is None:
            return
        elif code == 0:
            tried |= {case.name for case in group}
        elif set(record.cases) == done and set(record.open) == opened:
            raise ConfigError(f"the process of {group[0].name!r} ended with {_ending(code)} before it began: {words}")


def _run(command: Sequence[str], group: list[Case], settings: Settings) -> tuple[int | None, str]:
    """Returns the exit code of a process for some cases, None if it was killed at the deadline, and its last words."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {group[0].flags}".strip()
    env = os.environ | ({"XLA_FLAGS": flags} if flags else {})
    extra = ["--minutes", f"{settings.left / 60:.4f}", "--cases", *(case.name for case in group)]
    # Ends this process by an exception, so that the other one is killed too.
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with (settings.out / "messages.log").open("a+", encoding="utf-8", errors="replace") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen([*command, *extra], env=env, stderr=log, cwd=ROOT)
        try:
            code = process.wait(timeout=max(0.1, settings.left))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
            signal.signal(signal.SIGTERM, previous)
        log.seek(start)
        lines = [line.strip() for line in log.read().splitlines() if line.strip()]
    return code, " / ".join(lines[-3:])[-500:]


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def described(error: BaseException) -> str:
    """Returns an error in words: its kind, the beginning of its message, and the last line of this project in it."""
    text = " ".join(str(error).split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
    frames = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    place = f" ({pathlib.Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text[:500]}{place}"


def header() -> dict[str, Any]:
    """Returns the device, its driver, the versions of libraries, the date and the commit."""
    import jax  # it would take the device's memory in the supervisor

    device = jax.devices()[0]
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    kind = device.device_kind
    return {
        "device": processor_name() if device.platform == "cpu" else kind,
        "platform": device.platform,
        "driver": _said("nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"),
        "python": platform.python_version(),
        "versions": versions,
        "date": datetime.date.today().isoformat(),
        "commit": os.environ.get("COMMIT") or _said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def _said(*command: str) -> str:
    """Returns the first line that a command prints, or "unknown"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0].strip()


def say(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)


def report(part: types.ModuleType, record: Record, settings: Settings) -> str:
    """Returns the header, the table of a part, the cases that failed and those that are left."""
    lines = [part.TITLE + (" (tiny mode: the results mean nothing)" if record.tiny else "")]
    for session in record.sessions:
        versions = ", ".join(f"{name} {version}" for name, version in session["versions"].items())
        lines.append(
            f"{session['device']}, driver {session['driver']}; Python {session['python']}, {versions}; "
            f"{session['date']}, commit {session['commit']}"
        )
    measured = {name: entry for name, entry in record.cases.items() if "result" in entry}
    by = [{name: fact for name, fact in session.items() if name != "date"} for session in record.sessions]
    results = {name: entry["result"] | {"by": by[entry["session"]]} for name, entry in measured.items()}
    lines += ["", part.table(results)] if results else []
    for kind in ("refused", "error"):
        found = {name: entry[kind] for name, entry in record.cases.items() if kind in entry}
        lines += ["", f"{kind}:", *(f"  {name}: {reason}" for name, reason in found.items())] if found else []
    left = [case.name for case in part.cases(settings) if case.name not in record.cases]
    notes = {name: entry["note"] for name, entry in record.open.items() if entry["note"]}
    named = [f"{name} ({notes[name]})" if name in notes else name for name in left]
    more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
    lines += ["", f"left for the next call: {', '.join(named[:MOST_NAMED])}{more}" if left else "complete"]
    return "\n".join(lines)
