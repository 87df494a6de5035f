"""``jaxformer COMMAND``: runs a command, and turns errors into one line and an exit code.

Exit codes: 0: done; 2: trying again cannot help, because the configuration or the data is wrong, a loss is not finite,
or a device has too little memory; 85: stopped by SIGTERM after saving, and the same command resumes; 130: stopped by
Ctrl-C; 143: stopped by SIGTERM outside of training, as while data are prepared; 70: stuck; 141: the reader of standard
output has exited, as in ``| head``; 1: any other error.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from jaxformer.cli.output import shown
from jaxformer.errors import ConfigError, JaxformerError, did_you_mean
from jaxformer.files import use_utf8
from jaxformer.hardware import use_large_pages
from jaxformer.signals import ending_at_once

COMMANDS = {
    "train": "train a model, or resume its training",
    "sweep": "train several seeds and settings one after another, and report means with intervals",
    "plan": "compile a training step for target hardware: memory, collectives, estimated time",
    "sizes": "count the parameters, FLOPs and bytes of published models",
    "evaluate": "score a run on its test data",
    "translate": "translate arguments, a file, or standard input",
    "generate": "continue a text with a language model",
    "score": "print the log-probabilities of given translations or texts",
    "fill": "predict the [MASK] tokens of texts with a masked language model",
    "classify": "classify texts or images, with probabilities and attention",
    "tag": "label each word of texts, such as with its part of speech",
    "caption": "caption images, with the attention of each word",
    "convert": "make a run from a pretrained Hugging Face model",
    "export": "write a run in Hugging Face format",
    "trim": "make a smaller run with the tokens that a corpus needs",
    "average": "average the parameters of a run's last checkpoints",
    "runs": "list runs with their states and scores",
    "diff": "show how two runs differ",
    "compare": "compare groups of runs that differ only in the seed, and count the seeds that a difference needs",
    "replay": "train the first steps of a run again, and compare each loss bit for bit",
    "inspect": "show where a model looks, as text, a picture or a page",
    "configs": "list the available configurations",
    "data": "download a known corpus, or write the built-in one to files",
    "demo": "train the built-in translator, score it, and draw an attention map",
}

HOMES = {
    **dict.fromkeys(("translate", "generate", "caption"), "generation"),
    **dict.fromkeys(("classify", "fill", "score", "tag"), "prediction"),
    **dict.fromkeys(("compare", "diff", "replay", "average", "trim"), "runs"),
    **dict.fromkeys(("convert", "export"), "pretrained"),
    **dict.fromkeys(("configs", "data"), "catalogs"),
    **dict.fromkeys(("sweep", "demo"), "train"),
}
"""The modules of commands that are not named after them."""

HEAVY = tuple(
    "demo train sweep replay evaluate translate inspect generate score fill classify tag caption trim".split()
)
"""The commands that run a model."""

EXTRAS = "orbax grain PIL sentencepiece sacrebleu sacremoses rich tensorboardX matplotlib".split()
HELP = f"""usage: jaxformer COMMAND ...

Train, evaluate and use Transformers.

commands:
{"".join(f"  {name:10}  {text}{chr(10)}" for name, text in COMMANDS.items())}
examples:
  jaxformer demo
  jaxformer train translation --data.source my.en --data.target my.fr --out run
  jaxformer translate run "The old man sees the house."
  jaxformer train language_model --data.text my.txt --out lm && jaxformer generate lm "To be"
  jaxformer COMMAND --help"""


def script() -> int:
    """Runs `main` as the console script; commands that run a model use huge pages of memory."""
    use_utf8()
    if sys.argv[1:2] and sys.argv[1] in HEAVY:
        use_large_pages()
    # The next file opened would get the descriptor of a closed stream. Writing results to a closed stream is an error.
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: SIM115
    # The encoding of the locale may lack characters of a translation, and a path need not be UTF-8.
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # pyright: ignore[reportAttributeAccessIssue]
    terminated = "terminated"
    if sys.argv[1:2] in (["train"], ["sweep"], ["demo"]):
        terminated = f"jaxformer {sys.argv[1]}: SIGTERM outside of training: run the same command again"
    # Not 85, which launchers repeat without a limit: a preparation that outlasts each job's time would never end.
    with ending_at_once({signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (128 + signal.SIGTERM, terminated)}):
        code = main()
    if code not in (0, 85) and "jaxformer.multihost.cluster" in sys.modules:
        sys.modules["jaxformer.multihost.cluster"].exit_process(code)
    return code


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    name, *others = (sys.argv[1:] if words is None else words) or ["--help"]
    program = f"jaxformer {name}" if name in COMMANDS else "jaxformer"
    try:
        try:
            code = _run(name, others)
        except SystemExit:  # the parser of a command has printed its help
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # inside the try block, which handles output that cannot be written
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        return report_error(error, program)


def _run(name: str, words: Sequence[str]) -> int:
    """Runs the command of this name."""
    if name in ("-h", "--help"):
        print(HELP)
        return 0
    if name == "--version":
        print(f"jaxformer {importlib.import_module('jaxformer').__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name!r}{did_you_mean(name, COMMANDS)}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")  # an image is read, or refused in one line
        return getattr(importlib.import_module(f"jaxformer.cli.{HOMES.get(name, name)}"), name)(words)


def report_error(error: Exception, program: str) -> int:
    """Prints an error as one line after the name of the program; returns the exit code.

    Raises:
      Exception: the error itself, if it is not one that a user can act on.
    """
    unread = isinstance(error, BrokenPipeError) and _has_no_reader(sys.stdout)
    _drop_unwritten()
    if unread:
        return 128 + signal.SIGPIPE
    outcome = _outcome(error)
    if outcome is None:
        raise error
    code, text = outcome
    print(f"{program}: {text}", file=sys.stderr)
    return code


def _drop_unwritten() -> None:
    """Drops buffered output that cannot be written: Python would try again at exit and print its own error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _has_no_reader(stream: TextIO) -> bool:
    """Returns True if a stream is a pipe or a socket whose other end is closed; a pipe may also break elsewhere."""
    poll = select.poll()
    try:
        poll.register(stream, 0)  # errors and hang-ups are always reported
    except (OSError, ValueError):  # it has no descriptor
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _outcome(error: Exception) -> tuple[int, str] | None:
    """Returns the exit code and the line of an error that a user can act on; others keep their traceback."""
    text = str(error)
    if isinstance(error, JaxformerError):
        return error.exit_code, shown(text)  # file names may contain any character
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in EXTRAS:
        return 2, f"{text}; install it with: pip install 'jaxformer[train]'"
    of_device = isinstance(error, RuntimeError) and text.startswith("RESOURCE_EXHAUSTED")
    if of_device or isinstance(error, MemoryError):
        text = f"out of memory: {(text.splitlines() or ['no memory left'])[0]}; choose a smaller batch or model"
        # Other programs may free the memory of the host.
        return 2 if of_device and importlib.import_module("jax").default_backend() != "cpu" else 1, text
    if isinstance(error, OSError):
        if error.errno == errno.EBADF:
            return 1, "standard output is closed"
        return {errno.ENAMETOOLONG: 2, errno.ELOOP: 2}.get(error.errno or 0, 1), text
    # JAX was not imported to the end, because of a variable, such as a word in JAX_NUM_CPU_DEVICES.
    refused = "jax" not in sys.modules and any(name.startswith("jax.") for name in sys.modules)
    return (2, text) if refused and isinstance(error, ValueError) else None


if __name__ == "__main__":
    sys.exit(script())
