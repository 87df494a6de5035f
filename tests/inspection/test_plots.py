"""Pictures: written as a whole, in the format of the suffix, with the given values."""

import dataclasses
import io
import os
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxformer.inspection import plots
from jaxformer.inspection.attention_maps import AttentionMap
from tests.inspection.small import Pieces, rows

MAP = AttentionMap(("The", "white", "house", "&"), ("La", "maison", "blanche"), rows(0, 3, 4))
HEADS = Pieces(("▁The", "▁white", "▁house"), ("▁La", "▁maison"), rows(0, 2, 3, 2, 3))
LOG = [{"step": i, "loss": 5 / i} for i in range(1, 40)] + [
    {"step": 20, "validation_loss": 1.0, "validation_bleu": 10.0},
    {"step": 39, "validation_loss": 0.5, "validation_bleu": 20.0},
]


def drawn(figure):
    """Draws a figure, so that warnings of matplotlib, which are errors in tests, appear; returns it."""
    figure.canvas.draw()
    return figure


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        ("png", b"\x89PNG"),
        pytest.param("svg", b"<?xml", marks=pytest.mark.full),
        pytest.param("pdf", b"%PDF", marks=pytest.mark.full),
    ],
)
def test_the_suffix_is_the_format(tmp_path, suffix, start):
    path = tmp_path / "new" / f"map.{suffix}"
    assert plots.save(plots.attention_map(MAP), path) == path
    assert path.read_bytes().startswith(start)
    assert list(path.parent.iterdir()) == [path]


def test_latex_is_never_run(tmp_path, monkeypatch):
    """A matplotlibrc may enable it; words such as "&" would then be errors."""
    monkeypatch.setattr(subprocess, "check_output", lambda *words, **_: pytest.fail(f"runs {words}"))
    with matplotlib.rc_context({"text.usetex": True}):
        plots.save(plots.attention_map(MAP, title="100 %"), tmp_path / "map.png")
        assert plots.loss_curves(LOG, title="a_b")._repr_png_().startswith(b"\x89PNG")


def test_a_map_shows_words_weights_and_maxima():
    axes = drawn(plots.attention_map(MAP, title="where it looked")).axes[0]
    assert axes.get_title() == "where it looked"
    assert [label.get_text() for label in axes.get_xticklabels()] == list(MAP.source)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(MAP.target)
    np.testing.assert_array_equal(axes.images[0].get_array(), MAP.weights)
    np.testing.assert_array_equal(axes.collections[0].get_offsets()[:, 0], MAP.weights.argmax(1))
    assert axes.images[0].get_clim() == (0, pytest.approx(0.1 * np.ceil(MAP.weights.max() * 10)))


def test_more_weight_is_darker_or_brighter():
    """By the mean of the colors of a large and a small weight, in single maps and in grids."""
    for more, order in (("darker", 1), ("brighter", -1)):
        for figure in (plots.attention_map(MAP, more=more), plots.head_grid(HEADS, more=more)):
            small, large = (np.mean(figure.axes[0].images[0].cmap(share)[:3]) for share in (0.1, 0.9))
            assert order * (small - large) > 0.3


