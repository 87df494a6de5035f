"""Exported runs: Hugging Face's library reads them, and computes the same texts and numbers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer
from jaxformer import demo
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.tasks import pretrained
from tests.contracts.task import quiet

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
pytestmark = pytest.mark.parity

PAIRS = demo.generate(400)
TEXTS = ["The old man sees the house.", "A \u4e00 cat\u2581 sings!  Twice.", "", " x"]
SHAPE = {"d_model": 16, "num_heads": 2, "d_ff": 24}


def trained(folder, task, *, steps=3, **settings):
    """Trains a tiny run of the demo's sentences, and returns its folder."""
    folder.mkdir()
    for name in ("english", "french"):
        (folder / name).write_text("".join(getattr(pair, name) + "\n" for pair in PAIRS))
    data = {"source": str(folder / "english"), "target": str(folder / "french"), "held_out": 50}
    data = data if task == "translation" else {"text": str(folder / "english"), "length": 32}
    settings["data"] = data | {"cache": str(folder / "cache")} | settings.get("data", {})
    train = {"steps": steps, "tensorboard": False}
    optimizer = {"learning_rate": 0.05, "warmup_steps": 0}
    config = jaxformer.configure(task, train=train, optimizer=optimizer, **settings)
    jaxformer.train(config, folder / "run", console=quiet())
    return folder / "run"


def theirs(folder, kind):
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "characters"])
def test_a_language_model_is_a_gpt2(tmp_path, kind):
    """Its embeddings have a factor and its attention no biases, which a GPT-2 has otherwise."""
    data = {"tokenizer": kind, **({} if kind == "characters" else {"vocab_size": 400})}
    run = trained(tmp_path / "lm", "language_model", model=SHAPE | {"num_layers": 2}, data=data)
    assert pretrained.export(run, tmp_path / "out") == "gpt2"
    model, tokenizer = theirs(tmp_path / "out", "AutoModelForCausalLM")
    generator = jaxformer.load(run, decode={"search": "greedy", "max_tokens": 6})
    for text in TEXTS:
        (ids,) = generator.tokenizer.encode([text])
        assert tokenizer(text)["input_ids"] == ids.tolist()
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=True) == generator.tokenizer.decode(ids)
    (ids,) = tokenizer(TEXTS[:1], return_tensors="pt")["input_ids"]
    own = generator.net.apply(generator.params, jnp.asarray(ids.numpy()[None]))[0, :, : generator.tokenizer.vocab_size]
    np.testing.assert_allclose(own, model(ids[None]).logits[0].detach().numpy(), atol=2e-4)


