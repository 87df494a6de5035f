"""The attention of a network to an input as a web page: one file, without a server or a network, or in a notebook.

A page is a function of views: a `View` holds everything that it shows of an input. The script and the style, `page.js`
and `page.css`, are read as they are; a content security policy admits nothing else, so that no text can run.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxformer.errors import ConfigError, DataError
from jaxformer.files import plain, write_text
from jaxformer.inspection import attention_maps
from jaxformer.inspection.attention_maps import AttentionWeights
from jaxformer.inspection.beams import Tree
from jaxformer.reprs import brief
from jaxformer.tokenizers.segmentation import SPACE

ERROR = 5e-4
"""The largest error of a weight on a page that is not exact."""

MOST_WEIGHTS = 1 << 25
"""The largest number of weights of a page: 90 MB."""

MARK = "<!doctype html><!-- a page of jaxformer -->"
"""The beginning of each page, by which a file is known to be one."""

KINDS = {
    "encoder.self": ("Self-attention of the encoder", "Each part of the input looks at the input."),
    "decoder.self": ("Self-attention of the decoder", "Each token looks at itself and the tokens before it."),
    "decoder.cross": ("Cross-attention", "A row is the step that predicts a token, which looks at the input."),
    "grid": ("Attention over the grid", "Each position of the grid looks at all positions."),
}
"""The titles of attentions, and what a row of each is; other names stand for themselves."""


@dataclasses.dataclass(frozen=True)
class View:
    """Everything that is shown of one input. A notebook shows it as a page.

    Raises:
      ConfigError: the model has no attention.
    """

    title: str
    """The input: a text, or the name of an image."""
    attentions: Mapping[str, AttentionWeights]
    """The weights of all layers and heads, by the name of the attention, such as "decoder.cross"."""
    results: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The results for the input, such as its translation, by a name."""
    search: Tree = ()
    """The hypotheses of the beam search that found it."""

    __repr__ = brief

    def __post_init__(self) -> None:
        if not self.attentions:
            raise ConfigError("this model has no attention to show")

    @property
    def default(self) -> str:
        """The name of the attention that is shown first: cross-attention if there is any."""
        return "decoder.cross" if "decoder.cross" in self.attentions else next(iter(self.attentions))

    def _repr_html_(self) -> str:
        """Returns the page in a frame of its own, whose script cannot touch the notebook."""
        source = html.escape(page([self]))
        return f'<iframe sandbox="allow-scripts" width="100%" height="720" style="border:0" srcdoc="{source}"></iframe>'


def page(
    views: Sequence[View],
    *,
    title: str = "Attention",
    layer: int | None = None,
    head: int | None = None,
    exact: bool = False,
    form: str = "",
    against: Sequence[View] = (),
    names: tuple[str, str] = ("", ""),
) -> str:
    """Returns a page of views as HTML, which is whole in itself.

    Weights have 16 bits, with an error of at most `ERROR`; an attention function whose weights do not keep that gets
    32 bits, as all do if `exact`.

    Args:
      layer, head: the only layer and head to show, from 0, or -1 for the last; by default all.
      form: HTML to show above everything else.
      against: what another run, or another search, gives for the same inputs, to show beside each view.
      names: what the views, and those of `against`, are of.

    Raises:
      ConfigError: there is no such layer or head.
      DataError: there are more than `MOST_WEIGHTS`.
    """
    if not against:
        data = {"title": title, "views": [as_data(view, layer, head, exact) for view in views]}
        return document(data, title=title, form=form)
    held: list[dict[str, object]] = []
    for pair in zip(views, against, strict=True):
        for side, view in enumerate(pair):
            other = len(held) - 1 if side else len(held) + 1
            held.append(as_data(view, layer, head, exact) | {"run": names[side], "other": other})
    return document({"title": title, "views": held}, title=title, form=form, scripts=("page", "compare"))