def test_the_backend_of_a_notebook_does_not_change(tmp_path):
    """Drawing to a file does not use pyplot."""
    program = """if True:
        import pathlib, sys, matplotlib
        from jaxformer.inspection import plots
        plots.save(plots.loss_curves([{"step": 1, "loss": 1.0}]), pathlib.Path("curves.png"))
        print(matplotlib.get_backend(), "matplotlib.pyplot" in sys.modules)
    """
    command, env = [sys.executable, "-c", program], {**os.environ, "MPLBACKEND": "svg"}
    done = subprocess.run(command, cwd=tmp_path, env=env, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "svg False\n")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_maps_are_drawn_over_their_images():
    """Over the whole image, gray below the colors; an image without maps is alone."""
    pictures = [np.full((8, 6, channels), 40 * channels, np.uint8) for channels in (1, 3)]
    maps = [{"last": rows(i, 4, 3), "rollout": rows(i + 9, 2, 2)} for i in range(2)]
    figure = drawn(plots.image_maps(pictures, maps, titles=["cat 90%", "dog 80%"]))
    grid = np.array(figure.axes).reshape(2, 3)
    for row, picture, found, title in zip(grid, pictures, maps, ("cat 90%", "dog 80%"), strict=True):
        assert [axes.get_title() for axes in row] == [title, "last", "rollout"]
        assert row[0].images[0].get_array().shape == (8, 6, 3)
        for axes, weights in zip(row[1:], found.values(), strict=True):
            below, above = axes.images
            np.testing.assert_array_equal(below.get_array(), picture.mean(2))
            np.testing.assert_array_equal(above.get_array(), weights)
            assert above.get_extent() == [-0.5, 5.5, 7.5, -0.5]
            assert above.get_clim() == (0, weights.max())
    lines = "an automobile:\nautomobile 100%"  # each is short enough, so nothing is cut
    alone = drawn(plots.image_maps(pictures[:1], [{}], titles=[lines]))
    assert [axes.get_title() for axes in alone.axes] == [lines]


def test_a_sheet_shows_the_picture_for_each_word():
    """I7: five words a row beside their picture; the weights of each lie over the whole picture, row by row."""
    pictures = [np.full((8, 12, 3), 40 * i, np.uint8) for i in (1, 2)]
    words = [("a", "red", "ball", "and", "a", "box"), ("a", "dog")]
    captions = [AttentionMap(tuple("abcdef"), own, rows(i, len(own), 6)) for i, own in enumerate(words)]
    figure = drawn(plots.caption_sheet(pictures, captions, grid=(2, 3), titles=["one.png", "two.png"]))
    grid = np.array(figure.axes).reshape(3, 6)
    titles = [[axes.get_title() for axes in row] for row in grid]
    assert titles == [["one.png", *words[0][:5]], ["", "box", *[""] * 4], ["two.png", *words[1], *[""] * 3]]
    for axes, weights in ((grid[0, 2], captions[0].weights[1]), (grid[1, 1], captions[0].weights[5])):
        np.testing.assert_array_equal(axes.images[1].get_array(), weights.reshape(2, 3))
        assert axes.images[1].get_extent() == [-0.5, 11.5, 7.5, -0.5]
    assert not grid[1, 0].images
    np.testing.assert_array_equal(grid[2, 0].images[0].get_array(), pictures[1])


def test_dollar_signs_are_not_a_formula(tmp_path):
    """A formula between dollar signs would be set in italics, or fail; words are drawn unchanged."""
    words = ("$x$", "$^$", r"\\$\\frac$")
    map_path, curves = tmp_path / "map.svg", tmp_path / "curves.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text, not as outlines
        plots.save(plots.attention_map(AttentionMap(words, words, rows(0, 3, 3)), title="a $y$ b"), map_path)
        plots.save(plots.loss_curves(LOG, title="$z$"), curves)
    drawn = map_path.read_text()
    assert all(drawn.count(f">{word}<") == 2 for word in words)
    assert ">a $y$ b<" in drawn
    assert ">$z$<" in curves.read_text()


def test_characters_of_no_installed_font_are_named(monkeypatch):
    """Without a warning, which the tests turn into an error, and without an empty box."""
    default = [font for font in plots.font_manager.fontManager.ttflist if font.name == plots.DEFAULT_FONT]
    monkeypatch.setattr(plots.font_manager.fontManager, "ttflist", default)
    words = ("a cat", "\N{FOX FACE}", "\u732b", "\t", "\N{IDEOGRAPHIC SPACE}")
    figure = drawn(plots.attention_map(AttentionMap(words, words, rows(0, 5, 5))))
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == ["a cat", "U+1F98A", "U+732B", "U+0009", "U+3000"]