def test_a_language_model_with_the_biases_of_a_qwen2_is_a_llama(tmp_path):
    """Any tokenizer of a qwen2 gets Qwen's rules in transformers, by which no text would have our tokens."""
    parts = {
        "positions": "rotary",
        "norm": "rms",
        "embedding_scale": 1.0,
        "feed_forward": {"kind": "gated", "bias": False},
        "activation": "silu",
    }
    biases = {"attention_bias": True, "attention_output_bias": False}
    model = SHAPE | {"num_layers": 1, "tie_embeddings": False} | parts | biases
    run = trained(tmp_path / "lm", "language_model", model=model, data={"vocab_size": 400})
    with pytest.raises(ConfigError, match="by the rules of Qwen's vocabulary: leave out --family qwen2"):
        pretrained.export(run, tmp_path / "out", family="qwen2")
    assert pretrained.export(run, tmp_path / "out") == "llama"
    model, tokenizer = theirs(tmp_path / "out", "AutoModelForCausalLM")
    generator = jaxformer.load(run)
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == generator.tokenizer.encode([text])[0].tolist()
    (ids,) = tokenizer(TEXTS[:1], return_tensors="pt")["input_ids"]
    own = generator.net.apply(generator.params, jnp.asarray(ids.numpy()[None]))[0, :, : generator.tokenizer.vocab_size]
    np.testing.assert_allclose(own, model(ids[None]).logits[0].detach().numpy(), atol=2e-4)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_translator_is_a_pegasus_or_a_marian(tmp_path, norm_position):
    """Its dimensions have another order, for the sines of its positions alternate with the cosines."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "norm_position": norm_position}
    data = {"vocab_size": 400, "tokens_per_batch": 1024}
    run = trained(tmp_path / "tr", "translation", model=SHAPE | sizes, data=data, decode={"max_length": 12})
    assert pretrained.export(run, tmp_path / "out") == {"pre": "pegasus", "post": "marian"}[norm_position]
    model, tokenizer = theirs(tmp_path / "out", "AutoModelForSeq2SeqLM")
    translator = jaxformer.load(run)
    pad = model.generation_config.pad_token_id  # of a marian the last, which has changed places with the first
    places = {pad: 0, 0: pad}
    for text in TEXTS:
        ids = [*translator.tokenizer.encode([text])[0].tolist(), translator.tokenizer.special.eos]
        assert tokenizer(text)["input_ids"] == [places.get(x, x) for x in ids]
    translator = jaxformer.load(run, decode={"search": {"beam_size": 3}, "forced_end": "never"})
    ((*found,),) = translator.candidates(TEXTS[:1], n_best=3)
    source = tokenizer(TEXTS[:1], return_tensors="pt")["input_ids"]
    given = {"num_return_sequences": 3, "return_dict_in_generate": True, "output_scores": True, "num_beams": 3}
    assert model.generation_config.bad_words_ids == sorted([[1], [pad]])
    result = model.generate(source, **given)
    fill = {pad, translator.tokenizer.special.eos}
    sequences = [[places.get(x, x) for x in row[1:].tolist() if x not in fill] for row in result.sequences]
    assert [list(candidate.tokens) for candidate in found] == sequences
    np.testing.assert_allclose([c.score for c in found], result.sequences_scores.numpy(), atol=2e-4)


@pytest.mark.parametrize("types", [0, 2])
def test_a_masked_language_model_is_a_bert(tmp_path, types):
    model = SHAPE | {
        "num_layers": 1,
        "norm_position": "post",
        "norm": choices.LayerNorm(1e-12),
        "embedding_norm": True,
    }
    model |= {
        "embedding_scale": 1.0,
        "attention_bias": True,
        "num_token_types": types,
        "positions": choices.Learned(),
    }
    run = trained(tmp_path / "mlm", "masked_language_model", model=model, data={"vocab_size": 400})
    assert pretrained.export(run, tmp_path / "out") == "bert"
    model, tokenizer = theirs(tmp_path / "out", "AutoModelForMaskedLM")
    text = "The old [MASK] sees the house."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    (place,) = (ids[0] == tokenizer.mask_token_id).nonzero()[0]
    best = model(ids).logits[0, place, :-1].softmax(-1).topk(3)
    (found,) = jaxformer.load(run).fill(text, top_k=3)
    assert [piece for piece, _ in found] == tokenizer.convert_ids_to_tokens(best.indices.tolist())
    np.testing.assert_allclose([p for _, p in found], best.values.detach().numpy(), atol=1e-4)


def test_settings_of_the_folder_are_read(tmp_path):
    run = trained(tmp_path / "tr", "translation", steps=1, model=SHAPE, data={"vocab_size": 400})
    pretrained.export(run, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    found = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (found.num_beams, found.max_length, found.early_stopping) == (4, settings["max_length"], True)


def test_sampling_is_read_and_used(tmp_path):
    """The most probable token alone has the requested total probability, so samples are the greedy text."""
    data = {"tokenizer": "characters"}
    run = trained(tmp_path / "lm", "language_model", model=SHAPE | {"num_layers": 1}, data=data)
    written = json.loads((run / "config.json").read_text())
    search = {"kind": "sample", "temperature": 0.7, "top_p": 1e-6}
    written["config"]["decode"] |= {"search": search, "max_tokens": 5}
    (run / "config.json").write_text(json.dumps(written))
    pretrained.export(run, tmp_path / "out")
    found = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (found.do_sample, found.temperature, found.top_k, found.top_p) == (True, 0.7, 0, 1e-6)
    model, tokenizer = theirs(tmp_path / "out", "AutoModelForCausalLM")
    ids = tokenizer(TEXTS[:1], return_tensors="pt")["input_ids"]
    (text,) = jaxformer.load(run, decode={"search": "greedy", "max_tokens": 5}).generate(TEXTS[:1])
    assert tokenizer.decode(model.generate(ids)[0], skip_special_tokens=True) == text
