"""The lines that commands print or write: results of a search as columns or as JSON."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxformer.files import plain, write_text

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


def as_dict(value: object) -> Any:
    """Returns a dataclass as a dict of the fields that its repr shows; any other value as it is."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    return {field.name: as_dict(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr}


def put(lines: Iterable[str], out: pathlib.Path | None = None) -> None:
    """Prints each line as it comes, or writes all to a file."""
    if out is not None:
        write_text(out, "".join(f"{line}\n" for line in lines))
        return
    for line in lines:
        print(line, flush=True)


def save_besides(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> bool:
    """Saves a result that was already printed; if it cannot be written, there is a warning instead of an error.

    A symbolic link is replaced, not followed: in someone else's run it may point to any of this user's files. Returns
    True if it was saved.
    """
    try:
        if path.is_symlink():
            path.unlink()
        write(path)
    except OSError as error:
        print(f"warning: {path} is not saved: {error.strerror or error}", file=sys.stderr)
        return False
    return True


def say_programs(programs: Collection[object]) -> None:
    """Reports on standard error how many programs a search compiled."""
    count = len(programs)
    print(f"used {count} compiled search program{'s' * (count != 1)}", file=sys.stderr)


def texts(
    number: int,
    fields: Mapping[str, object],
    best: Sequence[Candidate],
    args: SearchOptions,
    tokenizer: Tokenizer,
    *,
    name: str,
    more: Sequence[Mapping[str, str]] = (),
) -> Iterator[str]:
    """Yields the lines of the best texts for one input: columns for each, or one JSON object with all.

    The columns of ``--n-best`` and ``--scores`` precede a text. JSON has the pieces and scores of its tokens.

    Args:
      fields: the input, for JSON.
      name: the name of the texts in JSON.
      more: further columns for each text.
    """
    pairs = list(zip(best, more or [{}] * len(best), strict=True))
    if args.json:
        data = [{**_as_data(text, tokenizer), **added} for text, added in pairs]
        yield as_json({"number": number, **fields, name: data})
        return
    for text, added in pairs:
        columns = [text.text, *added.values()]
        if args.n_best > 1 or args.scores:
            columns.insert(0, f"{text.score:.4f}")
        if args.n_best > 1:
            columns.insert(0, str(number))
        yield "\t".join(columns)


def _as_data(candidate: Candidate, tokenizer: Tokenizer) -> dict[str, object]:
    end = [tokenizer.special.eos] * (len(candidate.token_log_probs) - len(candidate.tokens))
    return {
        "text": candidate.text,
        "score": candidate.score,
        "log_prob": candidate.log_prob,
        "tokens": tokenizer.pieces([*candidate.tokens, *end]),
        "token_log_probs": candidate.token_log_probs,
    }


def as_json(data: Mapping[str, object]) -> str:
    """Returns data on one line, as `files.plain`; bytes of a file name that is not UTF-8 have JSON's own escapes."""
    text = json.dumps(plain(data), ensure_ascii=False).translate(_BREAKS)
    return text.encode(errors="backslashreplace").decode()


def as_indented_json(data: Mapping[str, object]) -> str:
    """Returns data on several lines of ASCII, with the same values as `as_json`."""
    return json.dumps(plain(data), indent=2)
