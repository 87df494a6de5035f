"""The translation task: its contract, and its own properties."""

import dataclasses
import re
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sacrebleu.tokenizers import tokenizer_ko_mecab

import jaxformer
from jaxformer import demo, functional, sharding
from jaxformer.config import changed
from jaxformer.data.pairs import Parallel
from jaxformer.data.pipeline import PlannedPairs
from jaxformer.errors import ConfigError, DataError
from jaxformer.evaluation import scores
from jaxformer.functional.dropout import fold_in_name
from jaxformer.sharding import Placement
from jaxformer.tasks import runner
from jaxformer.tasks.runner import Validation
from jaxformer.tasks.search import Candidate
from jaxformer.tasks.training_setup import make_training_setup
from jaxformer.tasks.translation import (
    TASK,
    DataConfig,
    DecodeConfig,
    LossConfig,
    SimCutConfig,
    TranslationConfig,
    task,
)
from jaxformer.tasks.translation.corpora import Corpora
from jaxformer.tokenizers.normalization import TextNormalizer
from tests.contracts.task import TaskContract, quiet
from tests.modules.small import quick
from tests.tasks.small import small, tiny

ALL = Placement(sharding.mesh())


@pytest.mark.full
class TestContract(TaskContract):
    task = "translation"
    attentions = ("encoder.self", "decoder.self", "decoder.cross")
    refused = (
        ({"data": {"corpus": "files"}}, "no training data: give --data.source"),
        ({"data": {"max_length": 3}}, "no pair of 4000 has at most 3 tokens"),
        ({"train": {"metric": "bleu"}, "decode": {"validation_sentences": 0}}, "validation_sentences is 0"),
        (
            {"model": {"dropout": 0.0}, "loss": {"r_drop": 5.0}},
            r"loss\.r_drop 5\.0 .* model\.dropout is 0",
        ),
        ({"model": {"source_vocab_size": 300, "target_vocab_size": 300}}, "tokenizer has 400"),
        ({"mesh": "data=3"}, "3 devices, but there are 8"),
    )

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        return tiny(tmp_path_factory.mktemp("cache"))

    def change_training_data(self, config, patch):
        pairs = demo.splits(num_train=config.data.grammar_pairs)
        patch.setattr(demo, "splits", lambda **_: dataclasses.replace(pairs, train=pairs.train[1:]))
        patch.setattr(demo, "version", lambda: "another")


@pytest.mark.full
class TestContractOfRecipes(TestContract):
    """The settings of published recipes together: normalized text, new subwords in each epoch, two passes."""

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, tmp_path_factory):
        data = {"lowercase": True, "pretokenize": "moses", "tokenizer": "bpe", "num_segmentations": 0}
        return changed(tiny(tmp_path_factory.mktemp("cache")), {"data": data, "loss": {"r_drop": 4.0}})


def test_the_loss_of_training_is_that_of_the_settings():
    found = [
        task.training_loss(LossConfig(**loss))
        for loss in ({}, R_DROP, {"z_loss": 0.5, "simcut": SimCutConfig(4.0, 0.2)})
    ]
    assert found == [functional.CrossEntropy(0.1), functional.RDrop(4.0, 0.1), functional.SimCut(4.0, 0.1, 0.5, 0.2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *TestContract.refused[1:4],  # of the contract, which is left to the full tests: its step compiles longest
        ({"train": {"metric": "rouge_l"}, "decode": {"validation_sentences": 0}}, "sentences is 0"),
        ({"train": {"metric": "rouge_l"}}, "rouge is False"),
        (
            {"model": {"kind": "recurrent", "attention": None}, "decode": {"search": {"coverage_penalty": 0.2}}},
            r"decode\.coverage_penalty needs attention, but the model has model\.att",
        ),
    ],
)
def test_settings_that_cannot_be_trained(tmp_path, settings, message):
    with pytest.raises((ConfigError, DataError), match=message):
        jaxformer.train(changed(tiny(tmp_path / "cache"), settings), tmp_path / "run", console=quiet())
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_batches_longer_than_the_positions(tmp_path):
    """The suggested length fits: one of 8 would be padded to 9."""
    config = small(cache=str(tmp_path / "cache"), length_multiple=3)
    with pytest.raises(DataError, match=r"model\.max_positions is 8; lower data\.max_length to 6"):
        TASK.prepare(config, TASK.read(config), tmp_path)


