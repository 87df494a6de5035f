"""The files of `examples/`, in a short form: they learn, and what their docstrings promise holds."""

import dataclasses
import io
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

import jaxformer
from examples import (
    differential_attention,
    minimal,
    own_attention,
    own_model,
    own_task,
    run_program,
    sharded,
    sparsemax,
    write_program,
)
from jaxformer import functional, masks, models, modules, pure, sharding
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.data.text import Text
from jaxformer.models import choices
from jaxformer.tasks import registry
from tests.contracts.task import TaskContract
from tests.tasks.translation import translators


@pytest.fixture(scope="module")
def trained():
    """One layer: each is written out, and compiled."""
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):
        patch.setattr(minimal, "LAYERS", 1)  # and optax mixes float32 with its integer step count
        return minimal.train(40, batch_size=16)


def test_the_minimal_transformer_learns(trained):
    _, losses = trained
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_its_greedy_search_agrees_with_the_teacher_forced_pass(trained):
    params, _ = trained
    sources, _ = minimal.encode_tokens(np.array([7, 42, 1300, 999_999]))

    @jax.jit
    def best(source, target):
        tokens = jnp.concatenate([jnp.array([minimal.BOS]), target[:-1]])
        return minimal.decode(params, tokens, source, minimal.encode(params, source)).argmax(-1)

    written = minimal.greedy(params, sources)
    real = written != minimal.PAD
    assert real.sum() > len(sources)  # not only <eos>
    assert (jnp.where(real, jax.vmap(best)(sources, written), minimal.PAD) == written).all()


def test_its_heads_are_those_of_the_library(trained):
    p = trained[0]["decoder"][0]["cross"]
    x, memory = jax.random.normal(jax.random.key(0), (2, 6, minimal.D))
    mask = masks.padding([[True, True, True, True, False, False]])

    @jax.jit
    def both(x, memory):
        project = lambda x, name: jnp.einsum("td,dnh->tnh", x, p[name])[None]
        query, key, value = project(x, "query"), project(memory, "key"), project(memory, "value")
        mixed = functional.attention(query, key, value, mask=mask)[0]
        return minimal.attend(p, x, memory, mask), jnp.einsum("tnh,nhd->td", mixed, p["output"])

    np.testing.assert_allclose(*both(x, memory), atol=1e-5)


def test_its_numbers():
    assert " ".join(minimal.words(417_203)) == "four hundred seventeen thousand two hundred three"
    assert " ".join(minimal.words(90_011)) == "ninety thousand eleven"
    shown, unseen = (minimal.draw(np.random.default_rng(0), 500, held_out=held_out) for held_out in (False, True))
    assert len(shown) == len(unseen) == 500
    assert not set(shown.tolist()) & set(range(105, 1_000_000, 7))
    assert set(unseen.tolist()) <= set(range(105, 1_000_000, 7))


def test_sigmoid_attention_is_its_formula():
    query, key, value = np.asarray(jax.random.normal(jax.random.key(0), (3, 2, 5, 2, 4)))
    output = jax.jit(own_attention.sigmoid_attention)(query, key, value, mask=masks.causal())
    example, row, head = 1, 3, 1
    logits = key[example, : row + 1, head] @ query[example, row, head] / 2  # 2 = sqrt(4)
    weights = 1 / (1 + np.exp(-(logits - np.log(row + 1))))
    np.testing.assert_allclose(output[example, row, head], weights @ value[example, : row + 1, head], rtol=1e-5)
    with pytest.raises(TypeError, match="dropout"):
        own_attention.sigmoid_attention(query, key, value, dropout=functional.Dropout(0.1, jax.random.key(0)))


@pytest.mark.full
def test_a_model_learns_and_decodes_with_a_custom_attention_function():
    losses = own_attention.train(own_attention.sigmoid_attention, 100, batch_size=16)
    assert np.mean(losses[-5:]) < losses[0] - 1
    net = own_attention.network(own_attention.sigmoid_attention)

    @jax.jit
    def both(params, tokens):
        model = net.bind(params)
        context, state = model.start(batch_size=1, beam_size=1, length=3)
        logits, state = model.step(tokens[:, :1], state, context)
        logits, state = model.step(tokens[:, 1:], state, context)
        return logits[:, 0], model(tokens)[:, 1]

    params = jax.jit(net.init)(jax.random.key(0))
    np.testing.assert_allclose(*both(params, jnp.array([[3, 1]])), atol=1e-4)
    weights = own_attention.weights_of(net, params, jnp.array([[3, 1, 2]]), layer=1)
    assert weights.shape == (1, 4, 3, 3)
    assert np.abs(weights.sum(-1) - 1).max() > 0.01  # no softmax


