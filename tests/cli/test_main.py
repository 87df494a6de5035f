"""Errors that become one line, and errors that keep their traceback."""

import errno
import importlib.metadata
import io
import math
import os
import pathlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from PIL import Image

from jaxformer import training
from jaxformer.cli import main
from jaxformer.errors import ConfigError, DataError, JaxformerError
from jaxformer.inspection.attention_maps import AttentionMap, as_text
from jaxformer.tokenizers import moses
from tests.data.pictures import bomb, encoded, picture
from tests.selection import first


def outcome(monkeypatch, capsys, command):
    """The exit code and message of a `jaxformer demo` that runs this function instead."""
    module = types.SimpleNamespace(demo=lambda _: command())
    monkeypatch.setitem(sys.modules, "jaxformer.cli.train", module)
    return main.main(["demo"]), capsys.readouterr().err


def raise_it(error):
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no"), 2),
        (DataError("no"), 2),
        (training.NonFiniteError(3, 2, math.nan), 2),
        (training.OutOfMemoryError("no"), 2),
        (OSError(errno.ENOSPC, "No space left"), 1),
        (OSError(errno.ENAMETOOLONG, "File name too long"), 2),
        (OSError(errno.ELOOP, "Too many levels of symbolic links"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(monkeypatch, capsys, error, code):
    found, said = outcome(monkeypatch, capsys, lambda: raise_it(error))
    assert found == code
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "platform", "code"),
    [
        (MemoryError("Unable to allocate 7 TiB"), "gpu", 1),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating"), "cpu", 1),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating"), "gpu", 2),
    ],
)
def test_out_of_memory_is_one_line(monkeypatch, capsys, error, platform, code):
    """The advice to end other programs is only for the memory of the host."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    found, said = outcome(monkeypatch, capsys, lambda: raise_it(error))
    assert found == code
    assert said.startswith("jaxformer demo: out of memory: ")
    assert said.endswith("; choose a smaller batch or model\n")
    assert len(said.splitlines()) == 1


SIGNALED = """
import gc, os, signal, sys, types
from jaxformer.cli import main
from jaxformer import signals

def signaled(*_):
    os.kill(os.getpid(), signal.Signals[sys.argv[2]])

def command(_):
    print("half a line", end="")
    {how}
    return 0

sys.modules["jaxformer.cli.train"] = types.SimpleNamespace(demo=command)
sys.exit(main.script())
"""


def signaled(how, name, *, before="", command="demo"):
    """The exit code, output and errors of a process whose command does this, with the name of a signal."""
    program = before + SIGNALED.format(how=how)
    if command == "translate":
        program = program.replace("cli.train", "cli.generation").replace("demo=", "translate=")
    words = [sys.executable, "-c", program, command, name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", ["signaled()", "gc.callbacks.append(signaled); gc.collect()"])
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_signals_outside_of_training_end_the_process(how, name, code):
    """Also where Python discards exceptions, which would let the command continue; not with 85, as nothing is saved."""
    again = "jaxformer demo: SIGTERM outside of training: run the same command again\n"
    assert signaled(how, name) == (code, "half a line", again if name == "SIGTERM" else "interrupted\n")


@pytest.mark.parametrize(("name", "code", "said"), [("SIGINT", 130, "interrupted\n"), ("SIGTERM", 143, "terminated\n")])
def test_a_signal_does_not_wait_for_a_long_call(name, code, said):
    """As a compilation is, before whose end Python runs no handler."""
    how = "import hashlib, threading; signals.GRACE = 0; threading.Timer(0.05, signaled).start()"
    how += "; hashlib.pbkdf2_hmac('sha1', b'', b'', 2_000_000_000)"
    assert signaled(how, name, command="translate") == (code, "half a line", said)


@pytest.mark.parametrize("imported", [True, False])
def test_a_signal_leaves_no_temporary_files(imported, tmp_path):
    """It may come in the middle of the import of the module that removes them."""
    how = "sys.modules['jaxformer.files'] = types.ModuleType('jaxformer.files'); signaled()"
    if imported:
        how = f"from jaxformer import files; files.creating_folder({str(tmp_path / 'a')!r}).__enter__(); signaled()"
    assert signaled(how, "SIGINT") == (130, "half a line", "interrupted\n")
    assert os.listdir(tmp_path) == []


FORK = """
    import time
    if not (worker := os.fork()):
        os.kill(os.getpid(), signal.SIGTERM)  # from its parent, it would be lost before Python has set up the fork
        os._exit(1)
    sys.stderr.write(str(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])))
    time.sleep(0.1)
