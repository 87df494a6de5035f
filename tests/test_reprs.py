"""Reprs are one short line: no values of arrays, no settings with their defaults."""

import ast
import dataclasses
import html.parser
import importlib
import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxformer import decoding, functional, masks, models, modules, pure
from jaxformer.evaluation.scores import Comparison, Score
from jaxformer.inspection.attention_maps import AttentionMap, AttentionWeights
from jaxformer.planning.forecast import Forecast
from jaxformer.reprs import brief, brief_with_methods
from jaxformer.tasks import registry
from jaxformer.tasks.language_model import TextGenerator
from jaxformer.tasks.language_model.config import DecodeConfig
from jaxformer.tokenizers.characters import CharacterTokenizer

PACKAGE = pathlib.Path(__file__).parents[1] / "jaxformer"
INTERNAL = set("Request Saved Ring Varying Tile Location WideIndex Start Fitted Weights Trained".split())
"""Parts of one computation, which no user gets."""

CONFIG = models.LanguageModelConfig(50, num_layers=2, d_model=8, num_heads=2, d_ff=16)
NET = pure(models.LanguageModel, CONFIG)
SHAPE = "LanguageModelConfig(d_model=8, num_heads=2, d_ff=16, vocab_size=50, num_layers=2)"


def holders():
    """Yields the public dataclasses and named tuples that hold arrays, parameters or networks, and configurations."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_") or node.name in INTERNAL:
                continue
            marks = [ast.unparse(x) for x in (*node.decorator_list, *node.bases)]
            if not any("dataclass" in mark or mark == "NamedTuple" for mark in marks):
                continue
            kinds = " ".join(ast.unparse(x.annotation) for x in node.body if isinstance(x, ast.AnnAssign))
            large = re.search(r"jax\.Array|np\.ndarray|ArrayT|\bParams\b", re.sub(r"Callable\[.*?\]\]?", "", kinds))
            if large or node.name.endswith(("TaskConfig", "DataConfig", "DecodeConfig", "TrainConfig", "ModelConfig")):
                yield pytest.param(node, any("repr=False" in mark for mark in marks), id=f"{path.stem}.{node.name}")


@pytest.mark.parametrize(("node", "inherits"), list(holders()))
def test_every_holder_of_arrays_has_a_short_repr(node, inherits):
    own = [x.name for x in node.body if isinstance(x, ast.FunctionDef)]
    own += [ast.unparse(x.targets[0]) for x in node.body if isinstance(x, ast.Assign)]
    assert inherits or "__repr__" in own


def test_the_parts_of_a_search_are_one_short_line_each():
    """The captured attention of this tiny model was 9,000 characters, its context 20,000."""

    def parts(params, tokens):
        model = NET.bind(params)
        context, state = model.start(batch_size=2, beam_size=2, length=6)
        step = lambda tokens, state: model.step(tokens, state, context)
        found = decoding.beam_search(step, state, decoding.Limits(max_length=6, bos=1, eos=2), beam_size=2)
        seen.extend([model.captured(tokens, names=["decoder.self"])["decoder.self"], found, context, state])

    seen = []
    jax.eval_shape(parts, NET.shapes, jax.ShapeDtypeStruct((2, 9), jnp.int32))  # computes nothing
    captured, found, *states = seen
    expected = "query=float32[2, 2, 9, 2, 4], key=float32[2, 2, 9, 2, 4], mask=Band(before=None, after=0)"
    assert repr(captured) == f"CapturedAttention({expected}; methods: layer, weights)"
    assert repr(found).startswith("Hypotheses(tokens=int32[2, 2, 6], lengths=int32[2, 2], log_probs=float32[2, 2]")
    for value in (*states, found, decoding.TreeState({"a": jnp.ones((2, 2))})):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 400


@pytest.fixture
def predictor():
    return TextGenerator(NET, dict(NET.shapes), CharacterTokenizer.train(["abc"]), DecodeConfig(), window=64)


def test_a_predictor_names_its_methods(predictor):
    """It was 48,122 characters."""
    text = repr(predictor)
    assert text.startswith(f"TextGenerator(net=Pure(model=LanguageModel, config={SHAPE}), params=<")
    assert re.search(r"params=<[\d,]+ values in \d+ arrays>, tokenizer=<CharacterTokenizer>, decode=", text), text
    assert re.search(r"; methods: .*\bgenerate\b.*\)$", text), text
    assert len(text) < 500


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CONFIG, SHAPE),
        (NET, f"Pure(model=LanguageModel, config={SHAPE}; methods: apply, bind, init)"),
        (
            pure(models.LanguageModel, CONFIG, attention=functional.attention),
            f"Pure(model=LanguageModel, config={SHAPE}, parts=(('attention', attention),); methods: apply, bind, init)",
        ),
        (registry.configure("translation").train, None),
        (masks.causal() & ~masks.padding(np.ones((2, 64), bool)), None),
        (functional.Dropout(0.1, jax.random.key(0)), None),
        (
            functional.KeyValueCache(jnp.ones((1, 2)), jnp.ones((1, 2))),
            "KeyValueCache(key=float32[1, 2], value=float32[1, 2])",
        ),
        (AttentionMap(("a",) * 20, ("b",), np.ones((1, 20))), None),
    ],
)
def test_one_line_without_values_and_defaults(value, expected):
    assert expected is None or repr(value) == expected
    assert len(repr(value)) < 250
    assert "\n" not in repr(value)
    assert "Array(" not in repr(value)
    assert "array(" not in repr(value)


def test_every_setting_of_a_run_that_is_not_the_default_is_shown():
    """The repr of a whole configuration was 2,672 characters."""
    config = registry.configure(
        "translation", seed=7, decode={"search": {"beam_size": 3}}, data={"source": "my.en", "target": "my.fr"}
    )
    text = repr(config)
    assert all(part in text for part in ("TranslationConfig(seed=7", "beam_size=3", "source='my.en', target='my.fr'"))
    assert len(text) < 600


class Place(NamedTuple):
    """A named tuple."""

    x: jax.Array
    step: int = 0

    __repr__ = brief


@dataclasses.dataclass
class Holder:
    """A value of each kind."""

    values: object
    hidden: object = dataclasses.field(default=None, repr=False)

    __repr__ = brief_with_methods

    def call(self):
        """Does nothing."""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("a long text " * 20, repr("a long text " * 20)),
        ({"a": {"b": jnp.ones((2, 3))}, "c": np.ones(4)}, "<10 values in 2 arrays>"),
        ({"a": 1}, "{'a': 1}"),
        ([1], "[1]"),
        ((1,), "(1,)"),
        (tuple(range(1000)), "(0, 1, 2, 3, 4, 5, 6, 7, ... 1,000 in all)"),
        (Place(jnp.ones(3)), "Place(x=float32[3])"),
        (Place(jnp.ones(3), 1), "Place(x=float32[3], step=1)"),
        (functional.attention, "attention"),
        (jax.ShapeDtypeStruct((2,), jnp.int32), "int32[2]"),
    ],
)
def test_values_of_fields(values, expected):
    assert repr(Holder(values, hidden=1)) == f"Holder(values={expected}; methods: call)"


def test_a_module_is_named_only():
    assert repr(Holder(modules.Linear(2, 3, rngs=nnx.Rngs(0)))) == "Holder(values=<Linear>; methods: call)"


def test_abstract_and_traced_values_are_shown():
    """A print inside of a traced function must not fail."""
    seen = []
    jax.jit(lambda x: seen.append(repr(masks.padding(x))) or x)(jnp.ones((2, 3), bool))
    assert seen == ["Padding(valid=bool[2, 3])"]


class Nesting(html.parser.HTMLParser):
    """The elements that are open, the text, and the background of each cell; it refuses an end without its start."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.words, self.shades = [], [], []
        self.feed(text)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag, attrs):
        assert tag in "table caption tr th td details summary".split()
        self.opened.append(tag)
        self.shades += re.findall(r"/ (.*)\)", dict(attrs).get("style", ""))

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def shown(value):
    return Nesting(value._repr_html_())


