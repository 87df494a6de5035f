"""Scores of translations, language models and classifications, with signatures: how they were computed."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sacrebleu
from sacrebleu.significance import PairedTest

from jaxformer.errors import ConfigError
from jaxformer.evaluation.resampling import Sample
from jaxformer.reprs import as_html
from jaxformer.tokenizers import moses
from jaxformer.tokenizers.moses import UNSPACED, check_language


@dataclasses.dataclass(frozen=True)
class Score:
    """A score with its name, its signature (how it was computed) and the number of decimals to print."""

    name: str
    value: float
    signature: str
    decimals: int = 2
    sample: Sample | None = dataclasses.field(default=None, repr=False, compare=False)
    """The examples that it is of, for `resampling.interval` and `difference`."""

    _repr_html_ = as_html

    def __repr__(self) -> str:
        return f"Score({self.name} {self.value:.{self.decimals}f})"

    def __str__(self) -> str:
        return f"{self.name} {self.value:.{self.decimals}f}  [{self.signature}]"


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    language: str = "",
) -> Score:
    """Computes sacrebleu's BLEU (Post 2018); comparable with scores of the same signature.

    Args:
      references: one or several for each hypothesis; the number may vary.
      language: a two-letter code that selects the tokenizer: sacrebleu's own for zh, ja and ko, characters for other
        languages without spaces between words (bo, dz, km, lo, my, th), 13a for all others.

    Raises:
      ValueError: there is no hypothesis, or one without a reference, or their numbers differ.
      ConfigError: `language` is not a two-letter code (ISO 639-1), or sacrebleu needs a further package for it.
    """
    _check(hypotheses, references)
    metric = _bleu(language, lowercase=lowercase)
    several = [[texts] if isinstance(texts, str) else texts for texts in references]
    columns = [list(column) for column in itertools.zip_longest(*several)]
    value = metric.corpus_score(list(hypotheses), columns).score
    sample = _sample(metric, hypotheses, columns)
    return Score(f"BLEU{' (lower-cased)' * lowercase}", value, str(metric.get_signature()), sample=sample)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """Computes sacrebleu's chrF2 (Popovic 2015)."""
    _check(hypotheses, references)
    metric = sacrebleu.CHRF(lowercase=lowercase)
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    sample = _sample(metric, hypotheses, [list(references)])
    return Score(f"chrF2{' (lower-cased)' * lowercase}", value, str(metric.get_signature()), sample=sample)


def _sample(metric: Any, hypotheses: Sequence[str], columns: list[list[str]]) -> Sample:
    """Returns the sentences of a score of sacrebleu, whose statistics of single sentences are private."""
    make = lambda: metric._extract_corpus_statistics(list(hypotheses), columns)
    return Sample(make, lambda sums: metric._aggregate_and_compute([sums.tolist()]).score)


def rouge(hypotheses: Sequence[str], references: Sequence[str], *, language: str = "") -> list[Score]:
    """Computes ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the means of the F1 scores of the texts, times 100.

    On ASCII text these are the scores of the package rouge-score without a stemmer; see `rouge_words`.

    Args:
      language: a two-letter code; texts of a language without spaces between words are compared by characters.

    Raises:
      ValueError: there is no hypothesis, or their number is not that of the references.
    """
    _check(hypotheses, references)
    rows = sentence_rouge(hypotheses, references, language=language)
    unit = "characters" if language in UNSPACED else "words"
    recipe = f"mean F1 of {len(rows):,} texts, lower-cased {unit} without stemming"
    return [
        Score(f"ROUGE-{name}", float(np.mean(values)), recipe, sample=Sample.mean(values, 1))
        for name, values in ((name, [row[f"rouge{name}"] for row in rows]) for name in ("1", "2", "L"))
    ]


def sentence_rouge(
    hypotheses: Sequence[str], references: Sequence[str], *, language: str = ""
) -> list[dict[str, float]]:
    """Computes ROUGE-1, ROUGE-2 and ROUGE-L of each text, F1 times 100; see `rouge`.

    >>> sentence_rouge(["the cat sat"], ["The cat sat down."])
    [{'rouge1': 85.71428571428571, 'rouge2': 80.0, 'rougeL': 85.71428571428571}]
    """
    rows = []
    for said, meant in zip(hypotheses, references, strict=True):
        ours, theirs = rouge_words(said, language), rouge_words(meant, language)
        row = {}
        for n in (1, 2):
            a, b = (collections.Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (ours, theirs))
            row[f"rouge{n}"] = _f1((a & b).total(), a.total(), b.total())
        rows.append(row | {"rougeL": _f1(_longest_common(ours, theirs), len(ours), len(theirs))})
    return rows


