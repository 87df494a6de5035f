"""Formulas as MathML, which browsers draw themselves: the site needs no script, no font and no network for them."""

from docutils.nodes import SkipNode
from latex2mathml.converter import convert


def inline(self, node) -> None:
    self.body.append(convert(node.astext()))
    raise SkipNode


def block(self, node) -> None:
    self.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise SkipNode


def setup(app) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
