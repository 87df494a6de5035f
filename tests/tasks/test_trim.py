"""Trimmed runs compute what the whole ones do; planted differences are found before the run is complete."""

import dataclasses
import functools
import json
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer
from jaxformer import models
from jaxformer.cli import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import families
from jaxformer.tasks import pretrained, registry, restore, rundir, trim, trim_proof, vision
from jaxformer.tasks.text import run_tokenizer
from tests.contracts.task import quiet
from tests.interop.small import folder
from tests.selection import first
from tests.tasks import untrained
from tests.tasks.pretrained import translators as multilingual
from tests.tokenizers import marian
from tests.tokenizers import pretrained as tokenizers

SIZES = {"d_model": 12, "num_heads": 2, "d_ff": 12}
TEXT = "the old man sees the house\nthe garden\n"


def bart(path):
    """One table for all its tokens, a bias for each, a token before each text, and a search in the folder."""
    names = {"bos_token": "<s>", "eos_token": tokenizers.END, "pad_token": "<pad>"}
    ids = {"decoder_start_token_id": 0, "forced_bos_token_id": 1, "pad_token_id": 2, "max_length": 12}
    sizes = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_positions": 64}
    folder(path / "in", "bart", models.EncoderDecoder, families.bart(325, **sizes), **ids)
    tokenizers.write(path / "in", tokenizers.byte_level(begin="<s>", pad="<pad>", end=True), names)
    pretrained.convert(path / "in", path / "run")


def gpt2(path):
    folder(path / "in", "gpt2", models.LanguageModel, families.gpt2(325, **SIZES, num_layers=1, max_positions=64))
    tokenizers.write(path / "in", tokenizers.byte_level(), dict.fromkeys(("eos_token", "bos_token"), tokenizers.END))
    pretrained.convert(path / "in", path / "run")


def opus(path):
    """Two sentencepiece models with one vocabulary, whose last token is padding."""
    (path / "tokenizer").mkdir()
    vocabulary = marian.write(path / "tokenizer")
    ids = {"pad_token_id": len(vocabulary) - 1, "eos_token_id": 0, "decoder_start_token_id": len(vocabulary) - 1}
    sizes = SIZES | {"num_encoder_layers": 1, "num_decoder_layers": 1}
    folder(path / "in", "marian", models.EncoderDecoder, families.marian(len(vocabulary), **sizes), **ids)
    for file in (path / "tokenizer").iterdir():
        file.rename(path / "in" / file.name)
    pretrained.convert(path / "in", path / "run")


def encoder(path):
    """A BERT without a head, which predicts nothing."""
    config = families.bert(150, **SIZES, num_layers=1, max_positions=32)
    folder(path / "in", "bert", models.make_encoder, config)
    tokenizers.write(path / "in", tokenizers.word_piece(), tokenizers.BERT)
    pretrained.convert(path / "in", path / "run")


CONVERTED = {"bart": bart, "gpt2": gpt2, "marian": opus, "encoder": encoder}
KINDS = [*sorted(untrained.CONFIGS), *CONVERTED]
TABLES = {"translation": 4} | dict.fromkeys(("masked_language_model", *CONVERTED), 2)
"""The number of parameters with a row for each token, if there is more than one."""
EXPORTED = "language_model", *CONVERTED


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory):
    """A function from a kind to its run, its trimmed run, and the proof; each is made once."""

    @functools.cache
    def make(kind):
        path = tmp_path_factory.mktemp(kind)
        (path / "text").write_text(TEXT)
        if kind in CONVERTED:
            CONVERTED[kind](path)
        else:
            untrained.write(path / "run", kind)
        return path / "run", path / "out", trim.trim(path / "run", path / "out", corpus=[path / "text"])

    return make


def predictor(run):
    return restore.any_predictor(run, registry.read_config(run))


