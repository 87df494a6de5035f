"""The page of a test set: scores with intervals, the worst and best examples with their attention, and the training.

Like a page of attention, it is one file, without a server or a network: see `pages`. `report.js` adds its parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from jaxformer.errors import JaxformerError
from jaxformer.inspection import pages
from jaxformer.inspection.pages import View

MOST_BYTES = 6_000_000
"""The largest size of a page."""

SHARE_OF_TEXTS = 0.4
"""The share of these bytes that the texts of examples may take; attention takes the rest."""

NUM_VIEWS = 10
"""The number of the worst examples, and of the best, whose attention is on the page, if there is room."""

Interval = tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class ScoreRow:
    """A score with its interval and, if there is another run, that run's score and the difference from it."""

    name: str
    value: float
    interval: Interval = None
    decimals: int = 2
    signature: str = ""
    other: float | None = None
    difference: tuple[float, float, float, float] | None = None
    """The difference from the other run, its interval, and its p-value."""


@dataclasses.dataclass(frozen=True)
class LengthRow:
    """The scores of the examples whose lengths are in a range, both ends included."""

    first: int
    last: int
    number: int
    scores: Sequence[ScoreRow]


@dataclasses.dataclass(frozen=True)
class CorpusRows:
    """The scores of a corpus."""

    name: str
    scores: Sequence[ScoreRow]
    unit: str = "words"
    """The unit of lengths."""
    lengths: Sequence[LengthRow] = ()
    command: str = ""
    """The shell command that shows the attention of an example, to which its text is added."""


@dataclasses.dataclass(frozen=True)
class Example:
    """An example of a corpus: its texts and numbers, and how good the result for it is."""

    corpus: int
    number: int
    texts: Mapping[str, str]
    """Texts by name; the first one is the input."""
    numbers: Mapping[str, float]
    rank: float
    """The number by which examples are ordered, higher for better ones."""
    gain: float | None = None
    """The rank, less that in the other run."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the page shows besides attention."""

    corpora: Sequence[CorpusRows]
    examples: Sequence[Example] = ()
    ranked_by: str = ""
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[int, float]]] = dataclasses.field(default_factory=dict)
    """The points (step, value) of each curve, by its name; those of losses are drawn together."""
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The seconds of each part of the training."""
    other: str = ""
    """The name of the other run."""


def page(
    report: Report, look: Callable[[Example], View | None], *, title: str = "Report", most_bytes: int = MOST_BYTES
) -> str:
    """Returns the page as HTML of at most `most_bytes`, as long as the scores themselves leave room.

    Args:
      look: function that returns the attention of an example, or None; called for the `NUM_VIEWS` worst and best.
        An example for which it raises a `JaxformerError`, such as one that is too long, has no attention on the page.
    """
    held = [*_within(most_bytes * SHARE_OF_TEXTS, report.examples)]
    about = dataclasses.asdict(dataclasses.replace(report, examples=held))
    about |= {"total": len(report.examples), "limit": most_bytes, "wanted": 0}
    views: list[dict[str, object]] = []
    whole = lambda: pages.document(
        {"title": title, "views": views, "report": about}, title=title, scripts=("page", "compare", "report")
    )
    left = most_bytes - len(whole().encode())
    for place in _ends(len(held), NUM_VIEWS):
        try:
            view = look(held[place])
            data = None if view is None else pages.as_data(view)
        except JaxformerError:
            continue
        if data is None:
            continue
        about["wanted"] += 1
        size = len(pages.embedded(data)) + len(',"view":00,')
        if size <= left:
            left -= size
            about["examples"][place]["view"] = len(views)
            views.append(data)
    return whole()


def _within(most_bytes: float, examples: Sequence[Example]) -> Iterator[Example]:
    """Yields as many examples as fit, worst first; the worst and the best of all have precedence."""
    order = sorted(range(len(examples)), key=lambda i: (examples[i].rank, i))
    kept = set[int]()
    for place in _ends(len(order), len(order)):
        most_bytes -= len(pages.embedded(dataclasses.asdict(examples[order[place]]))) + 1
        if most_bytes < 0:
            break
        kept.add(order[place])
    return (examples[i] for i in order if i in kept)


def _ends(number: int, most: int) -> Iterable[int]:
    """Yields the first and the last of some places in turn, `most` of each, and none twice.

    >>> list(_ends(5, 2)), list(_ends(3, 3))
    ([0, 4, 1, 3], [0, 2, 1])
    """
    return dict.fromkeys(place for i in range(min(most, number)) for place in (i, number - 1 - i))
