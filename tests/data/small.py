"""A corpus of six hundred pairs, for the tests of this folder."""

from jaxformer import demo
from jaxformer.data.pairs import Parallel

PAIRS = demo.generate(600)
CORPUS = Parallel(tuple(p.english for p in PAIRS), tuple(p.french for p in PAIRS))