def rouge_words(text: str, language: str = "") -> list[str]:
    """Returns the words of a text as `rouge` compares them: runs of letters and digits, lower-cased.

    Unlike rouge-score, which knows the letters a to z only, it keeps letters of all scripts, with their marks.

    >>> rouge_words("It's a naïve test_case.")
    ['it', 's', 'a', 'naïve', 'test', 'case']
    >>> rouge_words("你好。", "zh"), rouge_words("हिन्दी")
    (['你', '好'], ['हिन्दी'])
    """
    words, inside = list[str](), False
    for character in unicodedata.normalize("NFC", text.lower()):
        category = unicodedata.category(character)[0]  # a letter, a number or a mark
        if category in "LN" and (language in UNSPACED or not inside):
            words.append(character)
        elif category in "LN" or (category == "M" and inside):
            words[-1] += character
        inside = category in "LN" or (category == "M" and inside)
    return words


def _f1(common: int, ours: int, theirs: int) -> float:
    return 200 * common / (ours + theirs) if common else 0.0


def _longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    """Returns the length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        before = row
        row = [0]
        for i, other in enumerate(b):
            row.append(before[i] + 1 if word == other else max(row[i], before[i + 1]))
    return row[-1]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The scores of two systems on the same sentences, and the p-value of their difference.

    >>> print(Comparison(Score("BLEU", 39.8, "..."), Score("BLEU", 40.7, "..."), 0.0329))
    BLEU 39.80 | 40.70, p = 0.033
    """

    baseline: Score
    system: Score
    p_value: float

    _repr_html_ = as_html

    def __str__(self) -> str:
        return f"{self.baseline.name} {self.baseline.value:.2f} | {self.system.value:.2f}, p = {self.p_value:.3f}"


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    language: str = "",
    draws: int = 1000,
) -> Comparison:
    """Compares the BLEU of two systems by paired bootstrap resampling, as in sacrebleu (Koehn 2004).

    The sentences are drawn `draws` times, with replacement. A p-value of 0.05 or more means that another sample of
    sentences could well have reversed the difference. It says nothing about other training seeds.
    """
    for hypotheses in (baseline, system):
        _check(hypotheses, references)
    name, metric = f"BLEU{' (lower-cased)' * lowercase}", _bleu(language, lowercase=lowercase)
    systems: list[tuple[str, Sequence[str]]] = [("baseline", list(baseline)), ("system", list(system))]
    test: Any = PairedTest(systems, {"bleu": metric}, [list(references)], "bs", n_samples=draws)
    signatures, results = test()
    first, second = (Score(name, result.score, str(signatures["BLEU"])) for result in results["BLEU"])
    # sacrebleu counts larger differences only, so it gives equal systems the smallest of all p-values.
    return Comparison(first, second, 1.0 if first.value == second.value else results["BLEU"][1].p_value)


def sentence_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    language: str = "",
) -> list[dict[str, float]]:
    """Computes the BLEU of each sentence, without n-gram orders for which it is too short, and its chrF2.

    Sentence scores show where a system is weak; their mean is not the corpus score.
    """
    _check(hypotheses, references)
    metrics = {
        "bleu": _bleu(language, effective_order=True, lowercase=lowercase),
        "chrf": sacrebleu.CHRF(lowercase=lowercase),
    }
    several = ([texts] if isinstance(texts, str) else list(texts) for texts in references)
    return [
        {name: round(metric.sentence_score(hypothesis, each).score, 2) for name, metric in metrics.items()}
        for hypothesis, each in zip(hypotheses, several, strict=True)
    ]


def bleu_words(text: str, language: str = "") -> list[str]:
    """Returns the words of a text as `bleu` compares them.

    >>> bleu_words("A dog runs.")
    ['A', 'dog', 'runs', '.']
    >>> bleu_words("你好", "zh")
    ['你', '好']
    """
    return _tokenizer(language)(text).split()


@functools.cache
def _tokenizer(language: str) -> Callable[[str], str]:
    return _bleu(language).tokenizer


def _bleu(language: str, *, lowercase: bool = False, effective_order: bool = False) -> sacrebleu.BLEU:
    make = functools.partial(sacrebleu.BLEU, lowercase=lowercase, effective_order=effective_order)
    if language:
        check_language(language)
    if language in UNSPACED - {"ja", "zh"}:  # 13a would read a sentence as one word
        return make(tokenize="char")
    try:
        return make(trg_lang=language)
    except RuntimeError as error:
        raise ConfigError(
            f"BLEU of {language} needs a package that is missing; install it with: pip install 'sacrebleu[{language}]'"
        ) from error