class Perfect:
    """A translator that returns the references."""

    language = ""
    decode = DecodeConfig()

    def __init__(self, tokenizer, references):
        self.tokenizer, self.references = tokenizer, references

    def candidates(self, sources, **options):
        ids = self.tokenizer.encode([self.references[text] for text in sources], "target")
        return [[Candidate(self.tokenizer.decode(one), 0.0, tuple(one.tolist()))] for one in ids]

    def translate(self, sources):
        return [best[0].text for best in self.candidates(sources)]


@pytest.mark.full
def test_a_run_in_lower_case_of_moses_words(tmp_path):
    """Its tokens are of normalized text; references are lowercased for scores, and signatures tell it."""
    config = tiny(tmp_path / "cache")
    config = changed(config, {"data": {"lowercase": True, "pretokenize": "moses", "tokenizer": "bpe"}})
    corpora = TASK.read(config)
    prepared = TASK.prepare(config, corpora, tmp_path)
    tokenizer = TASK.vocabulary(tmp_path)
    assert tokenizer.normalizer == prepared.vocabulary.normalizer == TextNormalizer(True, "moses", "en", "fr")
    for planned, part in ((prepared.train, corpora.train), (prepared.validation, corpora.validation)):
        text = tokenizer.normalized(planned.tokens.target[0][5])
        assert text == tokenizer.normalizer(part.target[5:6], "target")[0] != part.target[5]
    parts = [corpora.validation, *corpora.tests.values()]
    perfect = Perfect(tokenizer, {s: t for part in parts for s, t in zip(part.source, part.target, strict=True)})
    for scored in TASK.score(config, corpora, perfect, "test", str):
        one, other, words = scored.scores
        assert min(one.value, other.value, words.value) == pytest.approx(100)
        assert "case:lc" in one.signature
        assert "case:lc" in other.signature
        assert "words of the system" in words.signature
        assert {row["bleu"] for row in scored.examples} == {100.0}
        assert scored.examples[0]["hypothesis"] == scored.examples[0]["reference"].lower()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task.dataclasses, "replace", lambda predictor, **_: predictor)
        assert TASK.measure(config, corpora, prepared, perfect, {})["bleu"] == pytest.approx(100)


def test_a_perfect_run_of_cased_moses_words(tmp_path):
    """The rules leave a period at its word if a small letter follows, so references are split before lower-casing."""
    config = changed(tiny(tmp_path / "cache"), {"data": {"pretokenize": "moses"}})
    corpora = TASK.read(config)
    tokenizer = TASK.prepare(config, corpora, tmp_path).vocabulary
    part = Parallel(corpora.validation.source[:9], (*corpora.validation.target[:8], "Le chien court. Il voit le chat."))
    corpora = dataclasses.replace(corpora, tests={"few": part})
    perfect = Perfect(tokenizer, dict(zip(part.source, part.target, strict=True)))
    (scored,) = TASK.score(config, corpora, perfect, "test", str)
    assert [score.value for score in scored.scores] == pytest.approx([100, 100, 100])


def test_moses_bleu_needs_the_language(tmp_path):
    """Without the target language its words are unknown; the score is left out with a message."""
    config = tiny(tmp_path / "cache")
    corpora = TASK.read(config)
    tokenizer = TASK.prepare(config, corpora, tmp_path).vocabulary
    part = Parallel(corpora.validation.source[:9], corpora.validation.target[:9])
    corpora = dataclasses.replace(corpora, tests={"few": part})
    perfect = Perfect(tokenizer, dict(zip(part.source, part.target, strict=True)))
    moses = ["BLEU", "chrF2", "BLEU (lower-cased Moses)"]
    for language, names in (("fr", moses), ("", ["BLEU", "chrF2"]), ("zh", ["BLEU", "chrF2"])):
        said, config = [], changed(config, {"data": {"target_language": language}})
        (scored,) = TASK.score(config, corpora, perfect, "test", said.append)
        assert [score.name for score in scored.scores] == names
        assert any("data.target_language is not set" in line for line in said) == (not language)
        assert any("zh, the language of the translations, is written without" in x for x in said) == (language == "zh")


def test_lengths_that_a_mesh_cannot_shard_are_reported(tmp_path):
    """They are not sharded; the message has the setting that would shard them."""
    placement, said = Placement(sharding.mesh("data=2,context=4")), []
    for multiple in (1, 4):
        config = small(cache=str(tmp_path / "cache"), length_multiple=multiple)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_positions=256))
        lines = []
        data = runner._prepare(TASK, config, TASK.read(config), tmp_path, lines.append)
        runner._report_shapes(config, data, placement, lines.append)
        said.append("\n".join(lines))
        odd = [length for length in data.lengths if length % 4]
        assert bool(odd) is (multiple == 1)
        assert all(f"{length}" in said[-1] for length in odd)
    assert ["--data.length-multiple 4" in text for text in said] == [True, False]


