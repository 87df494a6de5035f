"""A process that tokenizes the units that it reads from standard input: ``python -m jaxformer.data.worker TOKENIZER``.

It imports no JAX, and ends when its standard input does.
"""

from __future__ import annotations

import json
import signal
import sys

from jaxformer.data import units
from jaxformer.errors import DataError
from jaxformer.tokenizers.loading import load_tokenizer


def main() -> None:
    """Does jobs and replies to each with a line of JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the process that started this one
    tokenizer = load_tokenizer(sys.argv[1])
    while job := units.received(sys.stdin.buffer):
        reply: dict[str, object] = {"kind": ""}
        try:
            units.write_unit(*job, tokenizer)
        except DataError as error:
            reply = {"kind": "DataError", "message": str(error)}
        except OSError as error:
            reply = {"kind": "OSError", "errno": error.errno, "message": error.strerror, "path": error.filename}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
