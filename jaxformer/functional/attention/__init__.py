"""Attention. Read the files in this order.

=====================  ================================================================================
reference              `attention_head`, the definition for one head of one example, lifted by ``jax.vmap``
base                   `Request`, one checked call, and what all implementations share
api                    `attention`: makes the request, chooses an implementation, runs it
blockwise              attention tile by tile; its parts are `tiles` and `sinks`, and `ring` runs it on a mesh
vendor                 the kernels of `jax.nn` and cuDNN, of TPUs (splash), and of tokamax
logits                 `soft_cap` and `qk_norm`, before or inside `attention`
weights                weights, entropies and alignments, for inspection, also of your own attention function
explain                `explain_attention`: which implementation runs, and why others do not
additive, linear       other kinds of attention, which are not implementations of `attention`
=====================  ================================================================================

Implementations import `base` and not each other.
"""

from jaxformer.functional.attention.additive import Similarity as Similarity
from jaxformer.functional.attention.additive import additive_attention as additive_attention
from jaxformer.functional.attention.additive import additive_similarity as additive_similarity
from jaxformer.functional.attention.additive import dot_similarity as dot_similarity
from jaxformer.functional.attention.additive import general_attention as general_attention
from jaxformer.functional.attention.additive import multiplicative_attention as multiplicative_attention
from jaxformer.functional.attention.api import attention as attention
from jaxformer.functional.attention.base import ScoreFunction as ScoreFunction
from jaxformer.functional.attention.base import at_positions as at_positions
from jaxformer.functional.attention.base import masked_softmax as masked_softmax
from jaxformer.functional.attention.explain import Explanation as Explanation
from jaxformer.functional.attention.explain import explain_attention as explain_attention
from jaxformer.functional.attention.linear import FeatureMap as FeatureMap
from jaxformer.functional.attention.linear import LinearState as LinearState
from jaxformer.functional.attention.linear import elu_plus_one as elu_plus_one
from jaxformer.functional.attention.linear import linear_attention as linear_attention
from jaxformer.functional.attention.linear import linear_attention_start as linear_attention_start
from jaxformer.functional.attention.linear import linear_attention_step as linear_attention_step
from jaxformer.functional.attention.logits import qk_norm as qk_norm
from jaxformer.functional.attention.logits import soft_cap as soft_cap
from jaxformer.functional.attention.reference import attention_head as attention_head
from jaxformer.functional.attention.ring import unzigzag as unzigzag
from jaxformer.functional.attention.ring import zigzag as zigzag
from jaxformer.functional.attention.weights import AttentionStatistics as AttentionStatistics
from jaxformer.functional.attention.weights import attention_entropy as attention_entropy
from jaxformer.functional.attention.weights import attention_statistics as attention_statistics
from jaxformer.functional.attention.weights import attention_weights as attention_weights
from jaxformer.functional.attention.weights import top_alignments as top_alignments
from jaxformer.functional.attention.weights import weights_of as weights_of
