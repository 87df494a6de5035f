"""Measures everything that needs an accelerator, in six parts of eight minutes; the same command resumes a part.

    python -m benchmarks.accelerator --part list
    python -m benchmarks.accelerator --out results --part 1
    python -m benchmarks.accelerator --out results --part 4 --data DIR --wheels DIR
    JAX_PLATFORMS=cpu python -m benchmarks.accelerator --out tiny --part 6 --tiny

The folder of --out gets part-N.json, complete after every case, and part-N.txt with the table. Nothing is fetched. DIR
of --data holds multi30k/train.en, .de and so on, and tinyshakespeare/input.txt; all wheels in DIR of --wheels are
installed below --out. Where the folder is no git checkout, the variable COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import time

from benchmarks.accelerator import runner
from benchmarks.accelerator.record import Record, Settings
from experiments.program import guarded, raise_signals
from jaxformer.errors import ConfigError
from jaxformer.files import write_text

PARTS = {
    "1": ("contract", "the attention contract of every implementation and dtype, and ten explanations"),
    "2": ("attention", "attention forward and with the gradient, beside jax.nn and PyTorch; thresholds of `choose`"),
    "3": ("training", "training base and big in bfloat16: speed, compile time, memory against the plan, a trace"),
    "4": ("quality", "Multi30k and the character model by their recipes: scores and times"),
    "5": ("decoding", "greedy and beam search of a test set and of forced lengths, in bfloat16"),
    "6": ("repeat", "fifty steps twice, bit for bit, with and without the reproducible flags"),
}


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if args.part == "list":
        print("\n".join(f"{number}  {about}" for number, (_, about) in PARTS.items()))
        return 0
    stopped = "stopped; the same command resumes here"
    return guarded(lambda: run(args), stopped=stopped, terminated=128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=[*PARTS, "list"], required=True, help="list describes the parts")
    parser.add_argument("--out", type=pathlib.Path, help="folder of results, runs and traces; the same one resumes")
    parser.add_argument("--minutes", type=float, default=8.0, help="the end of this call")
    parser.add_argument("--wheels", type=pathlib.Path, help="folder of wheels to install below --out first")
    parser.add_argument("--data", type=pathlib.Path, help="folder with multi30k/ and tinyshakespeare/")
    parser.add_argument("--cases", nargs="+", default=[], metavar="NAME", help="only these cases")
    parser.add_argument("--retry", action="store_true", help="measure cases again that failed or were refused")
    parser.add_argument("--tiny", action="store_true", help="tiny models and arrays, which any CPU computes in seconds")
    parser.add_argument("--here", action="store_true", help="measure in this process, as the processes of a part do")
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs a part, or with ``--here`` some of its cases, and returns the exit code."""
    deadline = time.monotonic() + args.minutes * 60
    if args.out is None:
        raise ConfigError("--out must be a folder for the results, got none")
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    data = None if args.data is None else args.data.resolve()
    if data is not None and not data.is_dir():
        raise ConfigError(f"--data must be a folder, got {args.data}")
    if args.wheels is not None:
        install(args.wheels.resolve(), out / "site")
    if (out / "site").is_dir():
        sys.path.insert(0, str(out / "site"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(out / "site"), os.environ.get("PYTHONPATH")]))
    part = importlib.import_module(f"benchmarks.accelerator.{PARTS[args.part][0]}")
    settings = Settings(out, deadline, args.tiny, data)
    record = Record(out / f"part-{args.part}.json", tiny=args.tiny)
    if unknown := set(args.cases) - {case.name for case in part.cases(settings)}:
        raise ConfigError(f"--cases must be cases of part {args.part}, got {', '.join(sorted(unknown))}")
    if args.here:
        return runner.work(part, record, settings, args.cases or [case.name for case in part.cases(settings)])
    if args.retry:
        record.forget_errors(args.cases)
    command = [sys.executable, "-m", "benchmarks.accelerator", "--here", "--part", args.part, "--out", str(out)]
    command += ["--tiny"] if args.tiny else []
    command += ["--data", str(data)] if data else []
    try:
        runner.supervise(part, record, settings, only=args.cases, command=command)
    finally:
        text = runner.report(part, record, settings)
        write_text(out / f"part-{args.part}.txt", text + "\n")
        print("\n" + text, flush=True)
    return 0


def install(wheels: pathlib.Path, site: pathlib.Path) -> None:
    """Installs all wheels of a folder below `site`, once, without their dependencies and without any index.

    Raises:
      ConfigError: there is no wheel, or pip refuses one; the message has pip's last line.
    """
    files = sorted(str(path) for path in wheels.glob("*.whl"))
    seen = [f"{path} {os.stat(path).st_size} {os.stat(path).st_mtime_ns}" for path in files]  # one may be built again
    if not files:
        raise ConfigError(f"--wheels must be a folder with wheels, got {wheels}")
    done = site / "installed.txt"
    if done.exists() and done.read_text().splitlines() == seen:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    # pip installs into a folder as if nothing were installed elsewhere: it would ask for every dependency.
    command += ["--find-links", str(wheels), "--no-deps", "--upgrade", "--target", str(site), *files]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise ConfigError(f"--wheels: pip refuses: {(finished.stderr.splitlines() or ['no message'])[-1]}")
    write_text(done, "\n".join(seen) + "\n")


if __name__ == "__main__":
    raise_signals()
    sys.exit(main())
