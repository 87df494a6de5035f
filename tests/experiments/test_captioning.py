"""The experiment on captions: objects from pixels, the grammar and its truth, the metrics, and its smoke version."""

import json

import numpy as np
import pytest

from experiments.captioning import __main__ as command
from experiments.captioning import corpus, cutouts, smoke
from experiments.captioning.boxes import COLORS, Thing, boxes, is_tower
from experiments.captioning.corpus import MODELS, configuration, divide, pictures, spread
from experiments.captioning.measures import (
    best_constant,
    entropies,
    grounding,
    movement,
    nearest,
    word_class,
)
from experiments.captioning.statements import truth
from jaxformer.config import fingerprint
from jaxformer.data.captions import captions_of, read_captions
from jaxformer.data.images import label_images, read_images
from jaxformer.errors import DataError
from jaxformer.inspection.attention_maps import AttentionMap
from jaxformer.tasks.captioning import TASK
from tests.experiments.smoke import check_resumes


def tower(*colors):
    """A tower of these blocks, the lowest first."""
    return tuple(Thing("square", color, 40, 80 - 21 * i, 60, 100 - 21 * i) for i, color in enumerate(colors))


def scattered(*things):
    """Shapes of 10 pixels: shape, color, left, top."""
    made = [Thing(shape, color, left, top, left + 10, top + 10) for shape, color, left, top in things]
    return tuple(sorted(made, key=lambda thing: -thing.bottom))


TOWERS = (tower("blue", "black", "black", "yellow"), tower("black"), tower("yellow", "blue"))
BOXES = (
    scattered(("circle", "blue", 0, 40), ("circle", "black", 30, 30), ("triangle", "black", 50, 90)),
    scattered(("square", "yellow", 90, 90), ("circle", "yellow", 40, 40)),
    scattered(("square", "blue", 20, 20)),
)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("There is 1 tower with a blue block at the base", True),
        ("There is exactly one tower with a yellow block at the base.", True),
        ("There are two towers with a blue block at the base", False),
        ("There is a tower with four blocks.", True),
        ("there is a tower with exactly three blocks", False),
        ("There is 1 tower with 2 black blocks stacked together", True),
        ("There is a black tower with only one block.", True),
        ("There is a blue tower.", False),
        ("There are at least 3 black blocks", True),
        ("There are exactly two yellow blocks", True),
        ("There is a yellow block above a blue block.", True),
        ("There is no blue block above a yellow block.", False),
        ("There is a yellow block on a black block", True),
        ("There is one tower with a black block over a blue block", True),
        ("There is a black block as the top of a tower with only one block.", True),
        ("There are two black blocks as the base of a tower.", False),
        ("ll 3 towers have at least 1 blue block", False),
        ("There is a tower with a block of all three colors", True),
        ("There is a tower with only yellow blocks", False),
        ("there is 1 tower with a black block in the middle", True),
        ("there is a tower with a yellow block in the middle", False),
        ("There are at most two black blocks", False),
        ("There are more than three black blocks", False),
        ("There are less than three black blocks", False),
        ("There is a yellow block below a blue block.", True),
        ("There is a black block below a blue block.", False),
        ("There is a yellow block above a yellow block.", False),
        ("There is a tower with four blocks and a yellow block at the top", True),
        ("There is a yellow block as the top of a tower with four blocks.", True),
        ("the tower with four blocks has a blue block at the top", False),
        ("There is a three blocks tower", False),
    ],
)
def test_true_statements_about_towers(sentence, expected):
    assert truth(sentence)(TOWERS) == expected


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("There is a blue circle touching the edge", True),
        ("There are two black objects touching the edge", False),
        ("There is exactly one black object not touching any edge", True),
        ("there is a black triangle touching the base", True),
        ("None of the yellow squares are touching the base", False),
        ("There is a square closely touching a corner of a box.", True),
        ("There is at least one blue item closely touching right wall of a box.", False),
        ("one of the grey square contains exactly three objects", True),
        ("There is a box with a blue circle, a black circle and a black triangle.", True),
        ("There is a box with two yellow items and no circles", False),
        ("There is a box with items of only one color.", True),
        ("There is 1 box with only blue and black items", True),
        ("There is at least 1 blue item in every box", False),
        ("Each grey box contains atleast one object", True),
        ("There is a box with 3 items of 2 different colors.", True),
        ("There is 1 blue circle and 1 yellow circle", True),
        ("There is 1 blue circle and 1 yellow triangle", False),
        ("There is a circle touching a corner", False),
        ("There are exactly two circles not touching any edge", True),
        ("There is a box with 3 items of 3 different colors", False),
        ("There is a box with 3 items of only blue color", False),
        ("each tower has at least one item", False),
    ],
)
def test_true_statements_about_boxes(sentence, expected):
    assert truth(sentence)(BOXES) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "There is",
        "A dog runs.",
        "There is a tower",
        "There is a blue block behind it",
        "Each box has one item is red",
    ],
)
def test_other_sentences_have_no_parse(sentence):
    assert truth(sentence) is None


