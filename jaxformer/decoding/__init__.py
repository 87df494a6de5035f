"""Search over any model that has a step function."""

from jaxformer import lazy
from jaxformer.decoding.api import ContextStep as ContextStep
from jaxformer.decoding.api import Hypotheses as Hypotheses
from jaxformer.decoding.api import State as State
from jaxformer.decoding.api import Step as Step
from jaxformer.decoding.api import StepOfRows as StepOfRows
from jaxformer.decoding.api import TreeState as TreeState
from jaxformer.decoding.beam import BeamTrace as BeamTrace
from jaxformer.decoding.beam import Continuation as Continuation
from jaxformer.decoding.beam import beam_search as beam_search
from jaxformer.decoding.constraints import forbid_sequences as forbid_sequences
from jaxformer.decoding.constraints import no_repeat_ngram as no_repeat_ngram
from jaxformer.decoding.constraints import repetition_penalty as repetition_penalty
from jaxformer.decoding.constraints import shortlist as shortlist
from jaxformer.decoding.ensembles import Average as Average
from jaxformer.decoding.ensembles import EnsembleState as EnsembleState
from jaxformer.decoding.ensembles import StackedState as StackedState
from jaxformer.decoding.ensembles import ensemble as ensemble
from jaxformer.decoding.ensembles import mean_log_probs as mean_log_probs
from jaxformer.decoding.ensembles import stacked_ensemble as stacked_ensemble
from jaxformer.decoding.limits import Limits as Limits
from jaxformer.decoding.limits import Prefix as Prefix
from jaxformer.decoding.limits import ReadPrefix as ReadPrefix
from jaxformer.decoding.penalties import CoverageState as CoverageState
from jaxformer.decoding.penalties import GNMTPenalty as GNMTPenalty
from jaxformer.decoding.penalties import LengthPenalty as LengthPenalty
from jaxformer.decoding.penalties import Normalization as Normalization
from jaxformer.decoding.penalties import Patience as Patience
from jaxformer.decoding.penalties import Stopping as Stopping
from jaxformer.decoding.rerank import bleu_utilities as bleu_utilities
from jaxformer.decoding.rerank import chrf_utilities as chrf_utilities
from jaxformer.decoding.rerank import minimum_bayes_risk as minimum_bayes_risk
from jaxformer.decoding.rerank import rerank as rerank
from jaxformer.decoding.transforms import ForcedEnd as ForcedEnd
from jaxformer.decoding.transforms import History as History
from jaxformer.decoding.transforms import Transform as Transform
from jaxformer.decoding.transforms import chain as chain
from jaxformer.decoding.transforms import for_sampling as for_sampling
from jaxformer.decoding.transforms import forbid as forbid
from jaxformer.decoding.transforms import min_length as min_length
from jaxformer.decoding.transforms import min_p as min_p
from jaxformer.decoding.transforms import temperature as temperature
from jaxformer.decoding.transforms import top_k as top_k
from jaxformer.decoding.transforms import top_p as top_p
from jaxformer.decoding.unroll import Choose as Choose
from jaxformer.decoding.unroll import forced as forced
from jaxformer.decoding.unroll import greedy as greedy
from jaxformer.decoding.unroll import sample as sample
from jaxformer.decoding.unroll import unroll as unroll

lazy.list_names(__name__)