def test_sparsemax_is_the_nearest_point_of_the_simplex():
    """By sorting, as in algorithm 1 of the paper, with its Jacobian."""
    logits = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32) * [[0.1], [0.5], [1], [3], [100]]
    ordered = -np.sort(-logits, -1)
    excess, counts = ordered.cumsum(-1) - 1, np.arange(1, 8)
    number = (counts * ordered > excess).sum(-1, keepdims=True)
    expected = np.maximum(logits - np.take_along_axis(excess, number - 1, -1) / number, 0)
    weights, slopes = jax.jit(lambda z: (sparsemax.sparsemax(z, z == z), jax.jacobian(sparsemax.sparsemax)(z, z == z)))(
        jnp.float32(logits)
    )
    np.testing.assert_allclose(weights, expected, atol=2e-5)
    assert len(set(number.ravel().tolist())) > 2  # rows of different supports
    for row in range(5):
        chosen = (expected[row] > 0).astype(float)
        jacobian = np.diag(chosen) - np.outer(chosen, chosen) / chosen.sum()
        np.testing.assert_allclose(slopes[row, :, row], jacobian, atol=1e-5)


def test_sparsemax_attention_hides_what_the_mask_hides():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 4))
    mask = masks.padding([[True, True, True, False, False], [False] * 5])
    shared = jax.jit(sparsemax.attention)(query, key[:, :, :2], value[:, :, :2], mask=mask)
    output = jax.jit(sparsemax.attention)(query, key[:, :, [0, 0, 1, 1]], value[:, :, [0, 0, 1, 1]], mask=mask)
    np.testing.assert_allclose(shared, output, rtol=1e-5)  # heads of queries that share their keys
    weights = jax.jit(lambda q, k: functional.weights_of(sparsemax.attention, q, k, mask=mask))(query, key)
    np.testing.assert_allclose(weights[0].sum(-1), 1, rtol=1e-5)
    assert (weights[0, ..., 3:] == 0).all()
    assert not weights[1].any()
    assert (weights[0, ..., :3] == 0).mean() > 0.1


def test_differential_attention_is_its_formula():
    module = differential_attention.DifferentialAttention(nnx.Rngs(0), 2)
    query, key, value = np.asarray(jax.random.normal(jax.random.key(0), (3, 2, 5, 4, 4)))
    run = jax.jit(lambda *x: (module(*x, mask=masks.causal()), module.weights(*x[:2], mask=masks.causal())))
    output, weights = run(query, key, value)
    example, row, pair = 1, 3, 1
    first, second = (jax.nn.softmax(key[example, : row + 1, n] @ query[example, row, n] / 2) for n in (2, 3))
    a1, b1, a2, b2 = np.asarray(module.vectors[...])
    initial = 0.8 - 0.6 * np.exp(-0.6)
    strength = np.exp(a1 @ b1) - np.exp(a2 @ b2) + initial
    expected = np.asarray(first - strength * second)
    np.testing.assert_allclose(weights[example, pair, row, : row + 1], expected, rtol=1e-4, atol=1e-6)
    assert weights.shape == (2, 2, 5, 5)
    assert (weights < -0.01).any()
    mixed = np.concatenate([expected @ value[example, : row + 1, n] for n in (2, 3)])
    normed = (1 - initial) * mixed / np.sqrt((mixed**2).mean() + 1e-5)
    np.testing.assert_allclose(output[example, row, 2:].ravel(), normed, rtol=1e-4)
    with pytest.raises(ValueError, match="must be even, got 3"):
        module(query[:, :, :3], key[:, :, :3], value[:, :, :3])


