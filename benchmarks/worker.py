"""Benchmarks with several sides: each in its own process, measured in turn, so that a busy minute hurts all alike.

A side is a module with ``build(spec) -> step``: `step` does one unit of work and returns when it is done.  It also has
``product(size)``, a float32 matrix product, by which its speed is judged.  This file is both ends of the pipe:

    python -m benchmarks.worker MODULE SPEC     the process of one side, which obeys lines on standard input
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

PRODUCT = 2048
"""Size of the matrix product that stands for the peak."""


class Side:
    """One side, in a process of its own."""

    def __init__(
        self, name: str, module: str, spec: dict[str, Any], *, python: str = sys.executable, large_pages: bool = True
    ):
        self.name = name
        self.seconds: list[float] = []
        self.peaks: list[float] = []
        command = [python, "-m", "benchmarks.worker", module, json.dumps(spec)]
        root = pathlib.Path(__file__).resolve().parent.parent
        # Memory in large pages, as the command line has it: it helps every side.
        env = ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if large_pages else {}) | os.environ
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=root
        )
        self.ready = self._answer()  # versions, and seconds to the end of the first step

    def round(self, steps: int) -> None:
        """Measures some steps and, beside them, the peak."""
        answer = self._ask(f"run {steps}")
        self.seconds += answer["seconds"]
        self.peaks.append(answer["peak"])

    def close(self) -> dict[str, Any]:
        """Ends the process; what it measured."""
        memory = self._ask("stop")["memory"]
        self._process.wait()
        best = statistics.median(self.seconds)
        return {**self.ready, "seconds": best, "fastest": min(self.seconds), "peak": max(self.peaks), "memory": memory}

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"the process of {self.name!r} ended with {self._process.wait()}; see its messages above")


def serve(module: str, spec: dict[str, Any]) -> None:
    """The process of one side."""
    began = time.perf_counter()
    side = importlib.import_module(module)
    imported = time.perf_counter()
    step = side.build(spec)
    step()
    built = time.perf_counter()
    step()
    print(json.dumps({"import": imported - began, "first": built - imported, "versions": side.versions()}), flush=True)
    product = side.product(PRODUCT)
    product()
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "stop":
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"memory": memory}), flush=True)
            return
        step()  # after a rest, caches and pages are cold
        seconds = [_timed(step) for _ in range(int(rest[0]))]
        peak = 2 * PRODUCT**3 / min(_timed(product) for _ in range(3))
        print(json.dumps({"seconds": seconds, "peak": peak}), flush=True)


def _timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