@pytest.mark.parametrize(
    ("letter", "draw"),
    [
        ("\N{REPLACEMENT CHARACTER}", "map"),
        ("\N{REPLACEMENT CHARACTER}", "grid"),
        pytest.param("\u732b", "map", marks=pytest.mark.full),
        ("\u732b", "grid"),
    ],
)
def test_long_words_fit(monkeypatch, letter, draw):
    """Otherwise matplotlib gives up the layout with a warning, which the tests turn into an error."""
    default = [font for font in plots.font_manager.fontManager.ttflist if font.name == plots.DEFAULT_FONT]
    monkeypatch.setattr(plots.font_manager.fontManager, "ttflist", default)
    word = letter * 100
    if draw == "map":
        figure = drawn(plots.attention_map(AttentionMap(("a", word), (word,), rows(0, 1, 2))))
    else:
        figure = drawn(plots.head_grid(Pieces(("a", word), (word,), rows(0, 1, 1, 1, 2))))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        f"{word[:19]}…" if letter != "\u732b" else "U+732BU+732BU+732BU…"
    ]


def test_a_map_of_a_text_is_drawn_smaller(tmp_path, monkeypatch):
    """Matplotlib refuses pictures of more than 65,536 pixels."""
    monkeypatch.setattr(plots, "LARGEST_SIDE", 300)
    words = tuple(f"w{i}" for i in range(20))
    figure = plots.attention_map(AttentionMap(words, ("a",), rows(0, 1, 20)))
    plots.save(figure, tmp_path / "map.png")
    assert max(plt.imread(tmp_path / "map.png").shape) == pytest.approx(300, abs=1)
    assert max(plt.imread(io.BytesIO(figure._repr_png_())).shape) == pytest.approx(300, abs=1)


def test_a_font_that_holds_a_character_is_used():
    """DejaVu Sans lacks some characters of STIX, which comes with matplotlib too."""
    files = [plots.font_manager.findfont(name) for name in ("STIXGeneral", plots.DEFAULT_FONT)]
    character = min(plots._characters(files[0]) - plots._characters(files[1]))
    words = ("cat", character)
    figure = drawn(plots.attention_map(AttentionMap(words, words, rows(0, 2, 2))))
    label = figure.axes[0].get_yticklabels()[1]
    assert label.get_text() == character
    assert len(label.get_fontfamily()) == 2


def test_a_font_that_was_removed_is_not_used(tmp_path, monkeypatch):
    """Matplotlib keeps its list of fonts in a file, and finds later that one is gone."""
    fonts = plots.font_manager.fontManager.ttflist
    gone = dataclasses.replace(fonts[0], fname=str(tmp_path / "gone.ttf"), name="Gone")
    default = [font for font in fonts if font.name == plots.DEFAULT_FONT]
    monkeypatch.setattr(plots.font_manager.fontManager, "ttflist", [gone, *default])
    figure = drawn(plots.attention_map(AttentionMap(("\u732b",), ("a",), rows(0, 1, 1))))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["U+732B"]


def test_a_single_step_is_drawn():
    """A line through one point is invisible, and its entry in the legend would have no line."""
    assert plots.loss_curves(LOG[:1]).axes[0].lines[-1].get_marker() == "o"
    assert plots.loss_curves(LOG).axes[0].lines[1].get_marker() == "None"


def test_a_grid_shows_every_head():
    figure = drawn(plots.head_grid(HEADS))
    shown = [axes for axes in figure.axes if axes.get_xlabel()]
    assert [axes.get_xlabel() for axes in shown] == [f"layer {n}, head {h}" for n in range(2) for h in range(3)]
    for axes, weights in zip(shown, HEADS.weights.reshape(6, 2, 3), strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), weights)


def test_curves_show_every_series():
    left, right = drawn(plots.loss_curves(LOG, title="run")).axes
    assert left.get_title() == "run"
    assert left.get_ylabel() == "loss in nats"  # per token, image or text
    raw, smooth, validation = left.lines[:3]
    assert len(raw.get_xdata()) == len(smooth.get_xdata()) == 39
    np.testing.assert_array_equal(validation.get_xydata(), [[20, 1.0], [39, 0.5]])
    np.testing.assert_array_equal(right.lines[0].get_xydata(), [[20, 10.0], [39, 20.0]])


def test_a_negative_objective_is_shown():
    """A captioner with hard attention has one, because the entropy of its weights is subtracted."""
    logs = [{"step": i, "loss": 1.0 - i} for i in range(4)], LOG
    below, above = (plots.loss_curves(log).axes[0].get_ylim() for log in logs)
    assert below[0] <= -2 < 1 <= below[1]
    assert above[0] == 0