@pytest.mark.full
def test_validation_leaves_out_pairs_longer_than_the_positions(tmp_path):
    """One long sentence would end training at its first validation."""
    pairs = demo.generate(400)
    for side in ("english", "french"):
        lines = [getattr(pair, side) for pair in pairs]
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines[20:]))
        (tmp_path / f"held.{side}").write_text("".join(f"{line}\n" for line in [" ".join(lines[:20]), *lines[:20]]))
    names = {"source": "english", "target": "french"}
    held = {f"validation_{name}": f"held.{side}" for name, side in names.items()}
    data = DataConfig(
        **names, **held, directory=str(tmp_path), cache=str(tmp_path / "cache"), vocab_size=400, held_out=5
    )
    model = dataclasses.replace(small().model, max_positions=128)
    config = TranslationConfig(model=model, data=data, decode=DecodeConfig(validation_sentences=3))
    corpora = TASK.read(config)
    prepared = TASK.prepare(config, corpora, tmp_path)
    assert prepared.validation.plan.skipped.tolist() == [0]
    setup = make_training_setup(TASK, config, prepared.vocabulary.vocab_size, ALL)
    validation = Validation(TASK, config, corpora, prepared, setup)
    assert 0 <= validation(setup.new_state())["bleu"] < 100


def some_batch(network, placement, seed=0):
    """Sentences of up to 6 tokens, the last row of padding."""
    abstract = network.abstract_batch(16, 6, placement.rows)
    draw = np.random.default_rng(seed)
    lengths = np.append(draw.integers(1, 7, 15), 0)
    valid = np.arange(6) < lengths[:, None]
    tokens = lambda: np.where(valid, draw.integers(4, 400, valid.shape), 0).astype(np.int32)
    filled = lambda side: dataclasses.replace(side, ids=tokens(), valid=valid)
    batch = dataclasses.replace(
        abstract, source=filled(abstract.source), target=filled(abstract.target), labels=tokens()
    )
    return placement.assemble(batch)


R_DROP, SIMCUT = {"r_drop": 4.0}, {"simcut": {"weight": 4.0, "cut": 0.5}}


@pytest.mark.full
@pytest.mark.parametrize("loss", [R_DROP, SIMCUT], ids=["r_drop", "simcut"])
@pytest.mark.parametrize("model", [{"kind": "transformer"}, {"kind": "recurrent"}])
def test_r_drop_and_simcut_are_the_losses_of_two_passes(model, loss, tmp_path):
    """Value and gradient are those of all logits of both passes; the loss of validation is that of one without them."""
    plain = changed(tiny(tmp_path), {"mesh": "", "model": {**model, "dropout": 0.3}})
    network, plain = (TASK.network(config, 400) for config in (changed(plain, {"loss": loss}), plain))
    params, key = network.net.init(jax.random.key(1)), jax.random.key(2)
    batch = some_batch(network, Placement(sharding.mesh("data=1", jax.devices()[:1])))

    def direct(params):
        both = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch)
        if loss is SIMCUT:
            both = dataclasses.replace(both, source=cut(both.source, "source"), target=cut(both.target, "target"))
        logits = network.net.apply(params, both.source, both.target, key=key)
        given = {"where": batch.target.valid, "smoothing": 0.1, "weight": 4.0}
        function = functional.simcut if loss is SIMCUT else functional.r_drop
        return function(logits[::2], logits[1::2], batch.labels, **given)

    def cut(side, name):
        shown = functional.token_cutoff(side, rate=0.5, key=fold_in_name(key, f"cut {name}")).shown
        return dataclasses.replace(side, shown=shown.at[::2].set(True))

    value = lambda params: network.sums(params, batch, key)[:2]
    (found, count), slope = quick(jax.value_and_grad(value, has_aux=True))(params)
    (expected, same), expected_slope = quick(jax.value_and_grad(direct, has_aux=True))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert int(count) == int(same) == int(batch.target.valid.sum())
    chex.assert_trees_all_close(slope, expected_slope, rtol=1e-3, atol=1e-4)
    validation = [quick(one.validation_sums)(params, batch)[0] for one in (network, plain)]
    assert float(validation[0]) == float(validation[1])


