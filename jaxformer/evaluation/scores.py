"""Translation scores, each with the signature that says how it was computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import sacrebleu
import sacremoses


@dataclasses.dataclass(frozen=True)
class Score:
    """A figure, its name, and the recipe behind it."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  [{self.signature}]"


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """sacrebleu's BLEU with 13a tokenization (Post 2018): comparable with the figures that print its signature."""
    _check(hypotheses, references)
    metric = sacrebleu.BLEU(lowercase=lowercase)
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("BLEU (lower-cased)" if lowercase else "BLEU", value, str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacrebleu's chrF2 (Popovic 2015)."""
    _check(hypotheses, references)
    metric = sacrebleu.CHRF()
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score("chrF2", value, str(metric.get_signature()))


def moses_bleu(hypotheses: Sequence[str], references: Sequence[str], *, language: str) -> Score:
    """BLEU of lower-cased, Moses-tokenized text: what Multi30k papers print.  Not comparable with `bleu`.

    Args:
      language: two-letter code, chooses the tokenizer's rules.
    """
    _check(hypotheses, references)
    prepare = functools.partial(_moses, tokenizer=sacremoses.MosesTokenizer(lang=language))
    metric = sacrebleu.BLEU(tokenize="none", force=True)
    value = metric.corpus_score([prepare(h) for h in hypotheses], [[prepare(r) for r in references]]).score
    recipe = f"lower-cased, sacremoses {sacremoses.__version__} ({language}), then {metric.get_signature()}"
    return Score("BLEU (lower-cased Moses)", value, recipe)


def _moses(text: str, *, tokenizer: sacremoses.MosesTokenizer) -> str:
    return tokenizer.tokenize(text.lower(), return_str=True, escape=False)


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses, but {len(references)} references")
    if not references:
        raise ValueError("a corpus score needs at least one sentence")