def test_objects_are_recognized_from_pixels():
    """Blocks that touch are separate; a shape is recognized by the fraction of its frame that it fills."""
    found = boxes(smoke.towers((1, 4, 2), "blue"))
    assert [[(thing.shape, thing.color, thing.size) for thing in box] for box in found] == [
        [("square", "blue", 20)] * n for n in (1, 4, 2)
    ]
    assert all(map(is_tower, found))
    picture = np.full((100, 400, 3), 211, np.uint8)
    rows, columns = np.mgrid[:100, :100]
    picture[:, 150:250][(rows - 40) ** 2 + (columns - 15) ** 2 <= 9**2] = (255, 255, 0)
    picture[:, 300:][(rows >= 70) & (rows < 98) & (abs(columns - 50) * 2 <= rows - 70)] = (0, 0, 0)
    picture[40:50, :10] = (0, 153, 255)
    picture[10:13, 30:33] = (0, 153, 255)  # a speck
    left, middle, right = boxes(picture)
    assert [(x.shape, x.color) for box in (left, middle, right) for x in box] == [
        ("square", "blue"),
        ("circle", "yellow"),
        ("triangle", "black"),
    ]
    assert [(x.left, x.top, x.right, x.bottom) for x in (left[0], right[0])] == [(0, 40, 10, 50), (37, 70, 64, 98)]
    assert right[0].touches("bottom")


WALLS = ("left", "top", "right", "bottom")


@pytest.mark.parametrize(
    ("wall", "corner"), [("left", (2, 40)), ("top", (40, 2)), ("right", (88, 40)), ("bottom", (40, 88))]
)
def test_the_wall_that_a_shape_touches(wall, corner):
    (thing,) = scattered(("circle", "blue", *corner))
    assert [name for name in WALLS if thing.touches(name)] == [wall]


def block(left, top, shape="square"):
    return Thing(shape, "blue", left, top, left + 20, top + 20)


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((block(40, 80), block(40, 59)), True),
        ((block(40, 80), block(40, 40)), False),
        ((block(40, 80), block(45, 59)), False),
        ((block(40, 80), block(40, 59, "circle")), False),
        ((block(40, 70), block(40, 49)), False),
        ((), False),
    ],
    ids="tower gap aside circle floating empty".split(),
)
def test_stacked_squares_are_a_tower(box, expected):
    assert is_tower(box) == expected


@pytest.mark.full
def test_gold_captions_are_true(data_directory):
    """At least 95 % of the parsed ones, which are most; and far fewer for other pictures."""
    folder = data_directory / "nlvr_captions"
    store = read_images(folder / "images.zip")
    lines = [line.split("\t") for line in (folder / "captions.tsv").read_text().splitlines()[1:]]
    table = [line for line in lines if line[0] == "test"] + [line for line in lines if line[0] == "train"][::6]
    numbers = {name: i for i, name in enumerate(store.names)}
    with store.reading() as read:
        images = [boxes(np.asarray(read(numbers[name]).convert("RGB"))) for _, name, _ in table]
    found = [(truth(sentence), own) for (*_, sentence), own in zip(table, images, strict=True)]
    parsed = [(true, own) for true, own in found if true is not None]
    confirmed = np.mean([true(own) for true, own in parsed])
    shuffled = np.mean([true(images[(7 * i + 3) % len(images)]) for i, (true, _) in enumerate(parsed)])
    assert len(parsed) > 0.7 * len(found)
    assert confirmed >= 0.95
    assert shuffled < 0.5


