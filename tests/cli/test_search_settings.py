"""Settings of the search by their last names, and the search that they choose."""

import pytest

from jaxformer.cli.command import SHORT, split_settings
from jaxformer.cli.evaluate import Evaluate
from jaxformer.cli.generation import Caption, Generate, Translate
from jaxformer.cli.prediction import Score
from jaxformer.cli.predictors import configured
from jaxformer.errors import ConfigError
from jaxformer.tasks import rundir
from jaxformer.tasks.captioning import CaptioningConfig
from jaxformer.tasks.language_model import DecodeConfig as TextDecodeConfig
from jaxformer.tasks.language_model import LanguageModelingConfig
from jaxformer.tasks.translation import Beam, DecodeConfig, Greedy, MinimumRisk, Sample, TranslationConfig

COLD = Sample(temperature=0.7, seed=3)
LONG = Beam(beam_size=8, length_penalty=0.6)


def given(run, config, command, settings, *ensemble):
    """Returns the search of a run with command-line settings."""
    rundir.claim(run, config.task, config, ())
    kinds = {"translate": Translate, "evaluate": Evaluate, "caption": Caption, "score": Score, "generate": Generate}
    return configured(kinds[command](run, ensemble=ensemble), split_settings(settings.split(), SHORT)[1]).decode


@pytest.mark.parametrize(
    ("saved", "settings", "search"),
    [
        (Beam(), "", Beam()),
        (Beam(), "--beam-size 1", Beam(beam_size=1)),
        (LONG, "--beam-size=5", Beam(beam_size=5, length_penalty=0.6)),
        (Beam(), "--decode.beam_size 8 --decode.length-penalty=.6", LONG),
        (Beam(), "--decode.search.beam_size 8 --decode.length-penalty=.6", LONG),
        (Beam(), "--sample", Sample()),
        (Beam(), "--temperature 0.7 --seed 3", COLD),
        (COLD, "--top-k 5", Sample(temperature=0.7, seed=3, top_k=5)),
        (COLD, "--seed 4", Sample(temperature=0.7, seed=4)),
        (COLD, "--beam-size 8 --decode.length_penalty .6", LONG),
        (COLD, "--temperature 0", Greedy()),
        (Beam(), "--temperature 0 --beam-size 6", Beam(beam_size=6)),
        (Beam(renormalize=True), "--decode.search greedy", Greedy(renormalize=True)),
        (Beam(), "--decode.search sample --decode.search.top_k 5", Sample(top_k=5)),
        (LONG, "--mbr 8 --top-p .9", MinimumRisk(num_candidates=8, candidates=Sample(top_p=0.9))),
        (COLD, "--mbr 8", MinimumRisk(num_candidates=8, candidates=COLD)),
        (LONG, "--mbr 8 --decode.candidates beam", MinimumRisk(num_candidates=8, candidates=LONG)),
        (Beam(), "--mbr 4 --beam-size 6", MinimumRisk(num_candidates=4, candidates=Beam(beam_size=6))),
        (MinimumRisk(candidates=COLD), "--decode.utility bleu", MinimumRisk(utility="bleu", candidates=COLD)),
        (
            MinimumRisk(candidates=COLD),
            "--top-p .9",
            MinimumRisk(candidates=Sample(temperature=0.7, seed=3, top_p=0.9)),
        ),
    ],
)
def test_settings_choose_the_search_that_has_them(tmp_path, saved, settings, search):
    """That of the run if it can be; what both searches have is kept."""
    config = TranslationConfig(decode=DecodeConfig(search=saved))
    assert given(tmp_path / "run", config, "translate", settings).search == search


@pytest.mark.parametrize(
    ("settings", "search"),
    [
        ("", Sample(temperature=0.8)),
        ("--temperature 0", Greedy()),
        ("--temperature 0 --beam-size 4", Beam()),
        ("--beam-size 3", Beam(beam_size=3)),
        ("--mbr 4 --beam-size 4", MinimumRisk(num_candidates=4, candidates=Beam())),
        ("--mbr 8 --seed 4", MinimumRisk(num_candidates=8, candidates=Sample(temperature=0.8, seed=4))),
        ("--top-p .9", Sample(temperature=0.8, top_p=0.9)),
    ],
)
def test_the_searches_of_a_language_model(tmp_path, settings, search):
    assert given(tmp_path / "run", LanguageModelingConfig(), "generate", settings).search == search


TRANSLATION, TEXT, CAPTIONS = TranslationConfig(), LanguageModelingConfig(), CaptioningConfig()


@pytest.mark.parametrize(
    ("config", "command", "settings", "message"),
    [
        (CAPTIONS, "caption", "--sample --decode.stopping limit", "beam, not sample"),
        (TRANSLATION, "translate", "--seed 1", "decode.seed is for search sample, not beam"),
        (TRANSLATION, "translate", "--mbr 2 --decode.candidates beam --seed 1", "decode.seed is for search sample"),
        (TRANSLATION, "translate", "--decode.utility bleu", "decode.utility is for search minimum_risk, not beam"),
        (TRANSLATION, "translate", "--sample --decode.coverage_penalty .2", "is for search beam, not sample"),
        (TRANSLATION, "translate", "--sample --decode.renormalize", "decode.renormalize is for search beam or gr"),
        (TRANSLATION, "translate", "--sample --mbr 4", "--sample and --mbr name two searches, sample and minimum"),
        (TRANSLATION, "translate", "--sample --temperature 0", "--sample and --temperature 0 name two searches"),
        (TRANSLATION, "translate", "--decode.sample False", "--sample takes no value; another search has a name"),
        (TRANSLATION, "translate", "--temperature 0 --top-k 5", "decode.top_k is for search sample, not greedy"),
        (TRANSLATION, "translate", "--decode.search bean", "decode.search: got bean, expected beam or greedy or"),
        (TRANSLATION, "translate", "--decode.search.top_k 5", "there is 'decode.search.top_k' with --decode.search"),
        (TEXT, "generate", "--decode.renormalize True", "beam or greedy, not sample"),
        (TEXT, "generate", "--decode.coverage_penalty .1", "has no effect: a language model has no"),
        (CAPTIONS, "caption", "--decode.validation_images 8", "it is for training"),
        (TRANSLATION, "translate", "--decode.rouge", "decode.rouge has no effect: it is for evaluate and training"),
        (TRANSLATION, "score", "--decode.beam_size 8", "beam_size has no effect: score generates no text"),
        (TEXT, "score", "--decode.temperature 1", "decode.temperature has no effect: score"),
    ],
)
def test_a_setting_that_the_command_would_ignore_is_refused(tmp_path, config, command, settings, message):
    with pytest.raises(ConfigError, match=message):
        given(tmp_path / "run", config, command, settings)


def test_saved_settings_may_be_ignored(tmp_path):
    config = TranslationConfig(decode=DecodeConfig(search=LONG, average="log", validation_sentences=9))
    assert given(tmp_path / "run", config, "score", "--decode.batch_size 8").batch_size == 8
    texts = LanguageModelingConfig(decode=TextDecodeConfig(search=MinimumRisk(candidates=COLD)))
    assert given(tmp_path / "texts", texts, "generate", "--temperature 0").search == Greedy()


def test_evaluate_scores_by_rouge(tmp_path):
    assert given(tmp_path / "run", TranslationConfig(), "evaluate", "--decode.rouge").rouge


def test_an_ensemble_uses_decode_average(tmp_path):
    assert given(tmp_path / "run", TranslationConfig(), "score", "--decode.average log", tmp_path).average == "log"
