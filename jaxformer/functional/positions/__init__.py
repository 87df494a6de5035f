"""Position schemes, one per file: numbers and vectors for embeddings, rotations, and biases of the logits."""

from jaxformer.functional.positions.alibi import alibi as alibi
from jaxformer.functional.positions.default import first_positions as first_positions
from jaxformer.functional.positions.learned import check_given_positions as check_given_positions
from jaxformer.functional.positions.learned import check_positions as check_positions
from jaxformer.functional.positions.learned import learned as learned
from jaxformer.functional.positions.raw import normalized_positions as normalized_positions
from jaxformer.functional.positions.raw import raw_positions as raw_positions
from jaxformer.functional.positions.relative import relative_keys as relative_keys
from jaxformer.functional.positions.relative import transformer_xl as transformer_xl
from jaxformer.functional.positions.resize import resize_grid_positions as resize_grid_positions
from jaxformer.functional.positions.resize import resize_positions as resize_positions
from jaxformer.functional.positions.rotary import Frequencies as Frequencies
from jaxformer.functional.positions.rotary import RotaryScaling as RotaryScaling
from jaxformer.functional.positions.rotary import linear_scaling as linear_scaling
from jaxformer.functional.positions.rotary import llama3_scaling as llama3_scaling
from jaxformer.functional.positions.rotary import ntk_scaling as ntk_scaling
from jaxformer.functional.positions.rotary import rotary as rotary
from jaxformer.functional.positions.rotary import yarn_scaling as yarn_scaling
from jaxformer.functional.positions.sinusoidal import sinusoidal as sinusoidal
from jaxformer.functional.positions.t5 import t5_bias as t5_bias
from jaxformer.functional.positions.t5 import t5_bucket as t5_bucket
