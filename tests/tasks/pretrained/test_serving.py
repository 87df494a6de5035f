"""Runs as folders of CTranslate2; `tests/parity/test_ctranslate2.py` has the library read them."""

import json

import pytest
from tokenizers import Tokenizer

import jaxformer
from jaxformer import models
from jaxformer.cli import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError
from jaxformer.interop import ctranslate2
from jaxformer.models import families
from jaxformer.tasks import pretrained, rundir
from jaxformer.tasks.text import run_tokenizer
from tests.interop.small import folder
from tests.selection import first
from tests.tasks.pretrained import translators
from tests.tokenizers import multilingual
from tests.tokenizers import pretrained as tokenizers

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12}
GPT2 = {"eos_token": tokenizers.END, "bos_token": tokenizers.END}
PAIR = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1}
SEARCH = {"num_beams": 3, "early_stopping": True, "max_length": 20, "min_length": 3, "repetition_penalty": 1.5}


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """A run whose texts begin with a token, like those of a BART."""
    path = tmp_path_factory.mktemp("bart")
    names = {"bos_token": "<s>", "eos_token": tokenizers.END, "pad_token": "<pad>"}
    ids = {"decoder_start_token_id": 0, "forced_bos_token_id": 1, "pad_token_id": 2}
    folder(path / "in", "bart", models.EncoderDecoder, families.bart(325, **PAIR, max_positions=64), **ids)
    tokenizers.write(path / "in", tokenizers.byte_level(begin="<s>", pad="<pad>", end=True), names)
    (path / "in" / "generation_config.json").write_text(json.dumps(SEARCH | ids))
    pretrained.convert(path / "in", path / "run")
    return path / "run"


def test_a_folder_is_enough_for_a_translation(bart, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(ctranslate2, "is_installed", lambda: False)
    pretrained.export_ctranslate2(bart, tmp_path / "out", say=said.append)
    assert said == [
        "the folder does not have decode.max_ratio 2.0, decode.max_extra 10, which CTranslate2 lacks; texts that they "
        "end or change differ",
        "CTranslate2 is not installed, so its scores were not compared with those of the run",
    ]
    read = lambda name: json.loads((tmp_path / "out" / name).read_text())
    pieces, tokenizer = read("shared_vocabulary.json"), Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert [tokenizer.token_to_id(piece) for piece in pieces] == [*range(325)]
    assert len(tokenizer.encode("the old man sees the house, the garden and a dog").ids) > 9  # its file cuts and pads
    assert tokenizer.encode("the").tokens[0] == "<s>"
    config = read("config.json")
    assert (config["decoder_start_token"], config["eos_token"]) == (tokenizers.END, tokenizers.END)
    rules = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 0, "suppress_sequences": [["<pad>"]], "beam_size": 3}
    rules |= {"length_penalty": 1.0, "patience": 1.0, "coverage_penalty": 0.0}
    assert read("search.json") == {
        "target_prefix": ["<s>"],
        "translate_batch": rules | {"min_decoding_length": 2, "max_decoding_length": 19},
    }


@pytest.mark.parametrize("kind", first([*multilingual.CODES], "m2m100"))
def test_languages_have_their_tokens(kind, tmp_path, monkeypatch):
    """Those of the run are prefixes, of the sources in ``tokenizer.json`` too; the other ones are listed."""
    monkeypatch.setattr(ctranslate2, "is_installed", lambda: False)
    codes = source, target, _ = multilingual.CODES[kind]
    translators.folder(tmp_path / "in", kind)
    config = pretrained.convert(tmp_path / "in", tmp_path / "run")
    rundir.write_config(tmp_path / "run", config.task, changed(config, {"data": {"target_language": target}}))
    pretrained.export_ctranslate2(tmp_path / "run", tmp_path / "out")
    read = lambda name: json.loads((tmp_path / "out" / name).read_text())
    search, pieces, tokenizer = read("search.json"), read("shared_vocabulary.json"), run_tokenizer(tmp_path / "run")
    names = {code: f"__{code}__" if kind == "m2m100" else code for code in codes}
    assert search["languages"].items() >= names.items()
    assert (search["source_prefix"], search["target_prefix"]) == ([names[source]], [names[target]])
    assert {code: pieces.index(name) for code, name in search["languages"].items()} == tokenizer.tags
    if kind != "m2m100":
        encoded = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode(translators.TEXT)
        assert encoded.ids == [tokenizer.tags[source], *tokenizer.encode([translators.TEXT])[0], 2]


def test_a_language_model_ends_as_its_run_does(tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2, "is_installed", lambda: False)
    folder(tmp_path / "in", "gpt2", models.LanguageModel, families.gpt2(325, **SIZES, num_layers=1, max_positions=48))
    tokenizers.write(tmp_path / "in", tokenizers.byte_level(), GPT2)
    generation = {"eos_token_id": [0, 7], "do_sample": True, "top_k": 9, "min_p": 0.1}
    (tmp_path / "in" / "generation_config.json").write_text(json.dumps(generation))
    pretrained.convert(tmp_path / "in", tmp_path / "run")
    said = []
    pretrained.export_ctranslate2(tmp_path / "run", tmp_path / "out", quantization="int8", say=said.append)
    assert said[0].startswith("the folder does not have decode.search.min_p 0.1, which CTranslate2 lacks")
    search = json.loads((tmp_path / "out" / "search.json").read_text())
    pieces = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert search["generate_batch"].items() >= {"sampling_topk": 9, "end_token": [pieces[0], pieces[7]]}.items()
    assert search["start"] == []


def test_nothing_is_written_for_what_is_refused(bart, tmp_path, monkeypatch, capsys):
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists; name a new folder"):
        pretrained.export_ctranslate2(bart, tmp_path / "there")
    out = tmp_path / "new" / "out"
    with pytest.raises(ConfigError, match="quantization must be int8 or empty, got 'int4'"):
        pretrained.export_ctranslate2(bart, out, quantization="int4")
    (tmp_path / "run").mkdir()
    rundir.write_config(tmp_path / "run", "vision", jaxformer.configure("vision"))
    with pytest.raises(ConfigError, match="is a run of vision"):
        pretrained.export_ctranslate2(tmp_path / "run", out)
    words = ["export", str(bart), "--out", str(out)]
    assert not out.parent.exists()
    monkeypatch.setattr(ctranslate2, "is_installed", lambda: True)
    monkeypatch.setattr(ctranslate2, "difference", lambda *given: ("4.9", 0.5))
    with pytest.raises(ConfigError, match=r"differ from those of the run by 5.0e-01 at most, but must be less than"):
        pretrained.export_ctranslate2(bart, out)
    assert not any(out.parent.iterdir())
    capsys.readouterr()
    assert main.main([*words, "--format", "ctranslate2", "--quantization", "int8"]) == 0  # int8 may differ
    assert capsys.readouterr().out == f"{out} is now a folder of CTranslate2 in int8\n"
