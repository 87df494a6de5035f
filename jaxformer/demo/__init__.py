"""An English-French corpus from a hand-written grammar, which needs no download."""

from jaxformer.demo.phrases import Pair, tagged, words
from jaxformer.demo.sentences import EXAMPLES, GrammarSplits, dictionary_baseline, generate, splits, text, version

__all__ = [
    "EXAMPLES",
    "GrammarSplits",
    "Pair",
    "dictionary_baseline",
    "generate",
    "splits",
    "tagged",
    "text",
    "version",
    "words",
]