"""


def test_a_signal_to_a_worker_is_not_for_the_command():
    """As from `multiprocessing.Pool.terminate`."""
    before = "import warnings; warnings.simplefilter('ignore')\n"
    assert signaled("signals.GRACE = 0" + FORK, "", before=before) == (0, "half a line", "143")


def test_an_ignored_signal_stays_ignored():
    """As in a background job of a shell without job control."""
    before = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    assert signaled("signaled()", "SIGINT", before=before) == (0, "half a line", "")


def test_an_error_carries_its_exit_code(monkeypatch, capsys):
    class Tired(JaxformerError):
        exit_code = 7

    assert outcome(monkeypatch, capsys, lambda: raise_it(Tired("enough"))) == (7, "jaxformer demo: enough\n")
    named = lambda: raise_it(DataError("a\n\x1b[2J\x9b.png is broken"))  # the name of a file may have any character
    assert outcome(monkeypatch, capsys, named) == (2, "jaxformer demo: a\\n\\x1b[2J\\x9b.png is broken\n")


@pytest.mark.parametrize(
    ("data", "size", "warning"),
    [
        (bomb(10_000, 10_000), (10_000, 10_000), "Image size"),
        (encoded(picture(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\5"), (4, 6), "Corrupt EXIF data"),
    ],
    ids=["large", "exif"],
)
def test_warnings_of_pillow_are_silenced(monkeypatch, capsys, data, size, warning):
    """Its warning would precede the one-line error about the image, or name no file."""

    def read():
        with Image.open(io.BytesIO(data)) as image:
            if image.format == "JPEG":  # that of a PNG lies behind its pixels
                image.getexif()
            return image.size

    assert outcome(monkeypatch, capsys, read) == (size, "")
    with pytest.raises(Warning, match=warning):  # here warnings are errors
        read()


def a_bug_of_ours():
    as_text(AttentionMap(("one",), ("two", "rows"), np.ones((1, 1))))  # zip's ValueError, in a line of ours


@pytest.mark.parametrize("bug", [a_bug_of_ours, lambda: raise_it(ValueError("of another package")), lambda: {}["x"]])
def test_bugs_keep_their_traceback(monkeypatch, capsys, bug):
    with pytest.raises((ValueError, KeyError)):
        outcome(monkeypatch, capsys, bug)


def test_a_missing_extra_is_named(monkeypatch, capsys):
    code, said = outcome(monkeypatch, capsys, lambda: raise_it(ModuleNotFoundError("No grain", name="grain.python")))
    assert (code, "pip install 'jaxformer[train]'" in said) == (2, True)
    with pytest.raises(ModuleNotFoundError):
        outcome(monkeypatch, capsys, lambda: raise_it(ModuleNotFoundError("No mine", name="mine")))


def test_the_extra_with_the_rules_of_moses_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    code, said = outcome(monkeypatch, capsys, moses.version.__wrapped__)
    assert (code, "sacremoses" in said, "pip install 'jaxformer[train]'" in said) == (2, True, True)


NO_CUDA = pytest.mark.skipif(bool(list(importlib.metadata.entry_points(group="jax_plugins"))), reason="it has a plugin")


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("JAX_NUM_CPU_DEVICES", "many", 'Invalid value "many" for JAX flag jax_num_cpu_devices'),
        pytest.param("JAX_PLATFORMS", "abacus", "'abacus' is not in the list of known", marks=pytest.mark.full),
        pytest.param("JAX_PLATFORMS", "cuda", "finds no device, JAX_PLATFORMS=cuda", marks=[pytest.mark.full, NO_CUDA]),
    ],
)
def test_wrong_settings_of_jax_give_one_line(tmp_path, variable, text, message):
    words = [sys.executable, "-m", "jaxformer.cli.main", "train", "demo", "--out", "run"]
    known = {**os.environ, variable: text, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    done = subprocess.run(words, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("closed", "code"), [("<&-", 0), (">&-", 1), ("<&- >&- 2>&-", 1)])
def test_closed_streams(closed, code):
    """A daemon may have closed streams. Python has no object for one, and the next file gets its descriptor."""
    program = (
        "import os, sys; from jaxformer.cli.main import script; code = script(); sys.stdin.buffer.read(); "
        "sys.exit(code if os.dup(0) > 2 else 'a number is free')"
    )
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program, "configs"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    said = "jaxformer configs: standard output is closed\n" if closed == ">&-" else ""
    assert (done.returncode, done.stderr) == (code, said)


def put(unbuffered, words, stdout):
    """A command with this standard output."""
    program = f"import sys; from jaxformer.cli.main import main; sys.exit(main({words}))"
    known = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    return subprocess.Popen([sys.executable, "-c", program], env=known, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("unbuffered", "words"),
    [
        *(("", words) for words in (["configs"], ["--help"], ["configs", "--help"])),
        *(pytest.param("1", words, marks=pytest.mark.full) for words in (["configs"], ["--help"])),
        ("1", ["configs", "--help"]),
    ],
)
def test_a_reader_that_stops_early_ends_a_command_silently(unbuffered, words):
    """The exit code is the one that a shell shows for SIGPIPE; argparse ignores it for the help of a command."""
    process = put(unbuffered, words, subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()  # before anything is written
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read()
    ignored = unbuffered and words == ["configs", "--help"]
    assert (process.wait(timeout=120), said) == (0 if ignored else 141, b"")


@pytest.mark.parametrize("unbuffered", first(["", "1"], "1"))
def test_output_that_cannot_be_written_is_an_error(unbuffered):
    with open("/dev/full", "wb") as full:
        process = put(unbuffered, ["configs"], full)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (1, b"jaxformer configs: [Errno 28] No space left on device\n")


def test_a_broken_pipe_elsewhere_is_an_error(monkeypatch, capfd):
    """A tracker's socket may break during training, and a launcher must not take that for its end."""
    broken = BrokenPipeError(errno.EPIPE, "Broken pipe")
    said = "jaxformer demo: [Errno 32] Broken pipe\n"
    assert outcome(monkeypatch, capfd, lambda: raise_it(broken)) == (1, said)


@pytest.mark.parametrize("text", ["été", os.fsdecode(b"caf\xe9")])
def test_results_are_utf8_in_every_locale_and_paths_unchanged(monkeypatch, text):
    command = types.SimpleNamespace(configs=lambda _: print(text) or 0)
    monkeypatch.setitem(sys.modules, "jaxformer.cli.catalogs", command)
    monkeypatch.setattr(sys, "argv", ["jaxformer", "configs"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main.script() == 0
    assert sys.stdout.buffer.getvalue() == os.fsencode(text + "\n")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("é".encode(), "jaxformer translate: nowhere/é is not a run: it has no config.json"),
        (b"\xe9", "jaxformer translate: TEXT: '\\udce9' is not UTF-8"),
    ],
)
def test_arguments_are_utf8_in_any_locale(argument, message):
    """In the C locale, without Python's UTF-8 mode, every letter beyond ASCII was called "not UTF-8"."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "jaxformer", "translate", b"nowhere/" + argument, argument]
    done = subprocess.run(command, env=os.environ | plain, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == message
