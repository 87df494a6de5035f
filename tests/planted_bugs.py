"""Plants known bugs in copies of the package, one at a time, and checks that the tests find each of them.

    python -m tests.planted_bugs
    python -m tests.planted_bugs --only gradient_of_the_sum mean_over_padding --jobs 1

Run it before and after tests are cut. The checkout is not changed. The bugs are in `tests/planted.py` and
`tests/planted_commands.py`.
"""

import argparse
import asyncio
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from tests.planted import Bug
from tests.planted_commands import BUGS

ROOT = pathlib.Path(__file__).parents[1]
PASSED, FAILED = 0, 1
"""Exit codes of pytest; with others, the tests did not run."""


def copied(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder, with a copy of the package and its tests, which share the cache of compiled programs."""
    for name in ("jaxformer", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    cache = ROOT / ".cache" / "tests"
    cache.mkdir(parents=True, exist_ok=True)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "tests").symlink_to(cache.resolve())
    return folder


async def run(folder: pathlib.Path, tests: list[str]) -> tuple[int, str]:
    """Runs tests of a copy in a process of their own; returns its exit code and the end of its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-xq", "--tb=short", "-p", "no:cacheprovider"),
        *tests,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # so that it ends below, with the processes it started
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")[-2000:]


def occurrences(bug: Bug) -> int:
    """Returns how often the file has the text that a bug replaces."""
    path = ROOT / bug.file
    return path.read_text(encoding="utf-8").count(bug.right) if path.exists() else 0


async def find(folder: pathlib.Path, bug: Bug) -> bool:
    """Returns True if the test of a bug fails with it; prints one line."""
    began, path = time.monotonic(), folder / bug.file
    right = path.read_text(encoding="utf-8")
    path.write_text(bug.planted(right), encoding="utf-8")
    os.utime(path, (0, BUGS.index(bug)))  # bytecode belongs to a time and a size, which two bugs could share
    code, output = await run(folder, [bug.test])
    path.write_text(right, encoding="utf-8")
    verdict = {FAILED: f"found by {bug.test} in {time.monotonic() - began:.1f} s", PASSED: f"MISSED by {bug.test}"}
    print(f"{bug.name}: {verdict.get(code, f'NOT TESTED, pytest ended with {code}: {output}')}", flush=True)
    return code == FAILED


async def find_all(bugs: list[Bug], folders: list[pathlib.Path], check: bool) -> bool:
    """Returns True if each bug is found and, with `check`, if the tests pass without any."""
    if check:
        code, output = await run(folders[0], list(dict.fromkeys(bug.test for bug in bugs)))
        if code != PASSED:
            print(f"the tests must pass without a bug, but pytest ended with {code}: {output}")
            return False
    waiting, found = iter(bugs), []

    async def worker(folder: pathlib.Path) -> None:
        for bug in waiting:
            found.append(await find(folder, bug))

    await asyncio.gather(*map(worker, folders))
    return all(found)


def main() -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        "tests.planted_bugs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[bug.name for bug in BUGS], help="these bugs")
    parser.add_argument("--jobs", type=int, default=1, help="the number of tests at a time, 1 by default")
    parser.add_argument("--no-check", action="store_true", help="do not run the tests without a bug first")
    given = parser.parse_args()
    bugs = [bug for bug in BUGS if not given.only or bug.name in given.only]
    if changed := [bug for bug in bugs if occurrences(bug) != 1]:
        places = (f"{bug.name}: its text is {occurrences(bug)} times in {bug.file}" for bug in changed)
        parser.exit(2, "\n".join([*places, "the code changed: choose another piece, found exactly once", ""]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="planted-bugs-") as place:
            folders = [copied(pathlib.Path(place, str(number))) for number in range(given.jobs)]
            return 0 if asyncio.run(find_all(bugs, folders, not given.no_check)) else 1
    except KeyboardInterrupt:
        print("stopped")
        return 130


if __name__ == "__main__":
    sys.exit(main())
