"""Translation with several corpora and languages."""

import dataclasses
import json

import chex
import jax
import numpy as np
import pytest

import jaxformer
from jaxformer import demo
from jaxformer.cli.main import main
from jaxformer.config import changed
from jaxformer.errors import ConfigError, DataError
from jaxformer.tasks.translation import TASK, DataConfig, Translator
from jaxformer.tasks.translation.config import CorpusConfig
from jaxformer.tasks.translation.corpora import load_mixture
from jaxformer.tokenizers.subwords import SubwordTokenizer
from jaxformer.training.logging import read_log
from tests.contracts.task import quiet
from tests.tasks.small import tiny
from tests.tasks.translation import translators

CORPORA = {
    "en_fr": {"source": "en", "target": "fr", "source_language": "en", "target_language": "fr", "weight": 2.0},
    "fr_en": {"source": "fr", "target": "en", "source_language": "fr", "target_language": "en", "weight": 1.0},
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A folder with a corpus of both directions."""
    folder, pairs = tmp_path_factory.mktemp("corpora"), demo.generate(400)
    (folder / "en").write_text("".join(f"{pair.english}\n" for pair in pairs))
    (folder / "fr").write_text("".join(f"{pair.french}\n" for pair in pairs))
    return folder


@pytest.fixture(scope="module")
def config(corpora):
    data = {"directory": corpora, "held_out": 6, "tags": "target", "max_length": 48, "tokens_per_batch": 768}
    data |= {"corpus": "files", "source_language": "", "target_language": "", "corpora": CORPORA}
    return changed(tiny(corpora / "cache"), {"data": data, "decode": {"validation_sentences": 2}})


@pytest.fixture(scope="module")
def run(config, corpora):
    """A run of both directions, after six steps."""
    jaxformer.train(config, corpora / "run", console=quiet())
    return corpora / "run"


def test_held_out_sentences_are_in_no_training_pair_of_any_corpus(config):
    mixture = load_mixture(config.data)
    held_out = {
        text for part in mixture.parts.values() for text in (*part.validation.source, *part.tests["test"].source)
    }
    assert len(held_out) == 24
    for name, part in mixture.parts.items():
        assert held_out.isdisjoint(part.train.lines())
        assert 0 < mixture.left_out[name] <= 12
        assert len(part.train) == 400 - 12 - mixture.left_out[name]
    other = load_mixture(dataclasses.replace(config.data, held_out=5))
    assert all(mixture.fingerprints[key] != value for key, value in other.fingerprints.items())


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        ({"source": "no"}, r"data\.corpora\.x: cannot read .*no"),
        ({"source": "en", "target": "short"}, r"data\.corpora\.x: .*en has 400 lines, but .*short has 1"),
        ({"source": "both"}, r"data\.corpora\.x: all pairs hold a sentence that another corpus holds out"),
    ],
)
def test_corpora_that_cannot_be_read(config, corpora, corpus, message):
    (corpora / "short").write_text("one\n")
    held_out = load_mixture(config.data).parts["en_fr"].validation.source
    (corpora / "both").write_text("".join(f"{text}\tx\n" for text in held_out[:3]))
    files = {} if corpus["source"] != "both" else {f"{part}_source": "both" for part in ("validation", "test")}
    x = CorpusConfig(**corpus, **files, target_language="de", weight=1.0)
    with pytest.raises(DataError, match=message):
        load_mixture(dataclasses.replace(config.data, corpora=config.data.corpora | {"x": x}))


def test_a_corpus_whose_pairs_are_all_too_long_is_refused(config, corpora, tmp_path):
    (corpora / "long").write_text("".join(f"{'very ' * 60}{i}\tlong\n" for i in range(30)))
    x = CorpusConfig(source="long", target_language="de", weight=1.0)
    data = dataclasses.replace(config.data, corpora=config.data.corpora | {"x": x}, held_out=5)
    config = dataclasses.replace(config, data=data)
    with pytest.raises(ConfigError, match=r"data\.corpora\.x has no usable pair: all 20 are longer than max_length"):
        TASK.prepare(config, TASK.read(config), tmp_path)


def test_a_run_keeps_the_order_of_its_corpora(run, config):
    """Which is part of its data: the hashes would say that the data are others."""
    turned = dict(reversed(config.data.corpora.items()))
    with pytest.raises(ConfigError, match=r"another configuration: data\.corpora has another order"):
        jaxformer.train(dataclasses.replace(config, data=dataclasses.replace(config.data, corpora=turned)), run)


@pytest.mark.parametrize("tags", ["none", "source", "target", "both"])
def test_tags_are_the_first_tokens_of_their_side(config, tmp_path, tags):
    config = changed(config, {"data": {"tags": tags, "num_segmentations": 0}})
    data = TASK.prepare(config, TASK.read(config), tmp_path)
    tokenizer = TASK.vocabulary(tmp_path)
    assert sorted(tokenizer.tags) == ([] if tags == "none" else ["en", "fr"])
    of_corpus = [tokenizer.tags.get(language) for language in ("fr", "en")]
    batches = [(data.train.batch(step), None) for step in (0, 1)]
    batches += [(part.batch(0), i) for i, part in enumerate(data.validation.parts.values())]
    for batch, corpus in batches:
        for row, number in enumerate(np.full(len(batch.labels), corpus) if corpus is not None else batch.corpora):
            if batch.source.valid[row].any():
                first = {"source": batch.source.ids[row, 0], "target": batch.labels[row, 0]}
                for side, token in first.items():
                    own = of_corpus[1 - number if (side, tags) == ("source", "both") else number]
                    assert (token == own) == (tags in (side, "both"))
    assert data.validation.steps_per_epoch == sum(part.steps_per_epoch for part in data.validation.parts.values())
    last = data.validation.batch(data.validation.steps_per_epoch - 1)
    part = data.validation.parts["fr_en"]
    assert np.array_equal(last.labels, part.batch(part.steps_per_epoch - 1).labels)


def test_the_log_has_tokens_and_losses_by_corpus(run):
    entries = read_log(run / "log.jsonl")
    steps = [entry for entry in entries if "loss" in entry]
    assert all(entry["tokens"] == entry["tokens/en_fr"] + entry["tokens/fr_en"] for entry in steps)
    ratio = sum(entry["tokens/en_fr"] for entry in steps) / sum(entry["tokens/fr_en"] for entry in steps)
    assert 1.4 < ratio < 3
    *_, validated = (entry for entry in entries if "validation_loss" in entry)
    for metric in ("loss", "bleu"):
        each = [validated[f"validation_{metric}/{name}"] for name in CORPORA]
        assert validated[f"validation_{metric}"] == pytest.approx(np.mean(each))


def test_directions_are_scored_and_chosen(run, corpora, capsys):
    """By corpus, with the mean; and a direction that was never trained translates, too."""
    assert main(["evaluate", str(run), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert [*scores][:3] == ["en_fr", "fr_en", "mean"]
    chrf = [{score["name"]: score["value"] for score in scores[name]}["chrF2"] for name in [*scores][:3]]
    assert chrf[2] == pytest.approx((chrf[0] + chrf[1]) / 2)
    for language in ("en", "fr"):
        assert main(["translate", str(run), "She sings.", "--to", language, "--json"]) == 0
        tokens = json.loads(capsys.readouterr().out)["translations"][0]["tokens"]
        assert tokens[0] == f"<2{language}>"
    for words, message in (
        (["translate", "She sings."], "the run translates to en, fr: choose one with --to LANGUAGE"),
        (["translate", "She sings.", "--to", "de"], "the run has no language 'de'; there are en, fr"),
        (["translate", "She sings.", "--from", "fr"], "the run's data.tags is target"),
        (["evaluate", "--to", "fr"], "--to and --from are for --files"),
    ):
        assert main([words[0], str(run), *words[1:]]) == 2
        assert message in capsys.readouterr().err
    (corpora / "two.tsv").write_text("She sings.\tElle chante.\nHe sings.\tIl chante.\n")
    assert main(["evaluate", str(run), "--files", str(corpora / "two.tsv"), "--to", "fr"]) == 0


def test_the_same_pairs_in_other_files_are_refused(config, corpora):
    (corpora / "copy").write_bytes((corpora / "en").read_bytes())
    copy = CorpusConfig(source="copy", target="./fr", target_language="fr", weight=1.0)
    data = dataclasses.replace(config.data, corpora=config.data.corpora | {"copy": copy})
    with pytest.raises(DataError, match=r"data\.corpora\.en_fr and data\.corpora\.copy hold the same text"):
        TASK.read(dataclasses.replace(config, data=data))


@pytest.mark.full
def test_a_run_continues_with_other_weights_from_the_next_step(run, config, tmp_path):
    """As one that was never stopped, bit for bit; but not with weights that its completed steps did not have."""
    more = {"train": {"steps": 8}}
    with pytest.raises(ConfigError, match="weights of the corpora at step 1 would have been others"):
        jaxformer.train(changed(config, more | {"data": {"corpora": {"fr_en": {"weight": 2.0}}}}), run, console=quiet())
    later = changed(config, more | {"data": {"corpora": {"en_fr": {"reweighted": "7=0"}}}})
    for out in (run, tmp_path / "whole"):
        jaxformer.train(later, out, console=quiet())
    names = ("step", "loss", "gradient_norm", *(f"tokens/{name}" for name in CORPORA))
    steps, whole = (
        [[entry[name] for name in names] for entry in read_log(out / "log.jsonl") if "loss" in entry]
        for out in (run, tmp_path / "whole")
    )
    assert steps == whole
    assert [step[-2] > 0 for step in steps] == [True] * 6 + [False] * 2
    chex.assert_trees_all_equal(*(jaxformer.load(out, checkpoint="last").params for out in (run, tmp_path / "whole")))


@pytest.mark.parametrize("tags", ["source", "target", "both"])
def test_a_translator_into_several_languages(tags):
    net, params, _ = translators.trained()
    lines = [pair.english for pair in demo.generate(500)]
    tokenizer = SubwordTokenizer.train(lines, vocab_size=400, languages=["de", "fr"])
    decode = dataclasses.replace(translators.translator().decode, max_extra=6)
    many = Translator(net, params, tokenizer, decode, tags=tags, source_language="fr")
    to = {language: many.to(language) for language in ("de", "fr")}
    found = {language: one.candidates(["She sings."], n_best=2)[0] for language, one in to.items()}
    scored = {language: one.score(["She sings."], ["Elle chante."])[0] for language, one in to.items()}
    assert (
        scored["de"].tokens == scored["fr"].tokens == (*tokenizer.pieces(tokenizer.encode(["Elle chante."])[0]), "</s>")
    )
    assert scored["de"].log_prob != scored["fr"].log_prob
    attention = to["de"].attention("She sings.", "Elle chante.")
    assert attention.weights.shape[2:] == (len(attention.target), len(attention.source))
    for language, best in found.items():
        assert "<2" not in best[0].text
        assert (best[0].tokens[0] == tokenizer.tags[language]) == (tags != "source")
    begun = to["fr"].candidates(["She sings."], prefixes=["The "])[0][0]
    assert begun.text.startswith("The ")
    if tags == "both":
        assert to["de"].to(source="de").score(["She sings."], ["Elle chante."])[0].log_prob != scored["de"].log_prob
        with pytest.raises(ConfigError, match="the run translates from de, fr: choose one with --from"):
            dataclasses.replace(to["de"], source_language="").translate(["She sings."])
    with pytest.raises(ConfigError, match="the run translates to de, fr: choose one"):
        many.translate(["She sings."])
    with pytest.raises(ConfigError, match="no language 'en'; there are de, fr"):
        many.to("en")
    with pytest.raises(ConfigError, match=r"the run was trained without data\.tags"):
        dataclasses.replace(many, tags="none").to("de")
    assert jax.tree.leaves(params)


def test_settings_of_one_corpus_are_those_of_a_run_of_it():
    data = DataConfig(
        corpora={"a": CorpusConfig(source="x", target="y"), "b": CorpusConfig(source="z")}, lowercase=True
    )
    assert data.only("a") == DataConfig(source="x", target="y", lowercase=True)


A, B = CorpusConfig(source="a", target_language="de"), CorpusConfig(source="b", target_language="fr")


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (DataConfig, {"temperature": 2.0}, r"temperature 2\.0 has no effect: corpora names none"),
        (DataConfig, {"tags": "source"}, "tags source has no effect: corpora names none"),
        (DataConfig, {"corpora": {"a": A}, "source": "c"}, "source 'c' has no effect with corpora"),
        (DataConfig, {"corpora": {"a": A}, "corpus": "grammar"}, "corpora has no effect: corpus is grammar"),
        (DataConfig, {"corpora": {"a": A}, "mix_in_batch": False}, "mix_in_batch False has no effect"),
        (DataConfig, {"corpora": {"a": CorpusConfig()}}, r"corpora\.a names no file"),
        (DataConfig, {"corpora": {"a": CorpusConfig(source="a")}, "tags": "source"}, "tags need a language"),
        (DataConfig, {"corpora": {"a": CorpusConfig(source="a", weight=2.0), "b": B}}, "a has a weight and b has none"),
        (
            DataConfig,
            {"corpora": {"a": A, "b": B}, "pretokenize": "moses", "source_language": "en", "target_language": "de"},
            r"the rules of one pair of languages, but corpora\.b has others",
        ),
        (
            DataConfig,
            {"corpora": {"a": CorpusConfig(source="a", source_language="EN")}},
            r"corpora\.a\.source_language must be a two-letter code",
        ),
        (
            DataConfig,
            {"corpora": {"a": CorpusConfig(source="a", target_language="deu_Latn")}, "tags": "both"},
            r"tags need a language: set corpora\.a\.source_language",
        ),
    ],
)
def test_settings_without_an_effect_are_refused(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(**settings)
