"""A grammar of sentences about boxes and towers: from a sentence to a function that decides if it is true of a picture.

It covers the common forms of NLVR and nothing else: a sentence that it cannot read to the end has no truth. Where
people use a phrase in two ways, the wider one counts: "two towers" are at least two, and "above" is anywhere above.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from experiments.captioning.boxes import COLORS, Box, Thing, is_tower

Count = Callable[[int], bool]
OfThing = Callable[[Thing], bool]
OfBox = Callable[[Box], bool]
Truth = Callable[[Sequence[Box]], bool]
FoundT = TypeVar("FoundT")

NUMBERS = {word: i for i, word in enumerate("zero one two three four five six seven eight nine".split())}
NUMBERS |= {str(i): i for i in range(10)}
SPELLING = (
    (r"[.,]", " "),
    (r"\ba?t ?least\b", "at least"),
    (r"^t least\b", "at least"),
    (r"^ll\b", "all"),
    (r"\bablue\b", "a blue"),
    (r"\btraingle", "triangle"),
    (r"\btocuhing\b", "touching"),
    (r"\bcirlce", "circle"),
    (r"\bittem", "item"),
    (r"\bblccks\b", "blocks"),
    (r"\bexactly on\b", "exactly one"),
    (r"\bthan contain", "that contain"),
    (r"\bgr[ae]y (box|square)(es|s)?\b", "box"),
    (r"\b(objects?|things?)\b", "item"),
    (r"\bbox(es)?\b", "box"),
    (r"\bcolou?r\b", "color"),
    (r"\bcolou?rs\b", "color"),
    (r"\b(tower|block|item|triangle|square|circle|corner)s\b", r"\1"),
    (r"\b(are|be)\b", "is"),
    (r"\b(have|contains?)\b", "has"),
    (r"\bhaving\b", "with"),
    (r"\b(which|that|and it|it) (has|with)\b", "with"),
    (r"\b(over|above|on top of|on)\b", "above"),
    (r"\b(below|bellow|under|beneath)\b", "below"),
    (r"\b(bottom|base) (edge|base|wall)\b", "base"),
    (r"\bbottom\b", "base"),
    (r"\b(wall|side)\b", "edge"),
    (r"\b(closely|stacked together|in it|of it)\b", " "),
)
COLORS_OF_ALL = len(COLORS)


def truth(sentence: str) -> Truth | None:
    """Returns a function that decides if a sentence is true of the boxes of a picture; None if it has no parse."""
    text = sentence.lower()
    for wrong, right in SPELLING:
        text = re.sub(wrong, right, text)
    try:
        parser = _Parser(text.split())
        found = parser.sentence()
        parser.end()
    except _NoParse:
        return None
    return found


class _NoParse(Exception):
    """The words do not fit the grammar."""


class _Parser:
    """Recursive descent over the words of a sentence."""

    def __init__(self, words: Sequence[str]):
        self.words, self.place = words, 0

    def accept(self, phrases: str) -> str:
        """Skips the first of the phrases (with "|" between them) that comes next; returns it, or an empty text."""
        for phrase in phrases.split("|"):
            words = phrase.split()
            if self.words[self.place : self.place + len(words)] == words:
                self.place += len(words)
                return phrase
        return ""

    def expect(self, phrases: str) -> str:
        if not (found := self.accept(phrases)):
            raise _NoParse
        return found

    def end(self) -> None:
        if self.place < len(self.words):
            raise _NoParse

    def attempt(self, *rules: Callable[[], FoundT]) -> FoundT:
        """Returns the result of the first rule that fits, from here on."""
        start = self.place
        for rule in rules:
            self.place = start
            try:
                return rule()
            except _NoParse:
                continue
        raise _NoParse

    def sentence(self) -> Truth:
        return self.attempt(self.universal, self.none, self.the_tower, self.some_units, self.per_box, self.some_things)

    def universal(self) -> Truth:
        """Reads "each box has a blue item"."""
        self.expect("each|every|all 3|all three|all the|all")
        unit = self.unit()
        self.expect("has")
        of_box = self.clauses()
        return lambda boxes: all(unit(box) and of_box(box) for box in boxes)

    def none(self) -> Truth:
        """Reads "none of the blue circles are touching any edge"."""
        self.expect("none of the")
        of_thing = self.thing()
        self.expect("is")
        of_place = self.touching()
        self.end()
        return lambda boxes: not any(of_thing(x) and of_place(x) for box in boxes for x in box)

    def the_tower(self) -> Truth:
        """Reads "the tower with four blocks has a blue block at the top"."""
        self.expect("the tower with")
        number = self.quantity()
        self.expect("block has")
        of_box = self.clauses()
        self.end()
        return lambda boxes: any(is_tower(box) and number(len(box)) and of_box(box) for box in boxes)

    def some_units(self) -> Truth:
        """Reads "there is at least one black tower with exactly two blocks" and "one of the boxes has 2 items"."""
        self.accept("there is")
        number = self.quantity()
        self.accept("of the three|of the|of")
        of_color = self.colors()
        size = self.attempt(self.sized, lambda: None)
        unit = self.unit()
        if of_color is None and size is None:
            self.expect("with|has")
            of_box = self.clauses()
        else:
            of_box = self.clauses() if self.accept("with|has") else lambda box: True
        self.end()

        def fits(box: Box) -> bool:
            colored = of_color is None or all(of_color(thing) for thing in box)
            return unit(box) and colored and (size is None or size == len(box)) and of_box(box)

        return lambda boxes: number(sum(map(fits, boxes)))

    def sized(self) -> int:
        """Reads "three blocks" before a tower."""
        number = self.number()
        self.expect("block")
        return number

    def per_box(self) -> Truth:
        """Reads "there is at least 1 blue item in every box"."""
        self.expect("there is")
        number = self.quantity()
        of_thing = self.thing()
        self.expect("in each box|in every box")
        self.end()
        return lambda boxes: all(number(sum(map(of_thing, box))) for box in boxes)

    def some_things(self) -> Truth:
        """Reads "there are exactly two black circles touching the edge"."""
        self.accept("there is")
        if (all_of := self.attempt(self.listed, lambda: None)) is not None:
            return all_of
        number = self.quantity()
        of_thing = self.thing()
        if self.accept("as the|at the|as"):
            return self.of_towers(number, of_thing)
        if relation := self.accept("above|below"):
            return self.related(number, of_thing, relation)
        of_place = self.attempt(self.touching, lambda: lambda thing: True)
        self.end()
        return lambda boxes: number(sum(of_thing(x) and of_place(x) for box in boxes for x in box))

    def listed(self) -> Truth:
        """Reads "1 blue circle and 1 yellow circle", anywhere."""
        parts = [self.counted()]
        while self.accept("and"):
            parts.append(self.counted())
        if len(parts) < 2:
            raise _NoParse
        self.end()
        return lambda boxes: all(part(tuple(x for box in boxes for x in box)) for part in parts)

    def of_towers(self, number: Count, of_thing: OfThing) -> Truth:
        """Reads "(two blue blocks as the) base of a tower with at least two blocks"; towers or blocks are counted."""
        end = self.expect("top|base")
        self.accept("of a")
        of_box: OfBox = lambda box: True
        if self.accept("tower") and self.accept("with"):
            of_box = self.clauses()
        self.end()

        def blocks(box: Box) -> int:
            order = box if end == "base" else box[::-1]
            first = next((i for i, thing in enumerate(order) if not of_thing(thing)), len(order))
            return first if is_tower(box) and of_box(box) else 0

        def true(boxes: Sequence[Box]) -> bool:
            found = [blocks(box) for box in boxes]
            return number(sum(n > 0 for n in found)) or (number(max(found)) and not number(0))

        return true

    def related(self, number: Count, of_thing: OfThing, relation: str) -> Truth:
        """Reads "(a blue block above) a black block": in one box."""
        self.accept("a|an|the|one")
        other = self.thing()
        self.end()
        return lambda boxes: number(
            sum(any(other(y) for y in _beyond(box, x, relation)) for box in boxes for x in box if of_thing(x))
        )

    def unit(self) -> OfBox:
        if self.accept("tower"):
            return is_tower
        self.expect("box")
        return lambda box: True

    def clauses(self) -> OfBox:
        """Reads what boxes have: "a yellow circle, at least two black items and a blue one"."""
        parts = [self.clause()]
        while self.place < len(self.words) and self.words[self.place] != "is":
            self.accept("and with|with|and")
            parts.append(self.clause())
        return lambda box: all(part(box) for part in parts)

    def clause(self) -> OfBox:
        return self.attempt(
            self.variety, self.only, self.of_colors, self.stacked, self.at_end, self.placed, self.counted
        )

    def variety(self) -> OfBox:
        """Reads "3 items of 2 different colors", "blocks of all three colors", "items of only one color"."""
        total: Count = self.attempt(self.total, lambda: lambda number: True)
        self.accept("of")
        self.accept("only|exactly|the")
        if self.accept("same color"):
            colors = 1
        elif self.accept("all 3 different color|all 3 color|all three color|all the three color"):
            colors = COLORS_OF_ALL
        else:
            colors = self.number()
            if not self.accept("different color") and not (colors == 1 and self.accept("color")):
                raise _NoParse
        return lambda box: total(len(box)) and len({thing.color for thing in box}) == colors

    def total(self) -> Count:
        """Reads the number of items before "of ... colors"."""
        number = self.attempt(self.quantity, lambda: lambda n: True)
        self.accept("the")
        self.expect("item|block")
        return number

    def only(self) -> OfBox:
        """Reads "only blue and yellow blocks" and "only black items"."""
        self.expect("only")
        of_color = self.colors()
        self.expect("item|block")
        if of_color is None:
            raise _NoParse
        return lambda box: all(of_color(thing) for thing in box)

    def of_colors(self) -> OfBox:
        """Reads "blocks of black color only" and "4 items of only black and blue color"."""
        total: Count = self.attempt(self.total, lambda: lambda number: True)
        self.expect("of")
        first = self.accept("only")
        of_color = self.colors()
        self.expect("color")
        if of_color is None or not (self.accept("only") or first):
            raise _NoParse
        return lambda box: total(len(box)) and all(of_color(thing) for thing in box)

    def stacked(self) -> OfBox:
        """Reads "a yellow block above a blue block"."""
        self.expect("a|an|one|1")
        of_thing = self.thing()
        relation = self.expect("above|below")
        self.expect("a|an|one|1|the")
        other = self.thing()
        self.accept("at the top")
        return lambda box: any(other(y) for x in box if of_thing(x) for y in _beyond(box, x, relation))

    def at_end(self) -> OfBox:
        """Reads "2 blue blocks at the base" and "a black block in the middle"."""
        number = self.attempt(self.number, lambda: 1 if self.expect("a|an|the") else 0)
        of_thing = self.thing()
        self.expect("at the|at|as the|as|in the")
        end = self.expect("base|top|middle")
        if end == "middle":
            return lambda box: any(map(of_thing, box[1:-1]))
        order = 1 if end == "base" else -1
        return lambda box: len(box) >= number and all(map(of_thing, box[::order][:number]))

    def placed(self) -> OfBox:
        """Reads "a triangle touching a corner"."""
        number = self.quantity()
        of_thing = self.thing()
        of_place = self.touching()
        return lambda box: number(sum(of_thing(x) and of_place(x) for x in box))

    def counted(self) -> OfBox:
        """Reads "at least two black items", "three blocks", "no blue squares"."""
        number = self.quantity()
        of_thing = self.thing()
        return lambda box: number(sum(map(of_thing, box)))

    def touching(self) -> OfThing:
        """Reads "not touching any edge" and "touching right edge of a box"."""
        negative = bool(self.accept("not"))
        self.expect("touching")
        self.accept("the|a|any")
        wall = self.expect("edge|corner|base|right edge")
        self.accept("of a box")
        if wall == "corner":
            found: OfThing = lambda x: any(x.touches(a) and x.touches(b) for a in ("top", "bottom") for b in _SIDES)
        elif wall == "edge":
            found = lambda x: any(x.touches(name) for name in ("top", "bottom", *_SIDES))
        else:
            found = lambda x: x.touches("bottom" if wall == "base" else "right")
        return lambda x: found(x) != negative

    def thing(self) -> OfThing:
        """Reads "black or blue circle"."""
        of_color = self.colors()
        noun = self.expect("block|item|triangle|square|circle")
        shape = {"block": "square", "item": ""}.get(noun, noun)
        return lambda x: (not shape or x.shape == shape) and (of_color is None or of_color(x))

    def colors(self) -> OfThing | None:
        """Reads colors with "and" or "or" between them; None without a color."""
        self.accept("either")
        found = [self.accept("|".join(COLORS))]
        while found[0] and self.attempt(self.another, lambda: ""):
            found.append(self.words[self.place - 1])
        return (lambda x: x.color in found) if found[0] else None

    def another(self) -> str:
        self.expect("and|or")
        return self.expect("|".join(COLORS))

    def quantity(self) -> Count:
        """Reads "at least two", "exactly 1", "no" or "a"; a bare number is a minimum."""
        how = self.accept("at least|at most|exactly|only|more than|less than|just")
        if not how and self.accept("no"):
            return lambda n: n == 0
        number = self.attempt(self.number, lambda: 1 if self.expect("a|an|the") else 0)
        return {
            "": lambda n: n >= number,
            "at least": lambda n: n >= number,
            "at most": lambda n: n <= number,
            "more than": lambda n: n > number,
            "less than": lambda n: n < number,
        }.get(how, lambda n: n == number)

    def number(self) -> int:
        return NUMBERS[self.expect("|".join(NUMBERS))]


_SIDES = ("left", "right")


def _beyond(box: Box, thing: Thing, relation: str) -> list[Thing]:
    """Returns the things of a box that a thing is above, or below."""
    if relation == "above":
        return [other for other in box if other.top >= thing.bottom - 1]
    return [other for other in box if other.bottom <= thing.top + 1]
