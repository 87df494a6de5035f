"""Runs the sides of a benchmark in separate processes that take turns, so that a busy minute slows all of them alike.

A side is a module with ``build(spec) -> step``, in which `step` does one unit of work and returns when it is done; its
result is sent once, if it is not an array. It also has ``product(size)``, a float32 matrix product that measures its
peak speed. This file is both ends of the pipe:

    python -m benchmarks.worker MODULE SPEC     runs one side and reads commands from standard input
"""

from __future__ import annotations

import atexit
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
"""The size of the matrix product that measures the peak."""


class Side:
    """One side of a benchmark, in its own process."""

    def __init__(
        self,
        name: str,
        module: str,
        spec: dict[str, Any],
        *,
        python: str = sys.executable,
        large_pages: bool = True,
        root: pathlib.Path | None = None,
    ):
        """Starts the process.

        Args:
          root: the checkout whose side it is; this one by default.
        """
        self.name = name
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.peaks: list[float] = []
        command = [python, "-m", "benchmarks.worker", module, json.dumps(spec)]
        root = pathlib.Path(__file__).resolve().parent.parent if root is None else root
        # Large memory pages, as in the command line: they help every side.
        env = ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if large_pages else {}) | os.environ
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=root
        )
        atexit.register(self._process.kill)  # after an error or SIGTERM, the sides end with this process
        self.ready = self._answer()  # versions, and seconds to the end of the first step

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def round(self, steps: int) -> None:
        """Measures some steps and the peak next to them."""
        answer = self._ask(f"run {steps}")
        self.seconds += answer["seconds"]
        self.processor += answer["processor"]
        self.peaks.append(answer["peak"])

    def close(self) -> dict[str, Any]:
        """Ends the process and returns its results."""
        memory = self._ask("stop")["memory"]
        self._process.wait()
        median = statistics.median(self.seconds)
        return {
            **self.ready,
            "seconds": median,
            "fastest": min(self.seconds),
            "processor": min(self.processor),
            "peak": max(self.peaks),
            "memory": memory,
        }

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
        from jaxformer.errors import JaxformerError  # here: the interpreter of a side may lack our libraries

        raise JaxformerError(f"the process of {self.name!r} ended with {self._process.wait()}; see its messages above")


def serve(module: str, spec: dict[str, Any]) -> None:
    """Runs one side: answers each command from standard input with a line of JSON."""
    began = time.perf_counter()
    side = importlib.import_module(module)
    imported = time.perf_counter()
    step = side.build(spec)
    step()
    built = time.perf_counter()
    result = step()
    ready = {"import": imported - began, "first": built - imported, "versions": side.versions(), "result": result}
    print(json.dumps(ready, default=lambda array: None), flush=True)  # arrays stay here
    product = side.product(PRODUCT)
    product()
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "stop":
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(json.dumps({"memory": memory}), flush=True)
            return
        step()  # not measured: caches and pages are cold after a pause
        seconds, processor = zip(*(_timed(step) for _ in range(int(arguments[0]))), strict=True)
        peak = 2 * PRODUCT**3 / min(_timed(product)[0] for _ in range(3))
        print(json.dumps({"seconds": seconds, "processor": processor, "peak": peak}), flush=True)


def _timed(work) -> tuple[float, float]:
    """Returns the seconds of the clock and of the process's own threads."""
    began, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - used


if __name__ == "__main__":
    try:
        serve(sys.argv[1], json.loads(sys.argv[2]))
    except ModuleNotFoundError as error:  # the library of a side
        sys.exit(f"{sys.argv[1]}: {error} ({sys.executable})")