@pytest.mark.parametrize("log", [[], LOG[:1], [{"step": 1, "validation_loss": 1.0}]])
def test_short_logs(log):
    drawn(plots.loss_curves(log))


@pytest.mark.parametrize("size", [1, 5, 250])
def test_smoothing_keeps_straight_lines_away_from_the_ends(size):
    values = np.arange(size, dtype=float)
    smooth = plots._smooth(values)
    inner = slice(size // 100, size - size // 100)
    np.testing.assert_allclose(smooth[inner], values[inner])
    assert (np.diff(smooth) > 0).all()


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize(
    ("name", "values"), [("perplexity", [9.0, 4.0]), ("accuracy", [0.1, 0.7]), ("gain", [-2.0, 1.0])]
)
def test_any_validation_figure_has_the_right_axis(name, values):
    log = [{"step": 1, "loss": 3.0}] + [
        {"step": step, "validation_loss": 2.0, f"validation_{name}": value, "validation_other": 1e6}
        for step, value in zip((5, 9), values, strict=True)
    ]
    figure = drawn(plots.loss_curves(log))
    _, right = figure.axes
    assert right.get_ylabel() == name
    np.testing.assert_array_equal(right.lines[0].get_ydata(), values)
    bottom, top = right.get_ylim()
    assert bottom <= min(values) <= max(values) < top < max(values) + 0.2 * (max(values) - min(0, *values))
    assert bottom == 0 or min(values) < 0
    assert labels(figure) == ["training objective, running mean", "validation loss", f"validation {name}"]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([], []),
        (LOG[:3], ["training objective, running mean"]),
        ([{"step": 1, "validation_loss": 1.0}], ["validation loss"]),
        ([{"step": 1, "validation_loss": None, "validation_bleu": None}], []),
        (LOG, ["training objective, running mean", "validation loss", "validation bleu"]),
    ],
)
def test_a_legend_names_only_lines(log, expected):
    assert labels(plots.loss_curves(log)) == expected


def test_a_title_fits_above_the_map_of_one_word():
    figure = drawn(
        plots.attention_map(AttentionMap(("a",), ("b",), rows(0, 1, 1)), title="the mean of the heads of layer 1")
    )
    box = figure.axes[0].title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_plots_are_drawn_on_axes_of_a_figure(tmp_path):
    """They only wrote files. Texts elsewhere in the user's figure stay formulas."""
    figure, (left, right) = plt.subplots(1, 2, layout="constrained")
    figure.suptitle("$x$")
    left.set_title("$y$")
    assert plots.attention_map(AttentionMap(("$a$", "b"), ("c",), rows(0, 1, 2)), axes=left) is figure
    assert plots.loss_curves(LOG, title="run", axes=right) is figure
    np.testing.assert_array_equal(left.images[0].get_array(), rows(0, 1, 2))
    assert not left.get_xticklabels()[0].get_parse_math()
    assert figure._suptitle.get_parse_math()
    texts = [text.get_text() for text in right.get_legend().get_texts()]
    assert texts == ["training objective, running mean", "validation loss", "validation bleu"]
    assert not figure.legends
    assert plots.save(figure, tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    plt.close(figure)


def test_plots_are_drawn_on_a_part_of_a_figure():
    figure = plt.figure(layout="constrained")
    part, _ = figure.subfigures(1, 2)
    assert plots.attention_map(MAP, axes=part.subplots()) is figure
    plt.close(figure)


def test_a_notebook_shows_a_figure():
    figure = plots.attention_map(MAP)
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_path_without_a_suffix_is_refused(tmp_path):
    """Matplotlib would write another file, and leave it."""
    with pytest.raises(ValueError, match=r"must end in .png, .svg or .pdf, got '.*map'"):
        plots.save(plots.attention_map(MAP), tmp_path / "map")
    with pytest.raises(ValueError, match="xyz"):
        plots.save(plots.attention_map(MAP), tmp_path / "map.xyz")
    assert list(tmp_path.iterdir()) == []
