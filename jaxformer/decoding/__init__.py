"""Search over any model that has a step function."""

from jaxformer.decoding.api import Hypotheses as Hypotheses
from jaxformer.decoding.api import State as State
from jaxformer.decoding.api import Step as Step
from jaxformer.decoding.api import TreeState as TreeState
from jaxformer.decoding.beam import BeamTrace as BeamTrace
from jaxformer.decoding.beam import Continuation as Continuation
from jaxformer.decoding.beam import LengthPenalty as LengthPenalty
from jaxformer.decoding.beam import beam_search as beam_search
from jaxformer.decoding.transforms import History as History
from jaxformer.decoding.transforms import Transform as Transform
from jaxformer.decoding.transforms import chain as chain
from jaxformer.decoding.transforms import forbid as forbid
from jaxformer.decoding.transforms import min_length as min_length
from jaxformer.decoding.transforms import temperature as temperature
from jaxformer.decoding.transforms import top_k as top_k
from jaxformer.decoding.transforms import top_p as top_p
from jaxformer.decoding.unroll import forced as forced
from jaxformer.decoding.unroll import greedy as greedy
from jaxformer.decoding.unroll import sample as sample
from jaxformer.decoding.unroll import unroll as unroll
