"""``jaxformer inspect``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from jaxformer.cli.paths import local_path, sentence

EXAMPLES = """examples:
  jaxformer inspect runs/demo --source "The agreement on the European Economic Area was signed in August 1992."
  jaxformer inspect runs/en-de --source "A dog runs." --target "Ein Hund rennt." --layer 2 --out map.svg
  jaxformer inspect runs/demo --source "The old man sees the house." --grid --out heads.png
"""


def main(arguments: Sequence[str]) -> int:
    """Draws the cross-attention between a sentence and its translation."""
    from jaxformer.cli.evaluate import add_run_options, load

    parser = argparse.ArgumentParser(
        prog="jaxformer inspect",
        description="Draws which source word each target word looked at: a picture, and the same as text.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(parser)
    parser.add_argument("--source", type=sentence, required=True, help="a sentence")
    parser.add_argument("--target", type=sentence, help="a translation of it; default: the model's own")
    parser.add_argument("--layer", type=int, help="a decoder layer, from 0; with no --head, the mean of its heads")
    parser.add_argument("--head", type=int, help="a head, from 0; default: the head that aligns most words")
    parser.add_argument("--mean", action="store_true", help="the mean of all layers and heads")
    parser.add_argument("--grid", action="store_true", help="every head of every layer in one picture")
    parser.add_argument("--out", type=local_path, help="the picture (.png, .svg or .pdf); default: RUN/attention.png")
    known = parser.parse_args(arguments)
    if not known.source.strip():
        parser.error("--source is empty")
    from jaxformer.inspection import attention_maps, plots

    if known.out and known.out.suffix.lower() not in plots.SUFFIXES:
        parser.error(f"--out {known.out}: a picture is one of {', '.join(plots.SUFFIXES)}")
    _, _, translator = load(known)
    found = translator.attention(known.source, known.target)
    out = known.out or known.run / "attention.png"
    if known.grid:
        print(plots.head_grid(found, out))
        return 0
    layer, head = known.layer, known.head
    if layer is None and head is None and not known.mean:
        layer, head = attention_maps.most_aligned(found)
        print(f"decoder layer {layer}, head {head}, which aligns most words (see --layer, --head, --mean)")
    words = attention_maps.by_word(attention_maps.select(found, layer=layer, head=head))
    print(attention_maps.as_text(words))
    print(plots.attention_map(words, out))
    return 0
