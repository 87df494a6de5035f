"""The figures of the documents: the data that they draw, and that they draw it."""

import doctest

import numpy as np
import pytest

from experiments.figures import __main__ as command
from experiments.figures import attention, blocks, checks, feed_forward, positions, tables, trained
from jaxformer import masks
from tests.seeds.example import OUTPUT, WEIGHTS


def test_the_light_of_two_switches():
    """No line is right about all four points, the best linear fit is 1/2, and the network is exact."""
    data = feed_forward.xor()
    assert data["right"].max() == 0.75
    np.testing.assert_allclose(data["fit"], 0.5)
    np.testing.assert_allclose(data["at"], data["light"], atol=1e-6)
    _, right = feed_forward.draw_xor(data).axes
    inside = [path for each in right.collections for path in each.get_paths() if len(path) > 20]
    assert inside
    assert [any(path.contains_point(point) for path in inside) for point in feed_forward.SWITCHES[1:3]] == [True] * 2


def test_lines_are_drawn_as_computed():
    lines, curves = feed_forward.lines(), feed_forward.relu_and_gelu()
    np.testing.assert_array_equal(lines["f"], 2 * lines["x"])
    np.testing.assert_array_equal(lines["g"], np.maximum(0, 2 * lines["x"]))
    assert len(curves["x"]) == 200
    assert curves["GELU"].min() == pytest.approx(-0.16997, abs=1e-4)
    left, right = feed_forward.draw_lines(lines).axes
    np.testing.assert_array_equal(left.lines[-1].get_ydata(), lines["f"])
    np.testing.assert_array_equal(right.lines[-1].get_ydata(), lines["g"])
    (axes,) = feed_forward.draw_relu_and_gelu(curves).axes
    np.testing.assert_array_equal(axes.lines[-1].get_ydata(), curves["GELU"])


def test_parts_are_separated_by_density_only():
    """Segments between parts of both kinds cross; two thresholds or a tilted plane separate, one threshold does not."""
    data = feed_forward.density_lift()
    low, high = data["band"]
    *normal, offset = data["plane"]
    for name, is_good in (("defects", False), ("good", True)):
        density = data[name][:, 2]
        assert (((density < low) | (density > high)) == is_good).all()
        assert ((data[name] @ normal > offset) == is_good).all()
    assert data["good"][:, 2].min() < 1 < data["good"][:, 2].max()
    (one, other), (good, also_good) = data["defects"][:, :2], data["good"][:2, :2]
    share, _ = np.linalg.solve(np.stack([other - one, good - also_good], 1), good - one)
    assert 0 < share < 1


def test_the_two_spaces():
    """The printed weights leave a good part above their line, which is straight in the input; ours separate."""
    data = feed_forward.two_spaces()
    np.testing.assert_allclose(data["defects printed"][0], [0.65, 1.40], atol=1e-6)
    np.testing.assert_allclose(data["good printed"][0], [1.025, 0.95], atol=1e-6)
    assert (data["good printed"][:, 1] > 1.1).any()
    assert data["defects ours"][:, 1].max() < 0.25 < data["good ours"][:, 1].min()
    weight = 0.6 * data["line"][:, 0] - 0.2
    np.testing.assert_allclose(data["line"][:, 1], weight, atol=1e-6)
    figure = feed_forward.draw_two_spaces(data)
    drawn = [np.asarray(each.get_offsets()) for each in figure.axes[1].collections]
    np.testing.assert_allclose(drawn[1], data["good printed"])


@pytest.mark.parametrize("make", [blocks.modern_block, blocks.transformer, blocks.recurrent_attention])
def test_boxes_compute_what_the_package_computes(make):
    """The last box has the output of the whole, and the diagram says each box and its shape."""
    columns, whole = make()
    np.testing.assert_allclose(columns[-1][-1].value, whole, atol=1e-5)
    (axes,) = blocks.draw(columns).axes
    drawn = [text.get_text() for text in axes.texts if text.get_text()]
    boxes = [box for column in columns for box in column]
    assert drawn == [words for box in boxes for words in (box.name, " x ".join(map(str, box.value.shape[1:])))]


def test_masks():
    data = attention.masks_of()
    np.testing.assert_array_equal(data["causal"], np.tri(5, dtype=bool))
    np.testing.assert_array_equal(data["causal and padding"], np.tri(5, dtype=bool) & (np.arange(5) < 3))
    for axes, visible in zip(attention.draw_masks(data).axes, data.values(), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), visible)
        assert [text.get_text() == "0" for text in axes.texts] == visible.reshape(-1).tolist()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_the_parts_of_a_layer_are_drawn(order):
    """The worked example, in both orders; each panel has its own part."""
    data = attention.worked_layer(order)
    at = np.array(order)
    np.testing.assert_allclose(data["weights"], WEIGHTS[at][:, at], atol=1e-6)
    np.testing.assert_allclose(data["outputs"], OUTPUT[at], atol=2e-6)
    by_title = {axes.get_title(): axes for axes in attention.draw_layer(data).axes}
    for name in ("queries", "keys", "logits", "weights", "values", "outputs"):
        part, title = (data[name], name) if name in ("keys", "values") else (data[name].T, f"{name}, transposed")
        np.testing.assert_array_equal(by_title[title].images[0].get_array(), part)
        assert by_title[title].texts[0].get_text() == f"{part[0, 0]:.2f}"


