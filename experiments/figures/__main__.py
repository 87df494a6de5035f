"""Draws the figures and tables of the five documents that docs/tour walks: one picture each, computed by the package.

python -m experiments.figures --out runs/figures                             # all of them: a minute and a half
python -m experiments.figures --out runs/figures --only 17.13-positions      # some
python -m experiments.figures --out runs/figures --more darker               # maps in which more weight is darker
python -m experiments.figures --smoke --out runs/smoke                       # without trained networks
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

from matplotlib.figure import Figure

from experiments import command
from experiments.figures import attention, blocks, feed_forward, positions, tables, trained
from experiments.pictures import save
from jaxformer import masks
from jaxformer.files import write_text
from jaxformer.inspection import plots

START = ("[START]", "Big", "cat")
REVERSED = {"queries": ("Q3", "Q2", "Q1"), "inputs": ("X3", "X2", "X1"), "marked": 2}


def figures(more: plots.Shade, steps: int | None = None) -> dict[str, Callable[[], Figure]]:
    """Returns functions that draw the figures, by name: that of the document, and what is on it.

    Args:
      more: "darker" or "brighter" for larger weights, in maps between words.
      steps: the training steps of the trained networks; as many as they need by default.
    """
    given = {} if steps is None else {"steps": steps}
    masked = functools.partial(attention.worked_layer, mask=masks.causal())
    return {
        "9.1-xor": lambda: feed_forward.draw_xor(feed_forward.xor()),
        "9.2-9.3-lines": lambda: feed_forward.draw_lines(feed_forward.lines()),
        "9.4-density": lambda: feed_forward.draw_density_lift(feed_forward.density_lift()),
        "9.5-two-spaces": lambda: feed_forward.draw_two_spaces(feed_forward.two_spaces()),
        "9.5-attention-matrix": lambda: plots.attention_map(attention.the_cat_sat(), more=more),
        "masks": lambda: attention.draw_masks(attention.masks_of()),
        "relu_vs_gelu": lambda: feed_forward.draw_relu_and_gelu(feed_forward.relu_and_gelu()),
        "17.3-attention": lambda: blocks.draw(blocks.recurrent_attention()[0]),
        "17.5-alignment": lambda: trained.draw_alignment(trained.alignment(**given), more),
        "17.7-captions": lambda: trained.draw_captions(trained.captions(**given)),
        "17.10-layer": lambda: attention.draw_layer(attention.cross_layer()),
        "17.11-self-attention": lambda: attention.draw_layer(attention.worked_layer()),
        "17.12-permuted": lambda: attention.draw_layer(attention.worked_layer((2, 1, 0)), **REVERSED),
        "17.13-positions": lambda: positions.draw_heat_map(positions.heat_map()),
        "17.14-sine-and-cosine": lambda: positions.draw_sine_and_cosine(positions.sine_and_cosine()),
        "17.15-comparison": lambda: positions.draw_comparison(positions.comparison()),
        "17.16-masked": lambda: attention.draw_layer(masked(), queries=START, inputs=START),
        "17.17-heads": lambda: plots.head_grid(attention.heads(), more=more),
        "17.18-pixels": lambda: attention.draw_pixels(attention.pixels()),
        "17.19-paths": lambda: attention.draw_paths(attention.paths()),
        "17.20-transformer": lambda: blocks.draw(blocks.transformer()[0]),
        "17.22-block": lambda: blocks.draw(blocks.modern_block()[0]),
    }


TABLES = {"17.1": tables.positions_table, "17.2": tables.costs_table, "17.24": tables.models_table}


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("figures", __doc__, out="the folder of the pictures, and of report.md with the tables")
    parser.add_argument("--only", nargs="+", choices=figures("darker"), metavar="NAME", help="some figures, no tables")
    parser.add_argument(
        "--more", choices=plots.COLORS, default="brighter", help="the look of a larger weight in maps between words"
    )
    return command.exit_code(run, parser.parse_args(arguments))


def run(args: argparse.Namespace) -> None:
    """Draws the figures, and writes the tables into report.md."""
    drawings = figures(args.more, 2 if args.smoke else None)
    for name in args.only or drawings:
        save(drawings[name](), args.out / f"{name}.png")
        print(f"wrote {args.out / name}.png", flush=True)
    if not args.only:
        text = "\n\n".join(f"## Table {name}\n\n{make()}" for name, make in TABLES.items())
        write_text(args.out / "report.md", f"# Tables of the documents\n\n{text}\n")


if __name__ == "__main__":
    command.script(main)
