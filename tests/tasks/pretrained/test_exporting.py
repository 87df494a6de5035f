"""Runs as folders of Hugging Face, with the start of their family; `tests/parity/test_exported.py` reads them."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer
from jaxformer import interop, models, pure
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.interop import equivalent
from jaxformer.models import families
from jaxformer.tasks import pretrained, registry, rundir
from jaxformer.tasks.config import Sample
from jaxformer.tasks.pretrained import exporting
from jaxformer.tokenizers.special_tokens import SpecialTokens
from tests.contracts.task import quiet
from tests.interop.small import arrays, drawn, edited, folder
from tests.modules.small import quick
from tests.selection import first
from tests.tasks import small
from tests.tokenizers import marian
from tests.tokenizers import pretrained as tokenizers

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12}
GPT2 = {"eos_token": tokenizers.END, "bos_token": tokenizers.END}


def exported(path, family):
    """Converts a folder and exports the run; returns both models."""
    pretrained.convert(path / "in", path / "run")
    assert pretrained.export(path / "run", path / "out") == family
    return interop.load_pretrained(path / "in"), interop.load_pretrained(path / "out")


def test_exporting_inverts_conversion_of_a_gpt2(tmp_path):
    """Its table has 325 rows, that of the run 328."""
    folder(tmp_path / "in", "gpt2", models.LanguageModel, families.gpt2(325, **SIZES, num_layers=1, max_positions=48))
    tokenizers.write(tmp_path / "in", tokenizers.byte_level(), GPT2)
    generation = {"eos_token_id": [0, 7], "do_sample": True, "top_k": 9, "typical_p": 0.9}
    (tmp_path / "in" / "generation_config.json").write_text(json.dumps(generation))
    said = []
    assert pretrained.convert(tmp_path / "in", tmp_path / "once", say=said.append).decode.eos_token_ids == "0,7"
    assert said == [
        "the run does not have typical_p 0.9, which jaxformer does not support; texts that they change differ"
    ]
    given, found = exported(tmp_path, "gpt2")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (written["eos_token_id"], written["do_sample"], written["top_k"]) == ([0, 7], True, 9)
    chex.assert_trees_all_equal(found.params, given.params)
    assert found.settings["eos_token_id"] == found.settings["pad_token_id"] == 0
    names = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert names["eos_token"] == names["pad_token"] == tokenizers.END
    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text()) == json.loads(tokenizers.byte_level())


@pytest.mark.parametrize("generation", [{"top_p": 0.9, "max_length": 30}, pytest.param(None, marks=pytest.mark.full)])
def test_the_settings_of_a_search_stay_what_they_were(tmp_path, generation):
    """If the folder has no sampling, convert takes our own defaults, which are not its settings."""
    folder(tmp_path / "in", "gpt2", models.LanguageModel, families.gpt2(325, **SIZES, num_layers=1, max_positions=48))
    tokenizers.write(tmp_path / "in", tokenizers.byte_level(), GPT2)
    if generation:
        (tmp_path / "in" / "generation_config.json").write_text(json.dumps(generation))
    config = pretrained.convert(tmp_path / "in", tmp_path / "run")
    assert config.decode.search == Sample(temperature=0.8)
    pretrained.export(tmp_path / "run", tmp_path / "out")
    ids = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == ids | (generation or {})
    config = changed(config, {"decode": {"search": {"top_k": 7}}})
    rundir.write_config(tmp_path / "run", config.task, config)
    pretrained.export(tmp_path / "run", tmp_path / "changed")
    written = json.loads((tmp_path / "changed" / "generation_config.json").read_text())
    assert (written["do_sample"], written["top_k"], written["temperature"]) == (True, 7, 0.8)


@pytest.mark.parametrize("dtype", first(["bfloat16", "float16"], "bfloat16"))
def test_a_longer_context_and_the_dtype_are_kept(tmp_path, dtype):
    """The run reads 1,024 tokens, which the user is told."""
    folder(tmp_path / "in", "llama", models.LanguageModel, families.llama(325, **SIZES, num_layers=1))
    tokenizers.write(tmp_path / "in", tokenizers.byte_level(), GPT2)
    half = lambda found: found.update({name: x.astype(dtype) for name, x in found.items()})
    edited(tmp_path / "in", half, settings={"max_position_embeddings": 8192, "torch_dtype": None, "dtype": None})
    said = []
    config = pretrained.convert(tmp_path / "in", tmp_path / "once", say=said.append)
    assert (config.data.length, config.model.max_positions) == (1024, 8192)
    assert said == ["the run reads texts of 1,024 tokens, and the model 8,192: convert with a length of up to 8192"]
    _, found = exported(tmp_path, "llama")
    assert [found.settings[name] for name in ("max_position_embeddings", "dtype", "torch_dtype")] == [
        8192,
        dtype,
        dtype,
    ]
    first, second = (arrays(tmp_path / name) for name in ("in", "out"))
    chex.assert_trees_all_equal(second, first)
    assert {str(x.dtype) for x in second.values()} == {dtype}
    interop.save_pretrained(
        tmp_path / "trained", found.net, jax.tree.map(lambda x: x / 3, found.params), family="llama"
    )
    assert {str(x.dtype) for x in arrays(tmp_path / "trained").values()} == {"float32"}


@pytest.mark.full
def test_a_translator_of_its_own_vocabulary_can_be_converted_again(tmp_path):
    """Its decoder then begins with padding; <s>, which no search chose, is forbidden by its name."""
    config = changed(small.tiny(tmp_path / "cache"), {"mesh": "", "train": {"steps": 1}})
    jaxformer.train(config, tmp_path / "run", console=quiet())
    assert pretrained.export(tmp_path / "run", tmp_path / "out") == "marian"
    again = pretrained.convert(tmp_path / "out", tmp_path / "again")
    assert again.decode.forbid == "<s>"
    texts = ["The old man sees the house.", "A cat sings!"]
    given = {"search": "greedy", "max_length": 8, "forced_end": "never"}
    own, other = (jaxformer.load(tmp_path / run, decode=given) for run in ("run", "again"))
    assert own.translate(texts) == other.translate(texts)
    said = []
    pretrained.export(tmp_path / "again", tmp_path / "third", say=said.append)
    for name in ("generation_config.json", "tokenizer.json"):
        first, last = (json.loads((tmp_path / out / name).read_text()) for out in ("out", "third"))
        assert last == first
    assert "forbid" not in said[0]


@pytest.mark.full
def test_the_bias_of_padding_rows_is_not_trained(tmp_path):
    folder(tmp_path / "in", "gpt2", models.LanguageModel, families.gpt2(325, **SIZES, num_layers=1, max_positions=48))
    tokenizers.write(tmp_path / "in", tokenizers.byte_level(), GPT2)
    config = pretrained.convert(tmp_path / "in", tmp_path / "run")
    (tmp_path / "text").write_text("\n".join(tokenizers.LINES))
    data = {"text": str(tmp_path / "text"), "length": 16, "cache": str(tmp_path / "cache")}
    train = {"steps": 1, "tensorboard": False}
    changes = {"data": data, "train": train, "init_from": str(tmp_path / "run")}
    config = changed(config, changes | {"optimizer": {"warmup_steps": 0, "schedule": "constant"}})
    jaxformer.train(config, tmp_path / "tuned", console=quiet())
    assert pretrained.export(tmp_path / "tuned", tmp_path / "out") == "gpt2"
    before, after = (interop.load_pretrained(tmp_path / name).params for name in ("in", "out"))
    change = jax.tree.map(lambda a, b: np.abs(a - b).max(), before, after)
    assert all(x > 0 for x in jax.tree.leaves(change))


@pytest.mark.full
def test_exporting_inverts_conversion_of_a_bert(tmp_path):
    """The vector of its mask token, which the run has after the vocabulary, is in its original row."""
    config = families.bert(150, **SIZES, num_layers=1, max_positions=48)
    folder(tmp_path / "in", "bert", models.MaskedLanguageModel, config)
    tokenizers.write(tmp_path / "in", tokenizers.word_piece(), tokenizers.BERT)
    given, found = exported(tmp_path, "bert")
    chex.assert_trees_all_equal(found.params, given.params)
    names = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert {name: names[name] for name in tokenizers.BERT} == tokenizers.BERT
    pretrained.convert(tmp_path / "out", tmp_path / "again")
    fill = [jaxformer.load(tmp_path / run).fill("the old [MASK] sees.") for run in ("run", "again")]
    assert fill[0] == fill[1]


@pytest.mark.full
def test_positions_of_a_roberta_start_after_its_padding_id(tmp_path):
    """transformers has no setting for the first position; this vocabulary implies 1 instead of 2."""
    config = families.roberta(150, **SIZES, num_layers=1, max_positions=48)
    folder(tmp_path / "in", "roberta", models.MaskedLanguageModel, config)
    tokenizers.write(tmp_path / "in", tokenizers.word_piece(), tokenizers.BERT)
    pretrained.convert(tmp_path / "in", tmp_path / "run")
    with pytest.raises(ConfigError, match=r"positions of a roberta start at 1, the id of its padding .* start at 2"):
        pretrained.export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_exporting_inverts_conversion_of_a_marian(tmp_path):
    """With its search, and the three files of its tokenizer."""
    (tmp_path / "files").mkdir()
    vocabulary = marian.write(tmp_path / "files")
    sides = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    pad = vocabulary["<pad>"]
    ids = {"pad_token_id": pad, "eos_token_id": 0, "decoder_start_token_id": pad}
    search = {"num_beams": 3, "length_penalty": 0.5, "max_length": 9, "forced_eos_token_id": 0, "early_stopping": True}
    config = families.marian(len(vocabulary), **SIZES, **sides)
    net, params = folder(tmp_path / "drawn", "marian", models.EncoderDecoder, config)
    tokens = params["decoder"]["embeddings"]["tokens"]
    tokens["table"] = tokens["table"].at[pad].set(0.0)  # as published
    given = {**ids, **search, "renormalize_logits": True}
    interop.save_pretrained(tmp_path / "in", net, params, family="marian", settings=given)
    for file in (tmp_path / "files").iterdir():
        (tmp_path / "in" / file.name).write_bytes(file.read_bytes())
    given, found = exported(tmp_path, "marian")
    chex.assert_trees_all_equal(found.params, given.params)
    for name in ("source.spm", "target.spm"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "files" / name).read_bytes()
    assert json.loads((tmp_path / "out" / "vocab.json").read_text()) == vocabulary
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: written[name] for name in ids | search} == ids | search
    pretrained.convert(tmp_path / "out", tmp_path / "again")
    configs = [registry.read_config(tmp_path / run) for run in ("run", "again")]
    assert changed(configs[1], {"name": configs[0].name}) == configs[0]
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    written["config"]["decode"] |= {"forbid": "no"}
    written["config"]["decode"]["search"]["coverage_penalty"] = 0.2
    (tmp_path / "run" / "config.json").write_text(json.dumps(written))
    said = []
    pretrained.export(tmp_path / "run", tmp_path / "poorer", say=said.append)
    lost = "decode.search.coverage_penalty 0.2, decode.forbid no, decode.max_ratio 2.0, decode.max_extra 10"
    differ = "which transformers lacks; texts that they end or change differ"
    assert said == [f"the folder does not have {lost}, {differ}"]


def test_runs_of_other_tasks_are_refused(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists; name a new folder"):
        pretrained.export(tmp_path, tmp_path / "there")
    with pytest.raises(ConfigError, match="is not a run"):
        pretrained.export(tmp_path, tmp_path / "out")
    (tmp_path / "run").mkdir()
    rundir.write_config(tmp_path / "run", "vision", jaxformer.configure("vision"))
    with pytest.raises(ConfigError, match="is a run of vision; language models, masked ones and translators"):
        pretrained.export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


SIDES = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 1, "num_decoder_layers": 1}
PAIR = models.EncoderDecoderConfig(9, 9, **SIDES)
SPECIAL = SpecialTokens()  # padding 0, start 1, end 2
SOURCE, TARGET = np.array([[3, 8, 4, 5, 2], [8, 7, 6, 5, 2]]), np.array([[1, 7, 4], [1, 8, 5]])
NAMES = ["<pad>", "<s>", "</s>", "<unk>", *"abcde"]
TEMPLATE = {"type": "TemplateProcessing", "special_tokens": {"a": {"id": "a", "ids": [8], "tokens": ["a"]}}}
FORMS = [
    (norm, tie, kind)
    for norm in ("post", "pre")
    for tie in ("all", "none", "inputs", "decoder")
    for kind in ("BPE", "")
]


def vocabulary(kind):
    """The content of a ``tokenizer.json``: pieces with ids, or a list of pieces."""
    ids = {name: token for token, name in enumerate(NAMES)}
    model = {"vocab": ids} if kind else {"vocab": [[name, -1.0] for name in NAMES], "unk_id": 3}
    added = [{"id": 0, "content": "<pad>"}, {"id": 1, "content": "<s>"}]
    content = {"model": model, "added_tokens": added, "post_processor": {"processors": [TEMPLATE]}}
    return {exporting.TOKENIZER: json.dumps(content).encode()}


def translator(config, special=SPECIAL, kind="BPE", family=""):
    net = pure(models.EncoderDecoder, config)
    params = jax.tree.map(lambda x: jnp.asarray(0.3 * x), drawn(net))
    found = equivalent.fitted(net, params, family=family)
    return net, params, exporting.Translator(found, special, (), special.bos, vocabulary(kind))


@pytest.mark.parametrize("form", first(FORMS, ("post", "all", "")))
def test_decoders_begin_as_those_of_their_family(form):
    """With padding; that of a Marian has the last id and a vector of zeros."""
    norm, tie, kind = form
    config = dataclasses.replace(PAIR, norm_position=norm, tie_embeddings=tie)
    net, params, given = translator(config, kind=kind)
    found = exporting.with_start_of_family(given)
    last = 8 if norm == "post" else 0
    assert (found.model.family, found.first, found.special.pad) == ("marian" if last else "pegasus", last, last)
    assert found.special.bos == 1
    if last:
        assert not found.model.params["decoder"]["embeddings"]["tokens"]["table"][last].any()
    moved = np.array([8, 1, 2, 3, 4, 5, 6, 7, 0]) if last else np.arange(9)
    rules = json.loads(found.files[exporting.TOKENIZER])
    vocab = rules["model"]["vocab"]
    ids = vocab if kind else {piece: token for token, (piece, _) in enumerate(vocab)}
    assert ids == {name: moved[token] for token, name in enumerate(NAMES)}
    assert {token["content"]: token["id"] for token in rules["added_tokens"]} == {"<pad>": last, "<s>": 1}
    assert rules["post_processor"]["processors"][0]["special_tokens"]["a"]["ids"] == [0 if last else 8]
    target = moved[TARGET]
    target[:, 0] = found.first
    log_probs = lambda net, params, *tokens: jax.nn.log_softmax(quick(net.apply)(params, *map(jnp.asarray, tokens)))
    expected, got = log_probs(net, params, SOURCE, TARGET), log_probs(*found.model[1:], moved[SOURCE], target)
    usual = np.arange(2, 9)
    np.testing.assert_allclose(got[..., moved[usual]], expected[..., usual], rtol=1e-4, atol=2e-5)


def test_a_start_of_zeros_stays_as_it_is():
    """As of a published Marian."""
    net, params, given = translator(families.marian(9, **SIDES), SpecialTokens(pad=8, bos=8, eos=0, unk=1))
    table = params["decoder"]["embeddings"]["tokens"]["table"].at[8].set(0.0)
    params = params | {"decoder": params["decoder"] | {"embeddings": {"tokens": {"table": table}}}}
    given = given._replace(model=given.model._replace(params=params))
    found = exporting.with_start_of_family(given)
    assert (found.model.net, found.first) == (net, 8)
    chex.assert_trees_all_equal(found.model.params, params)


REFUSED = {
    "mbart": (families.bart(9, **SIDES, norm_position="pre"), SPECIAL, "an mbart begins with the code of a language"),
    "pegasus": (
        dataclasses.replace(PAIR, norm_position="pre"),
        SpecialTokens(0, 2, 2, 3),
        "must not be tokens of texts",
    ),
    "t5": (families.t5(9, **SIDES), SpecialTokens(2, 1, 2, 3), "the decoder of a t5 begins with padding"),
}


@pytest.mark.parametrize("family", REFUSED)
def test_other_starts_are_refused(family):
    config, special, message = REFUSED[family]
    *_, given = translator(config, special, family=family)
    with pytest.raises(ConfigError, match=message):
        exporting.with_start_of_family(given)


def test_an_added_token_that_the_model_lacks_is_refused():
    """Its id follows from its place."""
    *_, given = translator(PAIR)
    rules = json.loads(given.files[exporting.TOKENIZER])
    del rules["model"]["vocab"]["e"]
    given = given._replace(files={exporting.TOKENIZER: json.dumps(rules).encode()})
    with pytest.raises(ConfigError, match="which this vocabulary with added tokens cannot express"):
        exporting.with_start_of_family(given)