def document(data: Mapping[str, object], *, title: str, form: str = "", scripts: Sequence[str] = ("page",)) -> str:
    """Returns a page as HTML, from what its scripts show.

    Args:
      data: what JSON can hold.
      form: HTML to show above everything else.
      scripts: the names of files of this package, which run in this order.
    """
    here = pathlib.Path(__file__)
    sources = [here.with_name(f"{name}.js").read_text("utf-8") for name in scripts]
    style = here.with_name("page.css").read_text("utf-8")
    allowed = " ".join(map(_hash, sources))
    policy = f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; form-action 'self'"
    whole = (
        f'{MARK}\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        f"<body>\n{form}<main><noscript>This page needs JavaScript.</noscript></main>\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        + "".join(f"<script>{source}</script>\n" for source in sources)
        + "</html>\n"
    )
    return whole.encode(errors="backslashreplace").decode()  # of a file name that is not UTF-8


def embedded(data: object) -> str:
    """Returns data as it stands in a page: as JSON without "<", so that no text can end its element."""
    return json.dumps(plain(data), separators=(",", ":")).replace("<", "\\u003c")


def save(source: str, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a page whole or not at all, and returns its path; see `check_replaceable`."""
    check_replaceable(pathlib.Path(path))
    write_text(path, source)
    return pathlib.Path(path)


def check_replaceable(path: pathlib.Path) -> None:
    """Checks that a file that a page would replace is a page, too."""
    if path.is_file() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(len(MARK)) != MARK.encode():
                raise ConfigError(f"{path} exists and is no page of jaxformer; name another file")


def as_data(view: View, layer: int | None = None, head: int | None = None, exact: bool = False) -> dict[str, object]:
    """Returns the data of a view in a page; see `page`."""
    number = sum(x.weights.size for x in view.attentions.values())
    if number > MOST_WEIGHTS and layer is None and head is None:
        raise DataError(
            f"a page would hold {number:,} weights, but may hold {MOST_WEIGHTS:,}; give --layer or --head, or less text"
        )
    kinds = sorted(view.attentions, key=lambda name: name != view.default)
    attentions = [_attention(name, view.attentions[name], layer, head, exact) for name in kinds]
    return {"title": view.title, "results": list(view.results.items()), "attentions": attentions, "search": view.search}


def _attention(
    name: str, attention: AttentionWeights, layer: int | None, head: int | None, exact: bool
) -> dict[str, object]:
    weights, first = attention.weights, []
    for axis, (kind, index) in enumerate((("layer", layer), ("head", head))):
        first.append(0)
        if index is not None:
            first[axis] = attention_maps.checked(kind, index, weights.shape[axis])
            weights = np.take(weights, [first[axis]], axis)
    title, note = KINDS.get(name, (name, ""))
    return {
        "name": name,
        "title": title,
        "note": note,
        "source": _side(attention.source, places=attention.patches is not None),
        "target": _side(attention.target, places=attention.patches is not None and name != "decoder.cross"),
        "shape": weights.shape,
        "first": first,
        **_encoded(weights, exact),
        "patches": attention.patches and _patches(attention.patches),
        "predictions": attention.predictions,
    }


def _side(pieces: Sequence[str], *, places: bool) -> dict[str, object]:
    if places:
        pieces = [piece.removeprefix(SPACE) for piece in pieces]
    groups = [(piece, [i]) for i, piece in enumerate(pieces)] if places else attention_maps.words(pieces)
    return {"pieces": pieces, "words": groups}


def _encoded(weights: np.ndarray, exact: bool) -> dict[str, object]:
    """Returns the weights as 16-bit integers, where 65,535 stands for 1, or as float32."""
    weights = np.asarray(weights, np.float32)
    with np.errstate(invalid="ignore"):
        short = np.clip(np.round(weights * 65535), 0, 65535).astype("<u2")
    is_short = not exact and bool((np.abs(short / np.float32(65535) - weights) <= ERROR).all())
    held = short if is_short else weights.astype("<f4")
    return {"bits": 16 if is_short else 32, "weights": base64.b64encode(held.tobytes()).decode()}


def _patches(patches: attention_maps.Patches) -> dict[str, object]:
    pixels = np.broadcast_to(patches.image, (*patches.image.shape[:2], 3))  # a single channel is gray
    return {"size": pixels.shape[:2], "grid": patches.grid, "pixels": base64.b64encode(pixels.tobytes()).decode()}


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
