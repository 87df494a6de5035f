"""Runs made of pretrained models: they compute what the models do, and other runs start from them."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from tokenizers import Tokenizer

import jaxformer
from jaxformer import interop, models, pure
from jaxformer.cli import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.interop import hub
from jaxformer.models import families
from jaxformer.tasks import pretrained, registry, runs
from jaxformer.tasks.config import Beam, Greedy
from jaxformer.tasks.pretrained import conversion
from tests.contracts.task import quiet
from tests.interop.small import drawn
from tests.modules.small import quick
from tests.selection import first
from tests.tokenizers import marian
from tests.tokenizers import pretrained as tokenizers

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12, "num_layers": 1, "max_positions": 48}
GPT2 = {"eos_token": tokenizers.END, "bos_token": tokenizers.END}
TEXT = "The old man sees the house."


def folder(path, family, model, config, content, names):
    """A folder of a pretrained model; returns its net and parameters."""
    net = pure(model, config)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    interop.save_pretrained(path, net, params, family=family)
    tokenizers.write(path, content, names)
    return net, params


def gpt2(path, vocab_size=325):
    config = families.gpt2(vocab_size, **SIZES)
    return folder(path, "gpt2", models.LanguageModel, config, tokenizers.byte_level(), GPT2)


def bert(path, model=models.MaskedLanguageModel):
    config = families.bert(150, **SIZES)
    return folder(path, "bert", model, config, tokenizers.word_piece(), tokenizers.BERT)


@pytest.mark.parametrize("vocab_size", [325, *(pytest.param(n, marks=pytest.mark.full) for n in (328, 340))])
def test_a_language_model(tmp_path, vocab_size):
    """The table of a run has 328 rows; 3 of them have no token and are never probable."""
    net, params = gpt2(tmp_path / "gpt2", vocab_size)
    config = pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    assert config == registry.read_config(tmp_path / "run")
    generator = jaxformer.load(tmp_path / "run")
    (ids,) = generator.tokenizer.encode([TEXT])
    logits = quick(net.apply)(params, np.asarray(ids[None]))[0, :-1, :328]
    expected = np.asarray(jax.nn.log_softmax(logits))[np.arange(len(ids) - 1), ids[1:]]
    (found,) = generator.score([TEXT])
    np.testing.assert_allclose(found.token_log_probs, expected, atol=1e-5)
    (text,) = generator.generate([TEXT])
    assert text.startswith(TEXT)
    (run,) = runs.find_runs(tmp_path)
    assert run.state == "converted"


def test_a_model_by_name(tmp_path, monkeypatch, capsys):
    """Its commit and its hashes are kept; what the Hub refuses is one line, and no run."""
    gpt2(tmp_path / "cache" / "c0ffee")
    found = hub.Snapshot("a/tiny", tmp_path / "cache" / "c0ffee", "c0ffee", {"config.json": "f00d"})
    monkeypatch.setattr(hub, "snapshot", lambda path: found if str(path) == "a/tiny@v1" else None)
    assert main.main(["convert", "a/tiny@v1", "--out", str(tmp_path / "run")]) == 0
    assert registry.read_config(tmp_path / "run").name == "tiny"
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert [provenance[name] for name in ("converted", "revision", "files")] == ["a/tiny", "c0ffee", found.hashes]
    monkeypatch.undo()
    capsys.readouterr()
    assert main.main(["convert", "a/b/c", "--out", str(tmp_path / "other")]) == 2
    line = "jaxformer convert: a/b/c is not a folder; to download a model, give its name, ORG/NAME or ORG/NAME@REVISION"
    assert capsys.readouterr().err == f"{line}\n"
    assert not (tmp_path / "other").exists()


@pytest.mark.full
def test_a_continuation_stops_at_the_end_token(tmp_path):
    """The fourth token of a greedy continuation is made the end token: three tokens of text precede it."""
    gpt2(tmp_path / "gpt2")
    pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    greedy = {"search": "greedy", "max_tokens": 8, "no_repeat_ngram_size": 1}
    generator = jaxformer.load(tmp_path / "run", decode=greedy)
    ((whole,),) = generator.continuations([TEXT])
    assert len(whole.tokens) == 8
    end = whole.tokens[3]
    assert end not in whole.tokens[:3]
    piece = Tokenizer.from_file(str(tmp_path / "gpt2" / "tokenizer.json")).id_to_token(end)
    tokenizers.write(tmp_path / "gpt2", tokenizers.byte_level(), GPT2 | {"eos_token": piece})
    pretrained.convert(tmp_path / "gpt2", tmp_path / "stops")
    for options in ({}, {"search": {"kind": "beam", "beam_size": 2}}):
        generator = jaxformer.load(tmp_path / "stops", decode=greedy | options)
        ((found,),) = generator.continuations([TEXT])
        if not options:
            assert found.tokens == whole.tokens[:4]
            np.testing.assert_allclose(found.token_log_probs, whole.token_log_probs[:4], atol=1e-5)
            assert found.text == TEXT + generator.tokenizer.decode(whole.tokens[:3])
        assert end not in found.tokens[:-1]
        assert found.score == pytest.approx(found.log_prob / len(found.tokens))
    generator = jaxformer.load(tmp_path / "stops", decode=greedy | {"stop_at_end": False})
    ((found,),) = generator.continuations([TEXT])
    assert len(found.tokens) == 8
    assert end not in found.tokens


@pytest.mark.full
def test_a_text_begins_with_the_begin_token(tmp_path):
    content = tokenizers.byte_level(begin="<|begin|>")
    config = families.llama(325, **SIZES)
    net, params = folder(
        tmp_path / "llama", "llama", models.LanguageModel, config, content, GPT2 | {"bos_token": "<|begin|>"}
    )
    pretrained.convert(tmp_path / "llama", tmp_path / "run")
    generator = jaxformer.load(tmp_path / "run")
    ids = np.array([generator.tokenizer.special.bos, *generator.tokenizer.encode([TEXT])[0]])
    expected = jax.nn.log_softmax(quick(net.apply)(params, ids[None].astype(np.int32))[0, :-1])
    (found,) = generator.score([TEXT])
    assert len(found.token_log_probs) == len(ids) - 1
    np.testing.assert_allclose(found.token_log_probs, np.asarray(expected)[np.arange(len(ids) - 1), ids[1:]], atol=1e-5)
    (text,) = generator.generate([TEXT])
    assert text.startswith(TEXT)


@pytest.mark.parametrize("version", first(["t5", "t5_v1_1"]))
def test_t5_becomes_a_translator(tmp_path, version):
    """Its decoder begins with the padding token; rows of the table beyond the vocabulary are left out."""
    sizes = {name: SIZES[name] for name in ("d_model", "num_heads", "d_ff")}
    config = getattr(families, version)(330, **sizes, num_encoder_layers=1, num_decoder_layers=1)
    names = {"eos_token": tokenizers.END, "pad_token": "<pad>", "unk_token": tokenizers.END}
    content = tokenizers.byte_level(pad="<pad>")
    net, params = folder(tmp_path / "t5", "t5", models.EncoderDecoder, config, content, names)
    edited(tmp_path / "t5" / "config.json", decoder_start_token_id=1)
    pretrained.convert(tmp_path / "t5", tmp_path / "run")
    translator = jaxformer.load(tmp_path / "run")
    special = translator.tokenizer.special
    assert (special.bos, special.pad, special.eos) == (1, 1, 0)
    source, target = (np.append(ids, 0) for ids in translator.tokenizer.encode([TEXT, "A cat."]))
    expected = scored(net, params, source, target, bos=1, num_rows=325)
    (found,) = translator.score([TEXT], ["A cat."])
    np.testing.assert_allclose(found.token_log_probs, expected, atol=1e-5)
    assert translator.translate([TEXT])


def pair_of(path, family, config, **settings):
    """A folder of an encoder-decoder without a tokenizer; returns its net and parameters."""
    net = pure(models.EncoderDecoder, config)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    interop.save_pretrained(path, net, params, family=family, settings=settings)
    return net, params


def scored(net, params, source, target, *, bos, num_rows=None):
    """The log-probabilities of target tokens, among the first rows of the table."""
    tokens = (np.asarray(ids, np.int32)[None] for ids in (source, np.append(bos, target[:-1])))
    logits = np.asarray(quick(net.apply)(params, *tokens))[0, :, :num_rows]
    return np.asarray(jax.nn.log_softmax(logits))[np.arange(len(target)), target]


SIDES = {"num_encoder_layers": 1, "num_decoder_layers": 1} | {k: SIZES[k] for k in ("d_model", "num_heads", "d_ff")}


@pytest.mark.parametrize("rows", first([0, 1]))
def test_a_bart_begins_each_text_with_its_first_token(tmp_path, rows):
    """A special token, here the last one, may lack a vector: it is then never chosen."""
    content = json.loads(tokenizers.byte_level(begin="<s>", pad="<pad>", end=True))
    last = next(piece for piece, token in content["model"]["vocab"].items() if token == 324)
    if rows:
        content["added_tokens"].append(content["added_tokens"][0] | {"id": 324, "content": last})
    names = {"eos_token": tokenizers.END, "pad_token": "<pad>", "unk_token": tokenizers.END, "bos_token": "<s>"}
    config = families.bart(325 - rows, **SIDES, max_positions=64)
    net, params = pair_of(tmp_path / "bart", "bart", config, decoder_start_token_id=0, forced_bos_token_id=1)
    tokenizers.write(tmp_path / "bart", json.dumps(content), names)
    pretrained.convert(tmp_path / "bart", tmp_path / "run")
    translator = jaxformer.load(tmp_path / "run", decode={"max_length": 6})
    (start,) = translator.tokenizer.start
    assert start == translator.tokenizer.id_of("<s>")
    text = "A cat."  # without the piece that may lack a vector
    source, target = (np.array([start, *ids, 0]) for ids in translator.tokenizer.encode([text, "A cat."]))
    assert 324 not in (*source, *target)
    expected = scored(net, params, source, target, bos=0)
    (given,) = translator.score([text], ["A cat."])
    np.testing.assert_allclose(given.token_log_probs, expected[1:], atol=1e-5)
    bias = np.asarray(translator.params["decoder"]["output_bias"])
    assert (bias[324] == conversion.NEVER) == bool(rows)
    ((best,),) = translator.candidates([text])
    assert (best.tokens[0], best.token_log_probs[0]) == (start, 0)
    assert "<s>" not in best.text
    assert translator.alignments([text], ["A cat."])[0]
    ((begun,),) = translator.candidates([text], prefixes=["A"])
    assert begun.tokens[:2] == (start, translator.tokenizer.encode(["A"])[0][0])


def test_a_bart_with_a_larger_vocabulary_is_refused(tmp_path):
    pair_of(tmp_path / "bart", "bart", families.bart(320, **SIDES, max_positions=64), decoder_start_token_id=0)
    tokenizers.write(tmp_path / "bart", tokenizers.byte_level(), GPT2)
    with pytest.raises(DataError, match="has 325 tokens, but the model has vectors for 320"):
        pretrained.convert(tmp_path / "bart", tmp_path / "run")


@pytest.mark.parametrize("tied", ["all", pytest.param("none", marks=pytest.mark.full)])
def test_a_marian_translates(tmp_path, tied):
    """Padding begins its decoder, and the settings of its search are those of the folder."""
    (tmp_path / "marian").mkdir()
    vocabulary = marian.write(tmp_path / "marian")
    files = {path.name: path.read_bytes() for path in (tmp_path / "marian").iterdir()}
    pad = vocabulary["<pad>"]
    settings = {"decoder_start_token_id": pad, "eos_token_id": 0, "pad_token_id": pad}
    settings |= {"num_beams": 3, "length_penalty": 0.5, "max_length": 9, "forced_eos_token_id": 0}
    config = families.marian(len(vocabulary), **SIDES, tie_embeddings=tied)
    net, params = pair_of(tmp_path / "opus", "marian", config, **settings)
    for name, data in files.items():
        (tmp_path / "opus" / name).write_bytes(data)
    decode = pretrained.convert(tmp_path / "opus", tmp_path / "run").decode
    assert decode.search == Beam(beam_size=3, length_penalty=0.5, stopping="now")
    assert (decode.max_length, decode.forced_end) == (8, "free")
    translator = jaxformer.load(tmp_path / "run")
    assert (translator.tokenizer.special.bos, translator.tokenizer.special.pad) == (pad, pad)
    text, translation = marian.PAIRS[0].english, marian.PAIRS[0].french
    source = np.append(translator.tokenizer.encode([text])[0], 0)
    target = np.append(translator.tokenizer.encode([translation], "target")[0], 0)
    (given,) = translator.score([text], [translation])
    np.testing.assert_allclose(given.token_log_probs, scored(net, params, source, target, bos=pad), atol=1e-5)
    ((best,),) = translator.candidates([f"{marian.CODE} {text}"])
    assert 0 < len(best.tokens) <= 8
    (tmp_path / "test").write_text(f"{marian.CODE} {text}\t{best.text or '-'}\n")
    _, chrf = jaxformer.evaluate(tmp_path / "run", translator, files=[tmp_path / "test"], say=str)["test"]
    assert chrf.value == pytest.approx(100 if best.text else 0)


def test_a_pegasus_is_a_translator(tmp_path):
    """Without a number of beams the search is greedy, as in transformers, and a limit forces no end."""
    config = families.marian(330, **SIDES, norm_position="pre", activation="gelu")
    pair_of(tmp_path / "pegasus", "pegasus", config, decoder_start_token_id=1, early_stopping=True)
    names = {"eos_token": tokenizers.END, "pad_token": "<pad>", "unk_token": tokenizers.END}
    tokenizers.write(tmp_path / "pegasus", tokenizers.byte_level(pad="<pad>"), names)
    (tmp_path / "pegasus" / "generation_config.json").write_text(json.dumps({"min_length": 4, "num_beams": None}))
    decode = pretrained.convert(tmp_path / "pegasus", tmp_path / "run").decode
    assert (decode.search, decode.min_length, decode.forced_end) == (Greedy(), 3, "never")


def test_a_masked_language_model(tmp_path):
    """Its mask token, which is in the vocabulary, becomes the first id after the vocabulary."""
    net, params = bert(tmp_path / "bert")
    pretrained.convert(tmp_path / "bert", tmp_path / "run")
    predictor = jaxformer.load(tmp_path / "run")
    special = predictor.tokenizer.special
    assert (special.pad, special.bos, special.eos, special.unk) == (0, 2, 3, 1)
    before, after = predictor.tokenizer.encode(["the old", "sees the house."])
    ids = np.array([[special.bos, *before, 4, *after, special.eos]], np.int32)
    expected = jax.nn.softmax(quick(net.apply)(params, ids)[0, 1 + len(before)])
    ((best, *_),) = predictor.fill("The old [MASK] sees the house.", top_k=1)
    assert best[0] == predictor.tokenizer.pieces([int(expected.argmax())])[0]
    assert best[1] == pytest.approx(float(expected.max()), abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("head", [True, False])
def test_a_classifier_starts_from_a_converted_model(tmp_path, head):
    _, params = bert(tmp_path / "bert", models.MaskedLanguageModel if head else models.make_encoder)
    pretrained.convert(tmp_path / "bert", tmp_path / "run")
    lines = [f"{'ab'[i % 2]}\t{text}" for i, text in enumerate(tokenizers.LINES[:40])]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    config = jaxformer.configure(
        "classification",
        data={"train": str(tmp_path / "train.tsv"), "num_shapes": 1, "cache": str(tmp_path / "cache")},
        train={"steps": 1, "tensorboard": False},
        optimizer={"learning_rate": 1e-9, "warmup_steps": 0},
        init_from=str(tmp_path / "run"),
    )
    assert (config.data.tokenizer, config.data.vocab_size, config.data.max_length) == ("pretrained", 150, 48)
    jaxformer.train(config, tmp_path / "classes", console=quiet())
    found = jaxformer.load(tmp_path / "classes")
    own, given = dict(found.params["encoder"]), dict(params["encoder"] if head else params)
    table = own.pop("embeddings")["tokens"]["table"][:150]
    np.testing.assert_allclose(table, given.pop("embeddings")["tokens"]["table"], atol=1e-5)
    chex.assert_trees_all_close(own, given, rtol=0, atol=1e-5)


def test_a_converted_run_has_one_checkpoint_and_is_not_trained_in_place(tmp_path):
    gpt2(tmp_path / "gpt2")
    config = pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    assert jaxformer.load(tmp_path / "run", checkpoint="last").steps == ()
    for checkpoint in ("average", 0):
        with pytest.raises(ConfigError, match="one set of parameters and no checkpoints; leave out the checkpoint"):
            jaxformer.load(tmp_path / "run", checkpoint=checkpoint)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(ConfigError, match="holds a converted model; train in another directory, with --init-from"):
        jaxformer.train(config, tmp_path / "run", console=quiet())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_pretrained_tokenizer_needs_a_run(tmp_path):
    (tmp_path / "text").write_text(TEXT * 50)
    data = {"text": str(tmp_path / "text"), "tokenizer": "pretrained", "length": 8}
    config = jaxformer.configure("language_model", model=SIZES, data=data)
    with pytest.raises(ConfigError, match=r"data\.tokenizer pretrained comes with a run .* give --init-from RUN"):
        jaxformer.train(config, tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def without(path, *names):
    for name in names:
        (path / name).unlink()


def edited(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _as_pair(path, **generation):
    """Replaces the model of a folder by a BART."""
    for name in ("config.json", "model.safetensors"):
        (path / name).unlink()
    config = families.bart(325, **SIDES, max_positions=64)
    pair_of(path.parent / "pair", "bart", config, decoder_start_token_id=0)
    for file in (path.parent / "pair").iterdir():
        file.rename(path / file.name)
    (path / "generation_config.json").write_text(json.dumps(generation))


def _with_head(path):
    """Adds the tensor of a classifier."""
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    safetensors.numpy.save_file(tensors | {"score.weight": np.zeros((2, 12), np.float32)}, path / "model.safetensors")


REFUSED = {
    "no tokenizer": (lambda path: without(path, "tokenizer.json"), r"has no tokenizer\.json; transformers writes one"),
    "a damaged tokenizer": (lambda path: (path / "tokenizer.json").write_text("{}"), "is damaged"),
    "no object": (lambda path: (path / "tokenizer.json").write_text("[]"), "must hold a JSON object"),
    "no end": (lambda path: without(path, "tokenizer_config.json"), "names the end of a text"),
    "an end beyond": (
        lambda path: (without(path, "tokenizer_config.json"), edited(path / "config.json", eos_token_id=10_000)),
        "names the end of a text",
    ),
    "no settings": (lambda path: without(path, "config.json"), "does not exist"),
    "a run": (lambda path: (path / "config.json").write_text('{"task": "translation"}'), "is already a run"),
    "no search": (lambda path: _as_pair(path, max_length=[3]), r"max_length: got \[3\], expected int"),
    "no kind": (lambda path: edited(path / "config.json", model_type=["vit"]), r"has model_type \"\['vit'\]\""),
    "a start beyond": (
        lambda path: (_as_pair(path), edited(path / "config.json", decoder_start_token_id=400)),
        "decoder_start_token_id must be a token below 325, got 400",
    ),
    "no start": (
        lambda path: (_as_pair(path), edited(path / "config.json", decoder_start_token_id=None)),
        "does not say how a text begins",
    ),
    "a classifier": (lambda path: _with_head(path), "holds a gpt2 with the head of a classifier"),
    "no text": (lambda path: edited(path / "config.json", model_type="vit"), "holds a vit, which cannot be converted"),
    "languages": (lambda path: edited(path / "config.json", model_type="mbart"), "texts end with codes of languages"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_folders_that_make_no_run_are_refused(tmp_path, case):
    gpt2(tmp_path / "gpt2")
    change, message = REFUSED[case]
    change(tmp_path / "gpt2")
    with pytest.raises(DataError, match=message) as caught:
        pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    assert ("damaged" in str(caught.value)) == ("damaged" in case)
    assert not (tmp_path / "run").exists()


def test_the_length_of_windows(tmp_path):
    gpt2(tmp_path / "gpt2")
    assert pretrained.convert(tmp_path / "gpt2", tmp_path / "all").data.length == 48
    assert pretrained.convert(tmp_path / "gpt2", tmp_path / "few", length=16).data.length == 16
    with pytest.raises(ConfigError, match="length must be at most 48, the positions of the model, got 49"):
        pretrained.convert(tmp_path / "gpt2", tmp_path / "many", length=49)


@pytest.mark.full
def test_a_language_model_is_fine_tuned_on_whole_texts(tmp_path):
    """Its tokenizer reads more than lines, and every parameter is taken."""
    gpt2(tmp_path / "gpt2")
    config = pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
    (tmp_path / "text").write_text("\n\n".join(tokenizers.LINES[:60]))
    changes = {"data": {"text": str(tmp_path / "text"), "length": 16, "cache": str(tmp_path / "cache")}}
    changes |= {"train": {"steps": 1, "tensorboard": False}, "optimizer": {"warmup_steps": 0, "schedule": "constant"}}
    jaxformer.train(changed(config, changes | {"init_from": str(tmp_path / "run")}), tmp_path / "mine", console=quiet())
    about = json.loads((tmp_path / "mine" / "init.json").read_text())
    assert (about["new"], about["unused"]) == ({}, [])
    with pytest.raises(ConfigError, match="is a converted model, which has no data of its own"):
        jaxformer.evaluate(tmp_path / "run")
    with pytest.raises(ConfigError, match="is a converted model, which has one set of parameters and no checkpoints"):
        jaxformer.average(tmp_path / "run")


def test_a_vocabulary_larger_than_the_table_is_refused(tmp_path):
    gpt2(tmp_path / "gpt2", 320)
    with pytest.raises(DataError, match="has 325 tokens, but the model has vectors for 320"):
        pretrained.convert(tmp_path / "gpt2", tmp_path / "run")


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_an_encoder_without_a_head_predicts_nothing_and_comes_back(tmp_path, family):
    """Its pooler, which no model here has, is left out; a classifier starts from it in the full tier."""
    config = families.bert(150, **SIZES, **{} if family == "bert" else {"num_token_types": 0})
    path = tmp_path / "encoder"
    net, params = folder(path, family, models.make_encoder, config, tokenizers.word_piece(), tokenizers.BERT)
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    pooler = {"pooler.dense.bias": np.zeros(12, np.float32)} if family == "bert" else {}
    safetensors.numpy.save_file(tensors | pooler, path / "model.safetensors")
    said = []
    config = pretrained.convert(path, tmp_path / "run", say=said.append)
    assert config.task == "masked_language_model"
    left_out = "; pooler.dense.bias are left out" if pooler else ""
    assert said == [f"the run is an encoder without a head, for --init-from of a classifier{left_out}"]
    with pytest.raises(
        ConfigError, match="without a head, which predicts nothing: train a classifier with --init-from"
    ):
        jaxformer.load(tmp_path / "run")
    assert pretrained.export(tmp_path / "run", tmp_path / "out") == family
    found = interop.load_pretrained(tmp_path / "out")
    assert (found.family, found.net.model) == (family, net.model)
    chex.assert_trees_all_equal(found.params, params)


def test_a_folder_in_use_is_refused(tmp_path):
    gpt2(tmp_path / "gpt2")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("")
    with pytest.raises(ConfigError, match="is not empty"):
        pretrained.convert(tmp_path / "gpt2", tmp_path / "run")