@pytest.mark.parametrize("kind", first(KINDS, "classification"))
def test_a_trimmed_run_does_what_the_whole_one_does(kind, trimmed, tmp_path):
    """Its tables have the rows of the names of its tokens; it is exported where the whole run is."""
    run, out, proof = trimmed(kind)
    assert proof.texts == 2
    assert proof.sizes[1] < proof.sizes[0]
    whole, small = map(predictor, (run, out))
    theirs, ours = map(run_tokenizer, (run, out))
    assert ours.vocab_size < theirs.vocab_size
    names = {name: token for token, name in enumerate(theirs.names)}
    rows = [names[name] for name in ours.names]
    embeddings = lambda predictor: next(
        x for path, x in jax.tree_util.tree_leaves_with_path(predictor.params) if "tokens" in str(path)
    )
    np.testing.assert_array_equal(embeddings(small)[: len(rows)], embeddings(whole)[jnp.asarray(rows)])
    assert len(proof.tables) == TABLES.get(kind, 1)
    about, before = (rundir.read_json(path / "provenance.json") for path in (out, run))
    assert about["tokens"] == [len(rows), theirs.vocab_size]
    parts = [[*map(int, part.split("-"))] for part in about["kept"].split(",")]
    assert [token for part in parts for token in range(part[0], part[-1] + 1)] == rows
    assert about["trimmed_tokenizer"] == theirs.fingerprint
    inherited = ("converted", "encoder")
    assert [about.get(name) for name in inherited] == [before.get(name) for name in inherited]
    if kind in EXPORTED:
        pretrained.export(out, tmp_path / "hf")


def answers(predictor, lines):
    """What a predictor says by its public methods, beside the greedy texts that are compared already."""
    if hasattr(predictor, "probabilities"):
        return predictor.probabilities(lines)
    if hasattr(predictor, "tag"):
        return np.array([tagged.probabilities for tagged in predictor.tag([lines[0]])])
    if hasattr(predictor, "fill"):
        piece = predictor.tokenizer.pieces(predictor.tokenizer.encode(["the"])[0])[0]
        return np.array([dict(found)[piece] for found in predictor.fill("the old [MASK]", top_k=400)])
    if hasattr(predictor, "caption"):
        images = np.zeros((1, *predictor.shape), np.uint8)
        return predictor.attention(images, lines[:1])[0].weights
    scored = predictor.score(lines[:1], lines[:1]) if hasattr(predictor, "translate") else predictor.score(lines[:1])
    return np.array(scored[0].log_prob)


@pytest.mark.parametrize("kind", first(sorted({*untrained.CONFIGS} - {"language_model"}), "classification"))
def test_other_answers_are_equal(kind, trimmed):
    """Probabilities of tokens are so in relation to each other: those of removed tokens go to the rest."""
    run, out, _ = trimmed(kind)
    whole, small = (answers(jaxformer.load(path), TEXT.splitlines()) for path in (run, out))
    if kind in ("translation", "recurrent", "masked_language_model"):
        assert (small > whole).all()
        return
    np.testing.assert_allclose(small, whole, atol=1e-6)


@pytest.mark.parametrize("kind", first(["classification", "language_model", "translation"], "classification"))
def test_training_goes_on_from_a_trimmed_run(kind, trimmed, tmp_path):
    """Every table is taken; the run has the vocabulary of the trimmed one. Training in place is refused."""
    _, out, _ = trimmed(kind)
    (tmp_path / "text").write_text("".join(f"the garden{' the' * i}\n" for i in range(8)))
    (tmp_path / "table").write_text("".join(f"{c}\tthe {word}\n" for c in "abc" for word in ("house", "garden", c)))
    text, table = str(tmp_path / "text"), str(tmp_path / "table")
    data = {
        "classification": {"train": table, "validation": table},
        "language_model": {"text": text, "validation": text, "batch_size": 8},
        "translation": {"corpus": "files", "source": text, "target": text, "held_out": 2},
    }[kind]
    train = {"steps": 1, "validate_every": 0, "checkpoint_every": 0, "tensorboard": False}
    data |= {"cache": str(tmp_path / "cache")}
    config = changed(registry.read_config(out), {"data": data, "train": train, "init_from": str(out)})
    jaxformer.train(config, tmp_path / "run", console=quiet())
    about = json.loads((tmp_path / "run" / "init.json").read_text())
    assert (about["new"], about["unused"]) == ({}, [])
    assert run_tokenizer(tmp_path / "run").fingerprint == run_tokenizer(out).fingerprint
    with pytest.raises(ConfigError, match=f"holds a trimmed run; train in another directory, with --init-from {out}"):
        jaxformer.train(config, out, console=quiet())


