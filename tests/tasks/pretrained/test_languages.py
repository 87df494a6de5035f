"""M2M100, NLLB and mBART-50 as runs: their languages, their search, fine-tuning, and back."""

import json

import jax
import numpy as np
import pytest

import jaxformer
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks import pretrained, rundir
from jaxformer.tasks.translation import TASK
from tests.modules.small import quick
from tests.selection import first
from tests.tasks.pretrained.translators import TEXT, TRANSLATION, folder
from tests.tokenizers import multilingual


def scored(net, params, source, target):
    """The log-probability of each token of a target."""
    inputs = (np.asarray(ids, np.int32)[None] for ids in (source, [2, *target[:-1]]))
    log_probs = np.asarray(jax.nn.log_softmax(quick(net.apply)(params, *inputs)))[0]
    return log_probs[np.arange(len(target)), target]


@pytest.mark.parametrize("kind", first(multilingual.CODES, "m2m100"))
def test_a_translator_of_many_languages(tmp_path, kind):
    """A source begins with the token of its language; a translation with that of its own, which the search is given."""
    net, params = folder(tmp_path / "model", kind)
    config = pretrained.convert(tmp_path / "model", tmp_path / "run")
    english, german, french = multilingual.CODES[kind]
    assert (config.data.tags, config.data.source_language, config.data.target_language) == ("both", english, "")
    translator = jaxformer.load(tmp_path / "run")
    tokenizer = translator.tokenizer
    assert tokenizer.vocab_size == net.config.source_vocab_size
    source, target = ([*ids.tolist(), 2] for ids in tokenizer.encode([TEXT, TRANSLATION]))
    tags = tokenizer.tags
    for of_source, language in ((english, german), (french, german), (english, french)):
        one = translator.to(language, of_source)
        (given,) = one.score([TEXT], [TRANSLATION])
        expected = scored(net, params, [tags[of_source], *source], [tags[language], *target])
        np.testing.assert_allclose(given.token_log_probs, expected[1:], atol=1e-5)
        ((best,),) = one.candidates([TEXT])
        assert (best.tokens[0], best.token_log_probs[0]) == (tags[language], 0)
        assert language not in best.text
    with pytest.raises(ConfigError, match="choose one with --to LANGUAGE"):
        translator.translate([TEXT])
    near = {"m2m100": ("deu", "de"), "nllb": ("de", "deu_Latn"), "mbart50": ("de_XX", "de_DE")}[kind]
    with pytest.raises(ConfigError, match=f"no language '{near[0]}'; did you mean '{near[1]}'"):
        translator.to(near[0])
    with pytest.raises(ConfigError, match=f"no language '{near[0]}'; did you mean '{near[1]}'"):
        translator.to(french, near[0])
    family = pretrained.export(tmp_path / "run", tmp_path / "out")
    again = pretrained.convert(tmp_path / "out", tmp_path / "again")
    assert (family, again.data) == ("mbart" if kind == "mbart50" else "m2m_100", config.data)
    same = jaxformer.load(tmp_path / "again").to(german)
    assert same.tokenizer.fingerprint == tokenizer.fingerprint
    assert same.candidates([TEXT]) == translator.to(german).candidates([TEXT])


TAGS = {code: 121 + i for i, code in enumerate("ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX".split())}


@pytest.mark.full
def test_the_command_line_chooses_the_languages(tmp_path, capsys):
    folder(tmp_path / "model", "mbart50", forced_bos_token_id=TAGS["fr_XX"])
    pretrained.convert(tmp_path / "model", tmp_path / "run")
    for words, token in (([], "fr_XX"), (["--to", "de_DE", "--from", "fr_XX"], "de_DE")):
        assert main(["translate", str(tmp_path / "run"), TEXT, "--json", *words]) == 0
        assert json.loads(capsys.readouterr().out)["translations"][0]["tokens"][0] == token


