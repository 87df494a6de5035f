"""The lines that commands print or write: results of a search as columns or as JSON."""

from __future__ import annotations

import json
import math
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from jaxformer.files import write_text

if TYPE_CHECKING:
    from jaxformer.cli.predictors import SearchOptions
    from jaxformer.tasks.search import Candidate
    from jaxformer.tokenizers.base import Tokenizer


_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters that JSON does not escape, but that end a line for some readers."""


def shown(text: str) -> str:
    r"""Returns a text on one line, with control characters, which a terminal would interpret, escaped.

    >>> print(shown("a\nb.png \x1b[2J"))
    a\nb.png \x1b[2J
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: ascii(match[0])[1:-1], text)


def put(lines: Iterable[str], out: pathlib.Path | None = None) -> None:
    """Prints each line as it comes, or writes all to a file."""
    if out is not None:
        write_text(out, "".join(f"{line}\n" for line in lines))
        return
    for line in lines:
        print(line, flush=True)


def say_programs(programs: Collection[object]) -> None:
    """Reports on standard error how many programs a search compiled."""
    count = len(programs)
    print(f"used {count} compiled search program{'s' * (count != 1)}", file=sys.stderr)


def as_columns(number: int, candidate: Candidate, args: SearchOptions, *more: str) -> str:
    """Returns a text, preceded by the columns of ``--n-best`` and ``--scores``, and followed by more columns."""
    columns = [candidate.text, *more]
    if args.n_best > 1 or args.scores:
        columns.insert(0, f"{candidate.score:.4f}")
    if args.n_best > 1:
        columns.insert(0, str(number))
    return "\t".join(columns)


def as_data(candidate: Candidate, tokenizer: Tokenizer) -> dict[str, object]:
    """Returns a text as data for `as_json`, with the pieces and the scores of its tokens."""
    end = [tokenizer.special.eos] * (len(candidate.token_log_probs) - len(candidate.tokens))
    return {
        "text": candidate.text,
        "score": candidate.score,
        "log_prob": candidate.log_prob,
        "tokens": tokenizer.pieces([*candidate.tokens, *end]),
        "token_log_probs": candidate.token_log_probs,
    }


def as_json(data: Mapping[str, object]) -> str:
    """Returns data on one line; a number that JSON lacks, such as the logarithm of 0, is null.

    Numbers and arrays of NumPy and JAX become plain numbers and lists. The bytes of a file name that is not UTF-8 have
    JSON's own escapes, as in `as_indented_json`.
    """
    text = json.dumps(_plain(data), ensure_ascii=False).translate(_BREAKS)
    return text.encode(errors="backslashreplace").decode()


def as_indented_json(data: Mapping[str, object]) -> str:
    """Returns data on several lines of ASCII, with the same values as `as_json`."""
    return json.dumps(_plain(data), indent=2)


def _plain(data: object) -> object:
    if isinstance(data, Mapping):
        return {name: _plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if tolist := getattr(data, "tolist", None):  # of NumPy or JAX
        return _plain(tolist())
    return None if isinstance(data, float) and not math.isfinite(data) else data