@pytest.mark.full
@pytest.mark.parametrize("loss", [R_DROP, SIMCUT], ids=["r_drop", "simcut"])
def test_two_passes_send_no_more_between_devices(loss, tmp_path):
    """One sum over the devices in a step, as without it, and nothing else; eight devices train like one."""
    losses = []
    for text in ("data=1", "data=8"):
        config = changed(tiny(tmp_path), {"loss": loss, "model": {"dropout": 0.3}})
        number = int(text[5:])
        placement = Placement(sharding.mesh(text, jax.devices()[:number]))
        setup = make_training_setup(TASK, config, 400, placement)
        state, batch = setup.new_state(), some_batch(setup.network, placement)
        step = setup.step().lower(state, batch).compile()
        sent = [line for line in step.as_text().splitlines() if SENDING.search(line)]
        assert len(sent) == (number > 1), sent
        for _ in range(2):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss_sum"] / metrics["count"]))
    np.testing.assert_allclose(losses[2:], losses[:2], rtol=1e-5)


SENDING = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\(")


@pytest.mark.parametrize("is_wanted", [False, True])
def test_rouge_is_scored_if_it_is_wanted(is_wanted):
    """By `evaluate`, with the scores of each text, and at validations."""
    config = TranslationConfig(decode=DecodeConfig(rouge=is_wanted, validation_sentences=1))
    normalizer = types.SimpleNamespace(lowercase=False, pretokenize="none")

    @dataclasses.dataclass
    class Translator:
        decode: DecodeConfig
        language = ""
        tokenizer = types.SimpleNamespace(normalizer=normalizer)

        def translate(self, texts):
            return ["the cat"] * len(texts)

        def candidates(self, texts, **_):
            return [[types.SimpleNamespace(text=text, score=0.0)] for text in self.translate(texts)]

    pairs = Parallel(("le chat",), ("a cat",))
    corpus = Corpora(pairs, pairs, {"test": pairs})
    data = types.SimpleNamespace(validation=PlannedPairs(None, types.SimpleNamespace(skipped=[])))
    (found,) = task.score(config, corpus, Translator(config.decode), "test", lambda text: None)
    names = ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
    assert [score.name for score in found.scores if score.value == 50 or "ROUGE-2" in score.name] == names * is_wanted
    assert found.examples[0].get("rougeL") == (50.0 if is_wanted else None)
    metrics = task.measure(config, corpus, data, Translator(config.decode), {})
    assert metrics.get("rouge_l") == (50.0 if is_wanted else None)


def test_a_language_whose_words_need_a_package_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    config = changed(small(), {"data": {"target_language": "ko"}, "decode": {"validation_sentences": 9}})
    scores._tokenizer.cache_clear()
    with pytest.raises(ConfigError, match=r"sacrebleu\[ko\]"):
        jaxformer.train(config, tmp_path / "run", console=quiet())


def test_other_files_are_scored_in_the_language_of_the_translator(tmp_path, monkeypatch):
    """A run of several corpora has a language for those that name none; a package is needed for that of the files."""
    texts, config = ("老人在房子里", "房子是白色的"), changed(small(), {"data": {"target_language": "ko"}})
    for side in ("en", "zh"):
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts))
    normalizer = types.SimpleNamespace(lowercase=False, pretokenize="none")
    translator = types.SimpleNamespace(
        language="zh",
        decode=DecodeConfig(),
        tokenizer=types.SimpleNamespace(normalizer=normalizer),
        candidates=lambda texts, **_: [[types.SimpleNamespace(text=text, score=0.0)] for text in texts],
    )
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    scores._tokenizer.cache_clear()
    corpus = TASK.read_test(config, [tmp_path / "en", tmp_path / "zh"])
    (found,) = TASK.score(config, corpus, translator, "test", str)
    assert "tok:zh" in found.scores[0].signature
    translator.language, translator.candidates = "ko", lambda *_, **__: pytest.fail("the work has begun")
    with pytest.raises(ConfigError, match=r"sacrebleu\[ko\]"):
        list(TASK.score(config, corpus, translator, "test", str))


def test_no_test_data(tmp_path):
    (tmp_path / "a").write_text("one\n")
    data = DataConfig(source="a", target="a", validation_source="a", validation_target="a", held_out=0)
    config = TranslationConfig(data=dataclasses.replace(data, directory=str(tmp_path)))
    with pytest.raises(DataError, match=r"no test data: the run's data\.held_out is 0"):
        list(TASK.score(config, TASK.read(config), object(), "test", print))
