"""An English-French corpus from a hand-written grammar, which needs no download."""

from jaxformer.demo.alignment import words as words
from jaxformer.demo.corpus import EXAMPLES as EXAMPLES
from jaxformer.demo.corpus import GrammarSplits as GrammarSplits
from jaxformer.demo.corpus import generate as generate
from jaxformer.demo.corpus import splits as splits
from jaxformer.demo.corpus import text as text
from jaxformer.demo.dictionary import dictionary_baseline as dictionary_baseline
from jaxformer.demo.phrases import Pair as Pair
