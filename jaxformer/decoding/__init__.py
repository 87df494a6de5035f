"""Search over any model that offers a step function."""

from jaxformer.decoding.api import Hypotheses as Hypotheses
from jaxformer.decoding.api import Step as Step
from jaxformer.decoding.beam import beam_search as beam_search
from jaxformer.decoding.greedy import greedy as greedy