@pytest.mark.full
@pytest.mark.parametrize(("example", "maps"), [(differential_attention, 2), (sparsemax, 4)])
def test_a_language_model_decodes_with_an_attention_of_the_examples(example, maps):
    net = pure(models.LanguageModel, own_attention.CONFIG, attention=example.attention)
    tokens = jnp.array([[3, 1, 2]])

    @jax.jit
    def all_ways(params):
        model = net.bind(params)
        context, state = model.start(batch_size=1, beam_size=1, length=4)
        for i in range(3):
            logits, state = model.step(tokens[:, i : i + 1], state, context)
        return logits[:, 0], model(tokens)[:, -1], model.captured(tokens)["decoder.self"].weights()

    params = jax.jit(net.init)(jax.random.key(0))
    by_steps, at_once, weights = all_ways(params)
    np.testing.assert_allclose(by_steps, at_once, atol=1e-4)
    assert weights.shape == (2, 1, maps, 3, 3)
    layer = params["decoder"]["stack"]["layers"]["attention"].get("attention")
    if example is differential_attention:
        assert (layer["vectors"][0] != layer["vectors"][1]).all()
        np.testing.assert_allclose(np.asarray(weights)[:, 0, 0, 0].sum(-1), 1 - strengths(layer), atol=1e-5)


def strengths(layer):
    """The factors of the second softmax in two layers, by the formula."""
    a1, b1, a2, b2 = np.moveaxis(np.asarray(layer["vectors"]), 1, 0)
    initial = 0.8 - 0.6 * np.exp(-0.3 * np.arange(2))
    return np.exp((a1 * b1).sum(-1)) - np.exp((a2 * b2).sum(-1)) + initial


@pytest.mark.full
@pytest.mark.parametrize(
    ("example", "maps"), [(differential_attention, "2, which it offers"), (sparsemax, "4, its out")]
)
def test_the_attentions_of_the_examples_keep_the_contract(example, maps):
    """Also where two heads of queries share their keys."""
    findings = modules.check_attention(example.attention, num_kv_heads=2).findings
    assert findings["maps"].startswith(maps)


@pytest.mark.full
@pytest.mark.parametrize("example", [differential_attention, sparsemax])
def test_the_commands_use_an_attention_of_the_examples(example, tmp_path, capsys):
    """Training, writing, and a translator with its maps, as the docstrings say."""
    given = ["--attention", f"{example.__file__}:attention", "--train.tensorboard", "False", "--train.steps", "2"]
    given += ["--optimizer.warmup-steps", "1"]
    (tmp_path / "text.txt").write_text(TEXT)
    text = ["--data.text", str(tmp_path / "text.txt"), "--data.length", "16", "--data.batch-size", "8"]
    assert main(["train", "language_model:tiny", *text, *given, "--out", str(tmp_path / "text")]) == 0
    assert main(["generate", str(tmp_path / "text"), "in", "--decode.max-tokens", "3"]) == 0
    sizes = ["--model.d-model", "16", "--model.d-ff", "16", "--data.grammar-pairs", "2000", "--data.vocab-size", "400"]
    assert main(["train", "demo", *sizes, *given, "--out", str(tmp_path / "demo")]) == 0
    translator = jaxformer.load(tmp_path / "demo")
    weights = translator.attention("The house is old.").weights
    assert weights.shape[:2] == (2, 2 if example is differential_attention else 4)
    assert "step 2/2" in capsys.readouterr().err


def test_a_text_of_one_letter():
    tokens, alone = own_model.draw(np.random.default_rng(0), 50)
    for text, position in zip(tokens.tolist(), alone.tolist(), strict=True):
        assert [text.count(letter) for letter in text].count(1) == 1
        assert text.count(text[position]) == 1


@pytest.mark.full
def test_a_model_with_a_custom_head_learns():
    with jax.numpy_dtype_promotion("standard"):
        net, params, losses = own_model.train(220)
    assert {"encoder", "score"} == params.keys()
    assert np.mean(losses[-5:]) < 0.5 * losses[0]
    assert own_model.accuracy(net, params, count=200) > 0.5  # a guess is right for 0.07


@pytest.mark.full
def test_a_mesh_gives_the_losses_of_one_device(capsys):
    mesh = sharding.mesh("data=2,fsdp=2,tensor=2")
    on_mesh = sharded.losses(mesh, 4, show=True)
    np.testing.assert_allclose(on_mesh, sharded.losses(sharding.mesh("data=1", jax.devices()[:1]), 4), rtol=1e-4)
    assert on_mesh[-1] < on_mesh[0]
    printed = capsys.readouterr().out
    assert "device 3 has 0:2, 32:64, 128:256" in printed  # half of the rows and of the columns of each kernel
    table = dict(line.rsplit(maxsplit=1) for line in printed.splitlines() if line.startswith("decoder/"))
    assert next(v for k, v in table.items() if "up/kernel" in k) == f"{2 * 64 * 256 * 4 // 4:,}"
    assert "device 7 has 12:16, 0:32" in printed  # a quarter of the rows of a batch