def test_layers_of_other_figures():
    cross, masked = attention.cross_layer(), attention.worked_layer(mask=masks.causal())
    assert cross["logits"].shape == (4, 3)
    np.testing.assert_allclose(cross["weights"].sum(1), 1, rtol=1e-6)
    assert np.isneginf(masked["logits"][np.triu_indices(3, 1)]).all()
    assert not masked["weights"][np.triu_indices(3, 1)].any()


@pytest.mark.full
def test_heads_paths_and_pixels():
    maps, sizes, cells = attention.heads().weights[0], attention.paths(8), attention.pixels()
    assert [int(maps[i, row].argmax()) for i, row in enumerate((2, 2, 3, 1))] == [3, 0, 4, 2]
    recurrent, convolution, everything = sizes.values()
    assert not np.triu(recurrent, 1).any()
    np.testing.assert_array_equal(convolution > 0, np.abs(np.subtract.outer(range(8), range(8))) <= 1)
    assert everything.min() > 0
    bird, sky, water = cells["bird"], cells["sky"], cells["water"]
    assert bird[3:8, 4:12].sum() > 0.9
    assert water[12:].sum() > 0.9
    assert sky[:11].sum() > 0.9


def test_positions():
    vectors = positions.heat_map()["vectors"]
    np.testing.assert_allclose(vectors[7, :2], [np.sin(7), np.cos(7)], atol=1e-6)
    np.testing.assert_array_equal(positions.draw_heat_map({"vectors": vectors}).axes[0].images[0].get_array(), vectors)
    both = positions.sine_and_cosine()
    np.testing.assert_allclose(both["at"], [[0.5, 0.8660254], [0.5, -0.8660254]], atol=1e-7)
    np.testing.assert_array_equal(
        positions.draw_sine_and_cosine(both).axes[0].lines[0].get_ydata(), both["values"][:, 0]
    )


def test_the_comparison_of_positions():
    """A band is 2 sin(offset / 2 of its frequency) apart, from everywhere; a new table has no order."""
    data = positions.comparison(length=1100, start=64)
    speed = 10_000 ** (-2 * np.arange(64) / 128)
    expected = 2 * np.abs(np.sin(data["offsets"][:, None] * speed / 2))
    np.testing.assert_allclose(data["distances"], expected, atol=2e-3)
    sines, learned, index = data["similarities"]
    np.testing.assert_allclose(sines[:64][::-1], sines[65:129], atol=1e-4)
    assert np.abs(np.delete(learned, 64)).max() < 0.6
    np.testing.assert_allclose(index[1:], 1)
    np.testing.assert_array_equal(positions.draw_comparison(data).axes[0].images[0].get_array(), data["distances"])


def test_sentences_and_pictures_for_training():
    """Nouns come first in French, adjectives in reverse; pictures have the thing where it is said to be."""
    random = np.random.default_rng(3)
    english, french = next(pair for pair in iter(lambda: trained.pair(random), None) if len(pair[0].split()) == 13)
    between = english.split()[4:7]
    translated = [(trained.ADJECTIVES | trained.NOUNS)[word] for word in between]
    assert french.split()[-9 - 1 : -7] == translated[::-1]
    assert len(trained.ENGLISH.split()) == 13
    assert len(trained.FRENCH.split()) == 14
    picture = trained.scene("kite", "a sandy beach", (8, 14))
    assert picture[9, 15].argmax() == 0
    assert picture[2, 2].argmax() == 2


@pytest.mark.full
def test_the_small_networks_learn_where_to_look():
    data = trained.alignment()
    looked = {word: data.source[row.argmax()] for word, row in zip(data.target, data.weights, strict=True)}
    words = {"zone": "Area", "économique": "Economic", "européenne": "European", "signé": "signed", "août": "August"}
    assert {word: looked[word] for word in words} == words
    captions = trained.captions()
    weights = captions["weights"].reshape(-1, 8, 8)
    assert weights[1, 1:5, 2:6].sum() > 0.8  # bird
    assert weights[5, 5:].sum() > 0.5  # body


def test_tables():
    """The printed numbers of tables 17.1 and 17.2, and a row of 17.24."""
    checks.check(tables.positions(), "0 1 0 1; 0.84 0.54 0.01 1.00; 0.91 -0.42 0.02 1.00")
    printed = {"recurrent": 26_214_400, "convolution": 78_643_200, "attention": 5_120_000}
    assert tables.costs(100, 512) == printed | {"mixing": 10_240_000, "attention layer": 115_097_600}
    assert tables.layers_to_span(10_000, 3) == (5000, 9)
    assert tables.stack_parameters("gpt3-175b") == 12 * 96 * 12_288**2


def test_numbers_in_print():
    assert doctest.testmod(checks) == (0, 2)
    checks.check([4.539787e-05, 0.9999546], "4.54e-5 | 0.99995")
    with pytest.raises(AssertionError, match="the document is right: 2"):
        checks.check(2.0, "2.0", wrong="2")
    with pytest.raises(AssertionError, match="1 numbers are printed, and 2 computed"):
        checks.check([1.0, 2.0], "1")


def test_the_command_draws_what_it_is_asked_for(tmp_path, capsys):
    names = ["masks", "17.14-sine-and-cosine"]
    assert command.main(["--out", str(tmp_path), "--only", *names]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.png" for name in names)
    assert capsys.readouterr().out.count("wrote ") == 2