def test_a_language_that_a_folder_forces_is_the_target(tmp_path, capsys):
    """As in mBART-50 for many languages into one."""
    folder(tmp_path / "model", "mbart50", forced_bos_token_id=TAGS["fr_XX"])
    config = pretrained.convert(tmp_path / "model", tmp_path / "run")
    assert config.data.target_language == "fr_XX"
    assert main(["translate", str(tmp_path / "run"), TEXT, "--from", "en_US"]) == 2
    assert "no language 'en_US'; did you mean 'en_XX'?" in capsys.readouterr().err
    pretrained.export(tmp_path / "run", tmp_path / "out")
    written = [
        json.loads((tmp_path / "out" / name).read_text())
        for name in ("generation_config.json", "tokenizer_config.json")
    ]
    assert (written[0]["forced_bos_token_id"], written[1]["tgt_lang"]) == (TAGS["fr_XX"], "fr_XX")
    german = changed(config, {"data": {"target_language": "de_DE"}})  # the kept settings still force French
    rundir.write_config(tmp_path / "run", german.task, german)
    pretrained.export(tmp_path / "run", tmp_path / "other")
    assert (
        json.loads((tmp_path / "other" / "generation_config.json").read_text())["forced_bos_token_id"] == TAGS["de_DE"]
    )


def test_batches_of_fine_tuning_begin_with_the_languages(tmp_path):
    folder(tmp_path / "model", "nllb")
    config = pretrained.convert(tmp_path / "model", tmp_path / "run")
    (tmp_path / "pairs").write_text("".join(f"{i} {TEXT}\t{TRANSLATION} {i}\n" for i in range(40)))
    data = {"source": str(tmp_path / "pairs"), "held_out": 4, "cache": str(tmp_path / "cache"), "max_length": 64}
    config = changed(config, {"data": data, "init_from": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=r"needs the languages of the pairs: set data\.target_language"):
        TASK.prepare(config, TASK.read(config), tmp_path / "run")
    for language, message in (("deu_Latin", "did you mean 'deu_Latn'"), ("de", "has no token for de")):
        other = changed(config, {"data": {"target_language": language}})
        with pytest.raises(ConfigError, match=message):
            TASK.prepare(other, TASK.read(other), tmp_path / "run")
    config = changed(config, {"data": {"target_language": "deu_Latn"}})
    data = TASK.prepare(config, TASK.read(config), tmp_path / "run")
    tags = data.vocabulary.tags
    for batch in (data.train.batch(0), data.validation.batch(0)):
        rows = batch.source.valid[:, 0]
        assert {*batch.source.ids[rows, 0].tolist()} == {tags["eng_Latn"]}
        assert {*batch.labels[rows, 0].tolist()} == {tags["deu_Latn"]}
        assert {*batch.target.ids[rows, 0].tolist()} == {2}


def without_codes(path):
    content = json.loads((path / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if "Latn" not in token["content"]]
    (path / "tokenizer.json").write_text(json.dumps(content))


def edited(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


REFUSED = {
    "texts that end with a language": (
        "nllb",
        lambda path: edited(path / "tokenizer_config.json", legacy_behaviour=True),
        "legacy_behaviour is true",
    ),
    "no language": ("nllb", without_codes, "has no tokens for languages"),
    "another mbart": (
        "mbart50",
        lambda path: edited(path / "tokenizer_config.json", tokenizer_class="MBartTokenizer"),
        "whose texts end with codes of languages, unlike those of mBART-50",
    ),
    "no pieces": ("m2m100", lambda path: (path / "sentencepiece.bpe.model").unlink(), "cannot read .*No such file"),
    "damaged pieces": ("mbart50", lambda path: (path / "sentencepiece.bpe.model").write_bytes(b"x"), "is damaged"),
    "an unknown set": (
        "m2m100",
        lambda path: (path / "tokenizer_config.json").write_text('{"language_codes": "wmt22"}'),
        "must be m2m100 or wmt21, got 'wmt22'",
    ),
    "other padding": ("m2m100", lambda path: edited(path / "config.json", pad_token_id=3), "pad_token_id .* must be 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_folders_that_make_no_run_are_refused(tmp_path, case):
    kind, change, message = REFUSED[case]
    folder(tmp_path / "model", kind)
    change(tmp_path / "model")
    with pytest.raises(DataError, match=message):
        pretrained.convert(tmp_path / "model", tmp_path / "run")
    assert not (tmp_path / "run").exists()