def test_grounding_counts_statements_that_are_true_here_and_elsewhere():
    scenes = [TOWERS, BOXES, TOWERS]
    said = ["There are exactly two yellow blocks", "There is a blue circle", "A dog runs"]
    found = grounding(said, scenes)
    assert (found.own, found.parsed) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found.shuffled == pytest.approx((1 / 2 + 0 + 0) / 3)
    assert found.difference == pytest.approx(0.5)
    constant = grounding([said[0]] * 3, scenes)
    assert constant.difference == pytest.approx(0)
    assert best_constant(said, scenes) == said[0]
    with pytest.raises(ValueError, match="two or more pictures, each with a caption, got 1"):
        grounding(said[:1], scenes[:1])


def test_metrics_of_attention():
    """I5 and I7: entropy by class of words, and the way of the center from word to word."""
    weights = np.array([[1 / 6] * 6, [0, 0, 0, 0, 0, 1.0], [1, 0, 0, 0, 0, 0]])
    maps = [AttentionMap(tuple("abcdef"), ("a", "blue", "</s>"), weights)]
    assert entropies(maps) == {"colors": (0.0, 1), "function words": (pytest.approx(1.0), 1)}
    assert movement(maps, (2, 3)) == pytest.approx(np.hypot(0.5, 1) / 3)  # from the middle to the last place
    assert movement([AttentionMap(tuple("abcdef"), ("a", "</s>"), weights[:2])], (2, 3)) == 0  # one word
    assert [word_class(word) for word in ("Tower", "2", "touching", "circles", "the")] == [
        "containers",
        "numbers",
        "places",
        "shapes",
        "function words",
    ]