@pytest.mark.full
def test_adapters_are_merged(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    adapters = changed(untrained.CONFIGS["classification"], {"tune": {"adapters": {"kind": "lora", "rank": 2}}})
    run = untrained.write(tmp_path / "run", "classification", tune=adapters.tune)
    trim.trim(run, tmp_path / "out", corpus=[tmp_path / "text"])
    assert registry.read_config(tmp_path / "out").tune.adapters is None
    whole, small = (answers(jaxformer.load(path), TEXT.splitlines()) for path in (run, tmp_path / "out"))
    np.testing.assert_allclose(small, whole, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bart", "gpt2", "language_model"])
def test_trimmed_again_and_exported_with_its_search(kind, trimmed, tmp_path):
    """The settings of the search in the folder keep their meaning."""
    run, out, _ = trimmed(kind)
    (tmp_path / "less").write_text(TEXT.splitlines()[1] + "\n")
    trim.trim(out, tmp_path / "again", corpus=[tmp_path / "less"])
    if kind != "bart":
        return
    for path in (run, tmp_path / "again"):
        pretrained.export(path, tmp_path / f"{path.name}-hf")
        names, found = run_tokenizer(path).names, rundir.read_json(tmp_path / f"{path.name}-hf/generation_config.json")
        assert found["max_length"] == 12
        assert names[found["forced_bos_token_id"]] == "<s>"
        assert names[found["decoder_start_token_id"]] == tokenizers.END


@pytest.mark.full
def test_a_translator_of_many_languages(tmp_path, capsys):
    """All languages stay; the comparison needs one of them, and says so before anything is written."""
    multilingual.folder(tmp_path / "in", "nllb")
    pretrained.convert(tmp_path / "in", tmp_path / "run")
    (tmp_path / "text").write_text(f"{multilingual.TEXT}\n{multilingual.TRANSLATION}\n")
    words = ["trim", str(tmp_path / "run"), "--corpus", str(tmp_path / "text"), "--out", str(tmp_path / "out")]
    for more, message in (([], "choose one with --to LANGUAGE"), (["--to", "deu"], "did you mean 'deu_Latn'")):
        assert main.main([*words, *more]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert main.main([*words, "--to", "deu_Latn"]) == 0
    whole, small = jaxformer.load(tmp_path / "run").to("fra_Latn"), jaxformer.load(tmp_path / "out").to("fra_Latn")
    assert [*small.tokenizer.tags] == [*whole.tokenizer.tags]
    first = [one.candidates([multilingual.TEXT])[0][0].tokens[0] for one in (whole, small)]
    assert first == [one.tokenizer.tags["fra_Latn"] for one in (whole, small)]
    assert first[0] != first[1]


def test_each_table_is_cut_along_its_tokens():
    """Those of both sides, a projection, and a bias; rows that pad a vocabulary of 6 stay at the end."""
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, np.float32)
    shapes = lambda size: {
        "a": shape(size, 2),
        "b": shape(size, 3),
        "bias": shape(size),
        "c": shape(3, size),
        "d": shape(4),
    }
    nets = [types.SimpleNamespace(shapes=shapes(size)) for size in (8, 5)]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: random.random(x.shape, np.float32), nets[0].shapes)
    found = trim.cut_tables(params, *nets, np.array([0, 3, 5]), 6)
    expected = {name: np.take(x, [0, 3, 5, 6, 7], x.shape.index(8)) for name, x in params.items() if name != "d"}
    chex.assert_trees_all_equal(found, expected | {"d": params["d"]})


def _shifted(params, whole, small, tokens, size):
    return CUT(params, whole, small, np.roll(tokens, 1), size)


def _one_changed(params, whole, small, tokens, size):
    cut = CUT(params, whole, small, tokens, size)
    leaves, tree = jax.tree.flatten(cut)
    return jax.tree.unflatten(tree, [leaves[0].at[0].add(1e-6), *leaves[1:]])


CUT = trim.cut_tables


@pytest.mark.parametrize("planted", [_shifted, _one_changed])
def test_wrong_tables_leave_nothing(trimmed, tmp_path, monkeypatch, planted):
    run, _, _ = trimmed("classification")
    monkeypatch.setattr(trim, "cut_tables", planted)
    with pytest.raises(DataError, match=r"the rows of .* are not those of its tokens"):
        trim.trim(run, tmp_path / "out", corpus=[run.parent / "text"])
    assert not [*tmp_path.iterdir()]


def test_wrong_logits_and_answers_are_found(trimmed, monkeypatch):
    """The same rows do not suffice: the model must also use them in the same way."""
    whole, small = map(jaxformer.load, trimmed("language_model")[:2])
    rows = {name: token for token, name in enumerate(whole.tokenizer.names)}
    tokens = np.asarray([rows[name] for name in small.tokenizer.names])
    negative = dataclasses.replace(small, params=jax.tree.map(jnp.negative, small.params))
    monkeypatch.setattr(trim_proof, "same_rows", lambda *predictors: ())
    prove = functools.partial(trim_proof.prove, whole, negative, tokens, TEXT.splitlines())
    with pytest.raises(DataError, match=r"chooses otherwise for 'the old man"):
        prove()
    monkeypatch.setattr(trim_proof, "_check_tie", lambda line, gap: None)
    with pytest.raises(DataError, match="logits of the trimmed run differ"):
        prove()


def test_ties_and_removed_tokens_are_counted():
    """Of three texts, the first differs at a tie, the second where a removed token is best; the third is equal."""
    logits = lambda predictor, line, text: np.array([predictor.logits[line]], np.float32)
    kind, tokens = trim_proof.Kind("guesses", logits), np.array([0, 2])
    tokenizer = types.SimpleNamespace(special=types.SimpleNamespace(eos=0))

    def compare(before, after, line):
        sides = [types.SimpleNamespace(logits=each, tokenizer=tokenizer) for each in (before, after)]
        theirs, ours = (kind.answers(one, [line])[0] for one in sides)
        return trim_proof.compare(kind, *sides, tokens, line, theirs, ours)[1:]

    before = {"tie": [1.0, 0.0, 1.0 - 5e-5], "removed": [0.0, 3.0, 1.0], "equal": [2.0, 0.0, 1.0]}
    after = {"tie": [1.0 - 5e-5, 1.0], "removed": [0.0, 1.0], "equal": [2.0, 1.0]}

    assert [compare(before, after, line) for line in before] == [(1, 0), (0, 1), (0, 0)]
    with pytest.raises(DataError, match="chooses otherwise for 'equal', by a logit of"):
        compare(before, after | {"equal": [1.0, 2.0]}, "equal")


def test_end_tokens_stay(tmp_path):
    """Whatever they are in the corpus: the search of the run needs them."""
    (tmp_path / "text").write_text(TEXT)
    config = untrained.CONFIGS["language_model"]
    whole = untrained.tokenizer()
    ends = [whole.names.index(name) for name in ("</s>", "\u2581French")]
    decode = dataclasses.replace(config.decode, stop_at_end=True, eos_token_ids=",".join(map(str, ends)))
    run = untrained.write(tmp_path / "run", "language_model", decode=decode)
    trim.trim(run, tmp_path / "out", corpus=[tmp_path / "text"], sentences=1)
    small = run_tokenizer(tmp_path / "out")
    kept = registry.read_config(tmp_path / "out").decode.end_tokens
    assert [small.names[token] for token in kept] == [whole.names[token] for token in ends]


def test_bad_input(trimmed, tmp_path, capsys):
    run, text, empty = *map(str, (trimmed("classification")[0], tmp_path / "text")), tmp_path / "empty"
    empty.write_text("\n")
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / "images").mkdir()
    rundir.write_config(tmp_path / "images", "vision", vision.VisionConfig())
    out = str(tmp_path / "out")
    for words, message in (
        ([run, "--corpus", text, "--out", str(tmp_path)], "exists"),
        ([run, "--corpus", str(empty), "--out", out], "holds no text"),
        ([run, "--corpus", str(tmp_path / "none"), "--out", out], "none"),
        ([run, "--out", out], "no corpus: give --corpus FILE"),
        ([run, "--corpus", text, "--out", out, "--sentences", "0"], "sentences must be at least 1"),
        ([run, "--corpus", text, "--out", out, "--to", "fr"], "the language fr has no effect: the run does not"),
        ([str(tmp_path / "images"), "--corpus", text, "--out", out], "run of vision, which has no vocabulary"),
    ):
        assert main.main(["trim", *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_logits_of_nan_prove_nothing(monkeypatch):
    """Of a run that has diverged: `max` would drop them."""
    special = types.SimpleNamespace(eos=0)
    one = types.SimpleNamespace(params={}, tokenizer=types.SimpleNamespace(special=special))
    kind = trim_proof.Kind("classes", lambda *_: np.array([[np.nan, 1.0]]), has_classes=True)
    monkeypatch.setitem(trim_proof._KINDS, types.SimpleNamespace, kind)
    monkeypatch.setattr(trim_proof, "same_rows", lambda *_: ())
    with pytest.raises(DataError, match="logits of the trimmed run differ by nan of the largest"):
        trim_proof.prove(one, one, np.arange(2), ["a", "b"])