def moses_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str,
    words: Sequence[str] | None = None,
    cased: bool = False,
) -> Score:
    """Computes BLEU of lower-cased, Moses-tokenized text, as Multi30k papers report it; not comparable with `bleu`.

    Args:
      language: a two-letter code that selects the tokenizer's rules.
      words: the hypotheses as Moses words separated by spaces, if a system outputs them; these are compared as is,
        as in the papers.
      cased: True if these words were split before they were lower-cased. References are then lower-cased after they
        are split, too: the rules leave a period at its word if a small letter follows.

    Raises:
      ValueError: see `bleu`.
      ConfigError: `language` is not a two-letter code (ISO 639-1), or it is written without spaces, so that the rules
        find no words.
    """
    _check(hypotheses, references)
    if language in UNSPACED:
        raise ConfigError(f"Moses BLEU needs words between spaces, and {language} has none; use bleu")
    split = lambda text: moses.tokenize(text, language)
    prepare = (lambda text: split(text).lower()) if cased else (lambda text: split(text.lower()))
    said = [prepare(text) for text in hypotheses] if words is None else [text.lower() for text in words]
    metric = sacrebleu.BLEU(tokenize="none", force=True)
    meant = [prepare(text) for text in references]
    value = metric.corpus_score(said, [meant]).score
    origin = f", hypotheses as {'cased ' * cased}words of the system" * (words is not None)
    recipe = f"lower-cased, sacremoses {moses.version()} ({language}){origin}, then {metric.get_signature()}"
    return Score("BLEU (lower-cased Moses)", value, recipe, sample=_sample(metric, said, [meant]))


def nats_per_token(total: float, count: float) -> Score:
    """Returns the mean cross entropy of a language model, from the sum of ``-log p`` over tokens and their number.

    >>> str(nats_per_token(30.0, 20))
    'nats per token 1.5000  [-log p, mean of 20 tokens]'
    """
    _check_count(count)
    return Score("nats per token", total / count, f"-log p, mean of {count:,.0f} tokens", decimals=4)


def perplexity(total: float, count: float) -> Score:
    """Returns the perplexity ``exp(total / count)`` of a language model; comparable only for the same tokenizer.

    Args:
      total: the sum of ``-log p`` over tokens, in nats.
      count: the number of tokens.
    """
    _check_count(count)
    with np.errstate(over="ignore"):  # the perplexity of an untrained model may be infinite
        value = float(np.exp(np.float64(total / count)))
    return Score("perplexity", value, f"exp of -log p, mean of {count:,.0f} tokens")


def bits_per_character(total: float, num_characters: float) -> Score:
    """Returns the bits per character of a language model, comparable across tokenizers on the same text.

    Args:
      total: the sum of ``-log p`` over all tokens of the text, in nats.
    """
    _check_count(num_characters)
    value = total / num_characters / math.log(2)
    return Score("bits per character", value, f"-log2 p, mean of {num_characters:,.0f} characters", decimals=4)


def accuracy(correct: float, count: float) -> Score:
    """Returns the share of correct predictions, in percent.

    >>> str(accuracy(3, 4))
    'accuracy 75.00  [percent of 4 predictions]'
    """
    _check_count(count, "an accuracy needs at least one prediction")
    return Score("accuracy", 100 * correct / count, f"percent of {count:,.0f} predictions")


def matthews(labels: Sequence[int] | np.ndarray, predictions: Sequence[int] | np.ndarray) -> Score:
    """Returns 100 times the Matthews correlation of labels and predictions, for any number of classes (Gorodkin 2004).

    See `matthews_of_counts`.

    >>> str(matthews([1, 1, 0, 0], [1, 0, 0, 0]))
    'Matthews correlation 57.74  [times 100, 4 predictions]'

    Raises:
      ValueError: there are no labels, or another number of predictions; or they are not one class per example.
    """
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape or labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"each label needs a prediction, got {list(labels.shape)} labels and {list(predictions.shape)} predictions"
        )
    classes = np.union1d(labels, predictions)[:, None]
    return matthews_of_counts(
        int((labels == predictions).sum()), (labels == classes).sum(1), (predictions == classes).sum(1)
    )


def matthews_of_counts(correct: float, labels: np.ndarray, predictions: np.ndarray) -> Score:
    """Returns 100 times the Matthews correlation from the correct predictions and the counts of each class.

    With n examples, c correct predictions, and t and p the counts of each class among labels and predictions:
    ``(c n - t p) / sqrt((n^2 - p p) (n^2 - t t))``; 0 if all labels, or all predictions, are of one class.
    """
    true, predicted = np.asarray(labels, float), np.asarray(predictions, float)
    n = float(true.sum())
    covariance = correct * n - float(true @ predicted)
    scale = float(((n**2 - predicted @ predicted) * (n**2 - true @ true)) ** 0.5)
    return Score("Matthews correlation", 100 * covariance / scale if scale else 0.0, f"times 100, {n:,.0f} predictions")


def _check_count(count: float, needed: str = "a mean needs at least one token or character") -> None:
    if not count > 0:
        raise ValueError(f"{needed}, got {count}")


def _check(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses, but {len(references)} references")
    if not references:
        raise ValueError("a corpus score needs at least one sentence")
    for number, texts in enumerate(references, 1):
        if not isinstance(texts, str) and not texts:
            raise ValueError(f"a hypothesis needs at least one reference, but number {number} has none")
