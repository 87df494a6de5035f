"""The files of `examples/`, in a short form: they learn, and what their docstrings promise holds."""

import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import jaxformer
from examples import minimal, own_attention, own_model, own_task, sharded
from jaxformer import functional, masks, models, sharding
from jaxformer.config import changed
from jaxformer.tasks import registry
from tests.contracts.task import TaskContract


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
    model = models.EncoderConfig(256, num_layers=1, d_model=16, num_heads=2, d_ff=32, positions="rotary", dropout=0.1)
    data = own_task.DataConfig(text=str(folder / "text.txt"), length=16, batch_size=8)
    settings = {"steps": 6, "validate_every": 3, "checkpoint_every": 2, "log_every": 1, "tensorboard": False}
    config = own_task.TruecaseConfig(model=model, data=data, mesh="data=8")
    return changed(config, {"train": settings, "optimizer": {"schedule": "constant", "warmup_steps": 2}})


@pytest.mark.full
class TestOwnTask(TaskContract):
    task = "truecase"
    refused = (
        ({"data": {"text": ""}}, "no text: give --data.text"),
        ({"data": {"text": "nowhere.txt"}}, "nowhere.txt"),
        ({"data": {"length": 200}}, "has 1,320 bytes, too few for windows of 200"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return truecase(tmp_path_factory.mktemp("text"))

    def change_training_data(self, config, patch):
        patch.setattr(own_task.TruecaseTask, "read", lambda self, config: own_task.Splits(*[own_task.Part(BYTES)] * 2))


BYTES = np.frombuffer(TEXT.encode(), np.uint8)


def test_windows_hold_every_byte_once_and_know_its_case():
    windows = own_task.Windows(BYTES, own_task.DataConfig(length=16, batch_size=8))
    batches = [windows.batch(i) for i in range(windows.steps_per_epoch)]
    arrays = [(batch.tokens.ids, batch.capital, batch.tokens.valid) for batch in batches]
    tokens, capital, valid = (np.concatenate([x.ravel() for x in each]) for each in zip(*arrays, strict=True))
    assert bytes(tokens[valid].astype(np.uint8)).decode() == TEXT.lower()
    assert bytes((tokens - 32 * capital)[valid].astype(np.uint8)).decode() == TEXT
    parts = [windows.batch(1, rows=lambda n, half=half: np.arange(n + 2)[half::2]) for half in (0, 1)]
    # two processes, whose rows beyond the batch are empty
    for one, other, whole in zip(*map(jax.tree.leaves, (*parts, batches[1])), strict=True):
        both = np.stack([one, other], 1).reshape(10, 16)
        np.testing.assert_array_equal(both[:8], whole)
        assert not both[8:].any()


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
