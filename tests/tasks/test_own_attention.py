"""An attention of the user's own: where it comes from, what a run remembers of it, and what is refused."""

import functools
import hashlib
import json
import logging
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxformer
from jaxformer import functional as F
from jaxformer import modules, sharding
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.sharding import Placement
from jaxformer.tasks import own_attention, own_files, planner, registry, rundir, warm_start
from jaxformer.tasks.training_setup import batch_flops, make_training_setup
from tests.contracts.task import quiet
from tests.tasks.language_model import small

TEXT = """
from jaxformer import functional as F

def attend(query, key, value, *, mask=None):
    return F.attention(2.0 * query, key, value, mask=mask)

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TEXT)
    return path


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def doubled(query, key, value, *, mask=None, dropout=None):
    return F.attention(2.0 * query, key, value, mask=mask, dropout=dropout)


class Sharpened(nnx.Module):
    def __init__(self):
        """Starts as the library's attention."""
        self.factor = nnx.Param(jnp.ones(()), axes=())

    def __call__(self, query, key, value, *, mask=None, dropout=None):
        return F.attention(query * self.factor[...], key, value, mask=mask, dropout=dropout)


def test_a_file_is_run_once_and_remembered_with_its_hash(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    own = own_attention.load("mine.py:attend")
    assert own.text == f"{file}:attend@{digest(file)}"
    assert own_attention.load(own.text) is own
    record = {"path": str(file), "name": "attend", "text": TEXT}
    assert own.record == record | {"sha256": hashlib.sha256(TEXT.encode()).hexdigest()}
    file.write_text(TEXT.replace("2.0", "3.0"))
    other = own_attention.load("mine.py:attend")
    assert other.attention is not own.attention
    message = f"mine.py has changed: its hash is {digest(file)}, that of the run's attention is {own.text[-16:]}; --att"
    with pytest.raises(ConfigError, match=f"{message}ention {file}:attend accepts the file as it is now"):
        own_attention.load(own.text)


@pytest.mark.parametrize("text", ["attend", "mine.py", "mine.py:", "mine.txt:attend", "mine.py:a b", ":attend", "a:b"])
def test_a_text_that_names_no_attention(text):
    with pytest.raises(ConfigError, match=rf"attention must be FILE\.py:NAME.*got {re.escape(repr(text))}"):
        registry.configure("language_model", attention=text)
    with pytest.raises(ConfigError, match="must be FILE"):
        own_files.replaced(registry.configure("language_model", attention="a.py:b"), text, pathlib.Path("run"))


def test_a_saved_configuration_runs_only_a_file_with_this_hash_and_outside_of_its_folder(tmp_path, file):
    """It may be someone else's."""
    run, marker = tmp_path / "run", tmp_path / "marker"
    run.mkdir()
    planted = run / "mine.py"
    planted.write_text(f"open({str(marker)!r}, 'w')\n{TEXT}")
    (tmp_path / "link.py").symlink_to(planted)
    saved = registry.configure("language_model", data={"text": "a"})
    for text, message in (
        (f"{file}:attend", "must be /FOLDER/FILE.py:NAME@DIGEST in a saved configuration"),
        (f"mine.py:attend@{digest(file)}", "must be /FOLDER/FILE.py:NAME@DIGEST in a saved configuration"),
        (f"{planted}:attend@{digest(planted)}", "is in the run .*, from which no code is run"),
        (f"{tmp_path}/link.py:attend@{digest(planted)}", "is in the run .*, from which no code is run"),
    ):
        rundir.write_config(run, "language_model", changed(saved, {"attention": text}))
        with pytest.raises(ConfigError, match=message):
            registry.read_config(run)
        with pytest.raises(ConfigError, match=message):
            jaxformer.load(run)
    text = f"{file}:attend@{digest(file)}"
    rundir.write_config(run, "language_model", changed(saved, {"attention": text}))
    assert registry.read_config(run).attention == text
    for given in (f"{planted}:attend", f"{tmp_path}/link.py:attend"):
        with pytest.raises(ConfigError, match="from which no code is run"):
            jaxformer.load(run, attention=given)
    assert not marker.exists()


def test_a_run_keeps_its_attention_or_none(file, tmp_path):
    plain = registry.configure("language_model")
    own, other = (
        changed(plain, {"attention": f"{file}:attend@{digest(file)}"}),
        changed(plain, {"attention": "a.py:b"}),
    )
    settle = lambda config, **given: own_attention.settle(config, tmp_path / "run", **given)
    assert settle(plain) == settle(plain, saved=plain) == (plain, None)
    assert settle(plain, saved=own)[0] == own
    assert settle(changed(plain, {"attention": f"{file}:attend"}), saved=other)[0] == own
    for given in ({"config": own}, {"config": plain, "attention": doubled}, {"config": plain, "attention": "a.py:b"}):
        with pytest.raises(
            ConfigError, match="run was trained with the library's attention, so it takes no other, got"
        ):
            settle(**given, saved=plain)


def test_a_plan_takes_the_setting(file):
    config = registry.configure("demo", attention=f"{file}:attend")
    setup = planner.planned_setup(config, sharding.mesh("data=1", jax.devices()[:1]))
    assert setup.attention is own_attention.load(config.attention).attention
    with pytest.raises(ConfigError, match="no attention file"):
        planner.workload(changed(config, {"attention": "nothing.py:attend"}), setup.placement.mesh)


def test_an_object_is_remembered_by_its_file_if_that_can_be_run_alone(tmp_path, monkeypatch):
    name = "module_of_an_attention"
    (tmp_path / f"{name}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, name, module := __import__(name))
    config = registry.configure("language_model")
    settle = lambda attention: own_attention.settle(config, tmp_path / "run", attention)
    found, own = settle(module.attend)
    assert own is not None
    assert found.attention == f"{tmp_path}/{name}.py:attend@{digest(tmp_path / f'{name}.py')}"
    assert own.attention is module.attend
    for attention, text in ((doubled, "doubled"), (Sharpened(), "Sharpened"), (functools.partial(doubled), "doubled")):
        assert settle(attention)[0].attention == f"python:{text}"
    own = settle(doubled)[1]
    assert own is not None
    assert "2.0 * query" in own.record["text"]
    with pytest.raises(
        ConfigError, match=r"attention: attention must be a function, .* or an instance of a module, got <class"
    ):
        settle(Sharpened)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("2.0 * query", "3.0 * query", False),
        ("mask=mask)", "mask=None)", False),
        ("self.factor * 1.0", "self.factor * 2.0", False),
        ("def attend", "def attend(", False),
        ("number = 3", "# What the file says beside its functions.\nnumber = 3", True),
        ("import functional as F", "import functional as F  # and no more", True),
    ],
)
def test_a_file_that_changed_since_its_import_is_no_record(tmp_path, monkeypatch, old, new, same):
    """It would be of code that was not trained; a comment is not code."""
    text = f"{TEXT}\nclass Scale:\n    factor = 1.0\n\n    def __call__(self):\n        return self.factor * 1.0\n"
    name = f"module_of_a_changed_attention_{hashlib.sha256(new.encode()).hexdigest()[:8]}"
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, name, module := __import__(name))
    path.write_text(text.replace(old, new))
    settle = lambda: own_attention.settle(registry.configure("language_model"), tmp_path / "run", module.attend)
    if same:
        assert settle()[1].record["text"] == text.replace(old, new)
        return
    with pytest.raises(ConfigError, match=rf"{name}\.py has changed since it was imported"):
        settle()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with an attention that has parameters and no file."""
    folder = tmp_path_factory.mktemp("own")
    config = changed(small.tiny(folder), {"train": {"validate_every": 0, "steps": 2}})
    attention = Sharpened()
    jaxformer.train(config, folder / "run", attention=attention, console=quiet())
    return folder / "run", config, attention


def test_training_and_use_from_python(trained):
    """On a mesh of eight devices, with parameters of the attention that train."""
    run, config, attention = trained
    assert registry.read_config(run) == changed(config, {"attention": "python:Sharpened"})
    assert "class Sharpened" in json.loads((run / "attention.json").read_text())["text"]
    with pytest.raises(
        ConfigError, match=r"the attention Sharpened was given in Python and has no file: give it again"
    ):
        jaxformer.load(run)
    generator = jaxformer.load(run, attention=attention)
    factor = generator.params["decoder"]["stack"]["layers"]["attention"]["attention"]["factor"]
    assert factor.shape == (1,)
    assert factor[0] != 1
    assert generator.continuations(["a"])
    assert jaxformer.average(run, last=1, attention=attention) == [2]
    with pytest.raises(ConfigError, match="give it again"):
        jaxformer.train(config, run, console=quiet())
    assert int(jaxformer.train(config, run, attention=attention, console=quiet()).state.step) == 2


@pytest.mark.full
def test_a_warm_start_takes_the_parameters_of_the_attention(trained, tmp_path):
    run, config, attention = trained
    again = changed(config, {"init_from": str(run), "train": {"steps": 1}})
    jaxformer.train(again, tmp_path / "warm", attention=attention, console=quiet())
    taken = json.loads((tmp_path / "warm" / "init.json").read_text())["taken"]
    assert "decoder/stack/layers/attention/attention/factor" in taken
    own = registry.read_config(run)
    (line,) = warm_start.differences(config, own)
    assert line.endswith("of that run: attention is python:Sharpened there and the library's here")
    assert warm_start.differences(own, own) == []


def setup(attention=None, config=None, **model):
    given = {"d_model": 8, "num_heads": 2, "d_ff": 8, "num_layers": 2, "dropout": 0.0, **model}
    config = config or registry.configure("language_model", data={"text": "a", "length": 32}, model=given)
    placement = Placement(sharding.mesh("data=1", jax.devices()[:1]))
    return make_training_setup(registry.task_of(config), config, 40, placement, attention)


def twice(query, key, value, *, mask=None):
    return doubled(query, key, value, mask=mask) - 0.5 * F.attention(query, key, value, mask=mask)


def looping(query, key, value, *, mask=None):
    return jax.lax.while_loop(lambda y: y.sum() > 1e9, lambda y: doubled(y, key, value, mask=mask), query)


def test_the_operations_of_an_attention_are_counted(caplog):
    """With products that cannot be counted, a plan counts the library's, and training reports none, once."""
    batch, sizes = setup().abstract_batch(4, 32), {"batch": 4, "length": 32, "layers": 2, "d_model": 8}
    products = 3 * 2 * 2 * sizes["batch"] * sizes["length"] ** 2 * sizes["layers"] * sizes["d_model"]
    plain, of_doubled, of_twice = (setup(x).costs(batch).flops for x in (None, doubled, twice))
    assert (of_doubled, of_twice) == (plain, plain + products)
    with caplog.at_level(logging.WARNING):
        assert setup(looping).costs(batch).flops == plain
    assert "your attention is counted as if it were the library's: the products of a while loop" in caplog.text
    said = []
    count = batch_flops(setup(looping), said.append)
    batches = [setup().abstract_batch(rows, 32) for rows in (4, 8)]
    assert [count(batch) for batch in batches] == [0.0, 0.0]
    assert len(said) == 1


@pytest.mark.skipif(not hasattr(modules, "per_layer"), reason="this version has no modules.per_layer")
def test_an_attention_for_each_layer(tmp_path):
    path = tmp_path / "each.py"
    path.write_text(
        "from flax import nnx\nimport jax\nfrom jaxformer import functional as F, modules\n"
        "class Noisy(nnx.Module):\n"
        "    def __init__(self, rngs):\n"
        "        self.factor = nnx.Param(jax.random.normal(rngs.params(), ()), axes=())\n"
        "    def __call__(self, query, key, value, *, mask=None):\n"
        "        return F.attention(query * self.factor[...], key, value, mask=mask)\n"
        "attend = modules.per_layer(lambda rngs, layer: Noisy(rngs))\n"
    )
    made = setup(own_attention.load(f"{path}:attend").attention)
    factor = made.new_state().params["decoder"]["stack"]["layers"]["attention"]["attention"]["factor"]
    assert factor.shape == (2,)
    assert factor[0] != factor[1]
