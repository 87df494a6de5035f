"""Plants known bugs in copies of the package, one at a time, and checks that the tests find each of them.

    python -m tests.planted_bugs
    python -m tests.planted_bugs --only band_ends_early rms_of_the_batch --jobs 2

Run it before and after tests are cut or rewritten. A bug is one wrong line that raises no error by itself. The checkout
is not changed.
"""

import argparse
import asyncio
import dataclasses
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from tests.planted import BUGS, Bug

ROOT = pathlib.Path(__file__).parents[1]
COPIED = "jaxformer", "tests", "pyproject.toml"
PASSED, FAILED = 0, 1
"""Exit codes of pytest; others mean that no test ran or that files could not be imported."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy of the package and its tests, in which one bug at a time is planted."""

    folder: pathlib.Path

    @classmethod
    def make(cls, folder: pathlib.Path) -> "Copy":
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        (ROOT / ".cache" / "tests").mkdir(parents=True, exist_ok=True)
        (folder / ".cache").mkdir()
        (folder / ".cache" / "tests").symlink_to((ROOT / ".cache" / "tests").resolve())  # compiled programs
        return cls(folder)

    def plant(self, bug: Bug) -> None:
        path = self.folder / "jaxformer" / bug.file
        path.write_text(bug.planted((ROOT / "jaxformer" / bug.file).read_text(encoding="utf-8")), encoding="utf-8")
        os.utime(path, (1, 1 + BUGS.index(bug)))  # bytecode is kept by time and size, which two bugs may share

    def restore(self, bug: Bug) -> None:
        shutil.copy2(ROOT / "jaxformer" / bug.file, self.folder / "jaxformer" / bug.file)

    async def run(self, *tests: str) -> tuple[int, str]:
        """Runs tests in a process of their own; returns its exit code and its output."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # an interrupt ends it below, together with what it has started
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, output.decode(errors="replace")


async def find(copy: Copy, bug: Bug) -> bool:
    """Prints whether the test of a bug fails with it, in one line."""
    began = time.monotonic()
    copy.plant(bug)
    code, output = await copy.run(f"tests/{bug.test}")
    copy.restore(bug)
    verdict = f"found by {bug.test} in {time.monotonic() - began:.1f} s" if code == FAILED else f"MISSED by {bug.test}"
    if code not in (PASSED, FAILED):
        verdict = f"NOT TESTED: pytest ended with exit code {code}\n{output[-2000:]}"
    print(f"{bug.name}: {verdict}", flush=True)
    return code == FAILED


async def find_all(bugs: list[Bug], folder: pathlib.Path, jobs: int, check: bool) -> bool:
    """Returns True if the tests pass without any bug and each bug is found."""
    copies: asyncio.Queue[Copy] = asyncio.Queue()
    for number in range(min(jobs, len(bugs))):
        (folder / str(number)).mkdir()
        copies.put_nowait(Copy.make(folder / str(number)))
    if check:
        first = await copies.get()
        code, output = await first.run(*dict.fromkeys(f"tests/{bug.test}" for bug in bugs))
        if code != PASSED:
            print(f"without any bug, the tests must pass, got exit code {code}\n{output[-2000:]}")
            return False
        copies.put_nowait(first)

    async def with_a_copy(bug: Bug) -> bool:
        copy = await copies.get()
        try:
            return await find(copy, bug)
        finally:
            copies.put_nowait(copy)

    return all(await asyncio.gather(*map(with_a_copy, bugs)))


def main() -> int:
    """Runs the command; returns its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    parser = argparse.ArgumentParser("tests.planted_bugs", description=__doc__, formatter_class=RAW)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[bug.name for bug in BUGS], help="these bugs")
    parser.add_argument("--jobs", type=int, default=1, help="tests at a time (default: 1)")
    parser.add_argument("--no-check", action="store_true", help="do not run the tests without any bug first")
    given = parser.parse_args()
    bugs = [bug for bug in BUGS if not given.only or bug.name in given.only]
    for bug in bugs:
        bug.planted((ROOT / "jaxformer" / bug.file).read_text(encoding="utf-8"))
    try:
        with tempfile.TemporaryDirectory(prefix="planted-bugs-") as folder:
            found = asyncio.run(find_all(bugs, pathlib.Path(folder), given.jobs, not given.no_check))
    except KeyboardInterrupt:
        print("stopped")
        return 130
    return 0 if found else 1


RAW = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    sys.exit(main())