def test_the_nearest_image():
    known = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
    assert nearest(known[[3, 1]] // 2 + 10, known // 2).tolist() == [3, 1]


def test_parts_are_divided_by_statement(tmp_path):
    lines = [f"train\tdev-{i}-{j}-0.png\tsentence {i}" for i in range(80) for j in range(2)]
    (tmp_path / "captions.tsv").write_text("\n".join(["split\timage\tsentence", *lines, "test\ttest-1-0-0.png\tlast"]))
    divide(tmp_path / "captions.tsv", tmp_path)
    parts = {part: (tmp_path / f"{part}.tsv").read_text().splitlines() for part in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == 161
    assert parts["test"] == ["test-1-0-0.png\tlast"]
    statements = [{line.split("-")[1] for line in parts[part]} for part in ("train", "validation")]
    assert statements[1]
    assert not statements[0] & statements[1]
    (tmp_path / "captions.tsv").write_text("split\timage\tsentence\ndev\ta.png\tx\n")
    with pytest.raises(DataError, match=r"captions\.tsv, line 2: there must be a split, train or test"):
        divide(tmp_path / "captions.tsv", tmp_path)


def test_sentences_are_shared_among_pictures_for_which_they_are_true(tmp_path, monkeypatch):
    smoke.prepare(tmp_path)
    store = read_images(tmp_path / "images.zip")
    lines = [f"{store.names[i]}\tThere are {3 if i < 4 else 6} yellow blocks" for i in range(30)]
    (tmp_path / "some.tsv").write_text("\n".join([f"{store.names[29]}\tNobody can parse this", *lines[:-1]]))
    images = read_captions(tmp_path / "some.tsv", store)
    own = [boxes(picture) for picture in pictures(images)]
    found = [line.split("\t") for line in spread(images, own)]
    written = [
        [store.names[i], caption]
        for i, captions in zip(images.indices, captions_of(images), strict=True)
        for caption in captions
    ]
    true = [
        [store.names[i], sentence]
        for sentence in ("There are 3 yellow blocks", "There are 6 yellow blocks")
        for i, objects in zip(images.indices, own, strict=True)
        if truth(sentence)(objects)
    ]
    assert sorted(found) == sorted(line for line in true if line not in written)
    assert found
    monkeypatch.setattr(corpus, "SHARED", 1)
    assert len(spread(images, own)) <= 2  # one picture a sentence, which may be its own


def test_configurations(tmp_path):
    smoke.prepare(tmp_path)
    found = {model: configuration(model, str(tmp_path / "images.zip"), tmp_path, tmp_path, {}) for model in MODELS}
    for model, config in found.items():
        config.check()
        config.check_init(found["soft"] if model == "hard" else cutouts.configuration(tmp_path, {}))
        assert config.init_from == str(tmp_path / ("soft:last" if model == "hard" else "cutouts"))
        assert 4e5 < TASK.network(config, 600).num_parameters < 8e5
    store = read_images(tmp_path / "images.zip")
    (tmp_path / "one.tsv").write_text(f"{store.names[0]}\tThere are 3 yellow blocks\n")
    images = read_captions(tmp_path / "one.tsv", store)
    assert pictures(images)[0].shape == (100, 400, 3)
    assert captions_of(images) == [("There are 3 yellow blocks",)]


def test_a_folder_has_one_spelling(tmp_path, monkeypatch):
    """The settings have its files; records made under another spelling would be refused."""
    found = []

    def trained(config, name, out, end, measure):
        found.append(fingerprint(config))
        return {"accuracy": 100.0} | scores

    scores = dict.fromkeys(("own", "shuffled", "difference", "parsed", "bleu", "different"), 1)
    monkeypatch.setattr(command.command, "trained", trained)
    monkeypatch.chdir(tmp_path)
    for out in ("x", tmp_path / "x"):
        assert command.main(["--smoke", "--out", str(out)]) == 0
    assert len(found) == 8
    assert found[:4] == found[4:]


def test_cutouts_have_their_object_in_the_middle(tmp_path):
    """By the color in the middle; without an object, the middle has no color."""
    smoke.prepare(tmp_path)
    store = read_images(tmp_path / "images.zip")
    (tmp_path / "all.tsv").write_text("".join(f"{name}\tThere are blocks\n" for name in store.names))
    images = read_captions(tmp_path / "all.tsv", store)
    own = [boxes(picture) for picture in pictures(images)]
    cutouts.write_cutouts(images, own, tmp_path / "one.zip")
    cutouts.write_cutouts(images, own, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    found = label_images(read_images(tmp_path / "one.zip"))
    assert set(found.labels) == {"nothing", *(f"medium {color} square" for color in COLORS)}
    with found.store.reading() as read:
        for i, label in zip(found.indices, found.labels, strict=True):
            pixels = np.asarray(read(i).convert("RGB"))
            assert pixels.shape == (40, 40, 3)
            middle = pixels[20, 20].tolist()
            color = next((name for name, value in COLORS.items() if list(value) == middle), None)
            assert label == (f"medium {color} square" if color else "nothing")
    assert 4 * len(images) + 20 < len(found) <= 4.5 * len(images)


@pytest.mark.parametrize(
    ("size", "expected"), [(8, "small"), (10, "small"), (18, "medium"), (20, "medium"), (28, "large")]
)
def test_the_label_of_an_object(size, expected):
    assert cutouts.label(Thing("circle", "blue", 0, 0, size, size)) == f"{expected} blue circle"


@pytest.mark.full
def test_the_smoke_version_resumes(tmp_path, capsys):
    """All three captioners, with their records, sheets and captions."""
    arguments = ["--smoke", "--out", str(tmp_path)]
    assert command.main([*arguments, "--models", "soft"]) == 0
    text = check_resumes(command.main, arguments, tmp_path, capsys)
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in text.splitlines() if line[:2] == "| "}
    assert 0 < float(rows["people"][0]) == float(rows["people"][3])  # whatever the grammar reads is true
    assert {"nearest neighbor", *MODELS} <= set(rows)
    started = json.loads((tmp_path / "soft" / "init.json").read_text())
    assert started["unused"] == ["grid/output/bias", "grid/output/kernel"]
    assert {name.partition("/")[0] for name in started["new"]} == {"decoder", "positions"}
    for model in MODELS:
        assert (tmp_path / f"sheet-{model}.png").exists()
        assert len((tmp_path / f"captions-{model}.tsv").read_text().splitlines()) == 10