@pytest.fixture(scope="module", autouse=True)
def registered():
    """As an entry point does for an installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.TASKS, "truecase", "examples.own_task")
        yield


TEXT = "In Paris, Anna met Bob. He told her of Rome; she spoke of London.\n" * 20


def truecase(folder):
    """A tiny configuration with its text."""
    (folder / "text.txt").write_text(TEXT)
    model = models.EncoderConfig(
        256, num_layers=1, d_model=16, num_heads=2, d_ff=32, positions=choices.Rotary(), dropout=0.1
    )
    data = own_task.DataConfig(text=str(folder / "text.txt"), length=16, batch_size=8)
    settings = {"steps": 6, "validate_every": 3, "checkpoint_every": 2, "log_every": 1, "tensorboard": False}
    config = own_task.TruecaseConfig(model=model, data=data, mesh="data=8")
    return changed(config, {"train": settings, "optimizer": {"schedule": "constant", "warmup_steps": 2}})


@pytest.mark.full
class TestOwnTask(TaskContract):
    task, has_intervals = "truecase", False
    refused = (
        ({"data": {"text": ""}}, "no text: give --data.text"),
        ({"data": {"text": "nowhere.txt"}}, "nowhere.txt"),
        ({"data": {"length": 1200}}, "the text has 1,188 tokens, fewer than a window of 1,200"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return truecase(tmp_path_factory.mktemp("text"))

    def change_training_data(self, config, patch):
        patch.setattr(own_task, "split_text", lambda text, **options: (Text("a"), Text("b")))


def test_windows_hold_every_byte_once():
    config = own_task.TruecaseConfig(data=own_task.DataConfig(length=16, batch_size=8))
    windows = own_task.windows(own_task.OrderedWindows, Text(TEXT), config)
    tokens = [windows.batch(i).tokens for i in range(windows.steps_per_epoch)]
    assert bytes(np.concatenate([x.ids[x.valid] for x in tokens]).astype(np.uint8)).decode() == TEXT


def test_a_run_of_an_own_task_is_loaded_and_used(tmp_path):
    config = changed(truecase(tmp_path), {"train": {"steps": 2, "validate_every": 2}})
    jaxformer.train(config, tmp_path / "run", console=Console(file=io.StringIO()))
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert any("validation_f1" in entry for entry in logged)
    truecaser = jaxformer.load(tmp_path / "run")
    assert truecaser.restore("") == ""
    assert truecaser.restore("Ärger in Köln").lower() == "ärger in köln"
    scores = jaxformer.evaluate(tmp_path / "run", truecaser, say=lambda line: None)["text"]
    assert [score.name for score in scores] == ["precision", "recall", "F1"]
    always = dataclasses.replace(
        truecaser,
        params=jax.tree.map(jnp.zeros_like, truecaser.params)
        | {"output": {"kernel": jnp.zeros((16, 1)), "bias": jnp.ones(1)}},
    )
    assert always.restore("Ärger in Köln") == "ÄRGER IN KöLN"


@pytest.mark.full
def test_a_program_translates_without_the_library(tmp_path, monkeypatch):
    """Its process can import jax, flatbuffers and sentencepiece, but neither this library nor flax."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # a symbol is no integer
    one = translators.with_settings(translators.translator(beam_size=4), max_length=12, max_ratio=100.0)
    write_program.write(one, tmp_path / "program", length=12)
    monkeypatch.undo()
    sentences = ["The old man sees the house.", "She sings \u2581 twice.", "Why?"]
    code = "import runpy, sys; sys.modules |= dict.fromkeys(('jaxformer', 'flax', 'optax')); del sys.argv[0]"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, run_program.__file__, str(tmp_path / "program"), *sentences]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "\n".join(one.translate(sentences)) + "\n"), done.stderr


def test_a_vocabulary_that_a_program_lacks_is_refused(tmp_path):
    one = dataclasses.replace(translators.translator(), tokenizer=None)
    with pytest.raises(SystemExit, match="the vocabulary must be one of sentencepiece alone"):
        write_program.write(one, tmp_path / "program")
    assert not (tmp_path / "program").exists()