def test_every_configuration_has_a_table_in_a_notebook():
    for task in registry.CONFIGS:
        config = registry.config_class(task)()
        for part in (
            config,
            config.model,
            config.data,
            config.train,
            config.optimizer,
            getattr(config, "decode", config),
        ):
            assert shown(part).words[0] == type(part).__name__


def test_every_predictor_has_a_table_in_a_notebook(predictor):
    words = shown(predictor).words
    assert words[-2:] == ["methods", "continuations, ensemble_with, generate, score, view"]
    pattern = r"^class (\w+)[^\n]*\n(?:    .*\n|\n)*?    __repr__ = brief_with_methods"
    for path in (PACKAGE / "tasks").rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for name in re.findall(pattern, path.read_text(), re.MULTILINE):
            assert hasattr(getattr(importlib.import_module(module), name), "_repr_html_"), name


def test_text_is_escaped():
    text = "<script>alert('&')</script>"
    assert text in shown(AttentionMap((text,), ("b",), np.ones((1, 1)))).words
    assert repr(text) in shown(registry.configure("translation", name=text)).words
    assert any(text in word for word in shown(Score(text, 1.0, "")).words)


def test_maps_and_masks_are_grids_of_shades():
    assert shown(AttentionMap(("a", "b"), ("c",), np.array([[0.25, 0.5]]))).shades == ["0.50", "1.00"]
    weights = AttentionWeights(("a", "b"), ("c",), np.array([[[[0.0, 1.0]], [[1.0, 0.0]]]]))
    assert shown(weights).shades == ["1.00", "1.00"]
    assert shown(masks.segments(np.array([[1, 1, 2]]))).shades == "1.00 1.00 0.00 1.00 1.00 0.00 0.00 0.00 1.00".split()
    large = shown(masks.causal() & masks.padding(np.ones((2, 100), bool)))
    assert len(large.shades) == 24 * 24
    assert "the first 24 of 100 rows and 24 of 100 columns" in large.words[0]
    sparse = masks.block_sparse([[True, False], [True, True]], 4)
    for mask in (sparse, ~masks.lengths(np.array([3, 5])), masks.dense(np.zeros((3, 5), bool))):
        assert shown(mask).shades


def test_scores_and_plans_are_short():
    score = Score("BLEU", 98.3711, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0")
    assert repr([score]) == "[Score(BLEU 98.37)]"
    assert repr(score.signature) in shown(score).words
    assert "p_value" in shown(Comparison(score, score, 0.5)).words
    plan = {field.name: 1 for field in dataclasses.fields(Forecast)}
    forecast = Forecast(**plan | {"collectives": ("a long list",)})
    assert "a long list" not in repr(forecast)
    assert "memory" in shown(forecast).words
