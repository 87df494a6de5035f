"""Strict settings for every test: eight devices, no implicit promotion, shapes checked at every call."""

import gc
import os
import pathlib
import signal
import sys
import zlib
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; tests interrupt themselves
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.pop("JAXFORMER_CACHE", None)
os.environ["XDG_CACHE_HOME"] = str(ROOT / ".cache" / "user")  # tests write nothing in the home directory
# Most of the time goes into compiling programs that run once, for microseconds. Programs with all optimization, as for
# users, run in the tests that start a launcher, and if XLA_FLAGS is set.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1")
# Bytecode is kept even where users do not want it: it is a sixth of the time in which a process of ours starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import jax
import jax.numpy as jnp

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Thousands of tiny programs; the other worker, and a second run, find them here.
jax.config.update("jax_compilation_cache_dir", str(ROOT / ".cache" / "tests"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

from jaxtyping import install_import_hook

if not any(name.startswith("jaxformer.") for name in sys.modules):
    hook = install_import_hook(["jaxformer.functional", "jaxformer.modules", "jaxformer.models"], "beartype.beartype")

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests of one part of the files, where JAXFORMER_TEST_PART is such as 2/10.

    Raises:
      pytest.UsageError: a name holds a set, which two workers write in two orders.
    """
    if unordered := [item.nodeid for item in items if "[{'" in item.nodeid and "': " not in item.nodeid]:
        raise pytest.UsageError(f"names that depend on the order of a set: {', '.join(unordered)}; use a tuple")
    if chosen := os.environ.get("JAXFORMER_TEST_PART"):
        number, parts = map(int, chosen.split("/"))
        others = [item for item in items if zlib.crc32(item.path.name.encode()) % parts != number - 1]
        items[:] = [item for item in items if item not in set(others)]
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session", autouse=True)
def _fast_process():
    """Lets XLA's compiling threads run before Python's, and collects garbage less often.

    XLA makes an MLIR context, which takes 2 ms, for every fusion that arrives while all others wait for a thread.
    Threads that run at once leave theirs to the next one. That saves a seventh of the time of tests that compile.
    """
    gc.collect()
    gc.freeze()  # what has been imported stays
    gc.set_threshold(50_000)
    if sys.platform == "linux":  # where a thread has a priority of its own
        number = os.getpid()  # makes this a program that no cache has, for only a compilation starts those threads
        jax.jit(lambda x: jnp.sin(x) + x + number)(jnp.ones(3))
        os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10))


@pytest.fixture(scope="session", autouse=True)
def draw_curves() -> Iterator[Callable[..., None]]:
    """The method that draws the picture of a training: a third of a second, which tests leave out if they can."""
    from jaxformer.tasks import rundir

    original = rundir.Curves.ended
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rundir.Curves, "ended", lambda self, step, reason: None)
        yield original


MOST_MAPS = 40_000
"""The memory maps of a process after which compiled programs are dropped; Linux allows 65,530."""


@pytest.fixture(scope="module", autouse=True)
def _light_process():
    """Takes what earlier files left out of all later searches for garbage: some millions of objects of the tracer.

    Drops the compiled programs of earlier files before their number would crash the process.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_directory() -> pathlib.Path:
    """The folder of real corpora, if there is one."""
    directory = os.environ.get("JAXFORMER_DATA")
    if not directory or not pathlib.Path(directory).is_dir():
        pytest.skip("JAXFORMER_DATA names no directory with corpora")
    return pathlib.Path(directory)
