"""Arrays in, arrays out: attention, positions, normalisation, feed-forward, dropout, losses.  No state."""

from jaxformer.functional.attention import attention as attention
from jaxformer.functional.attention import attention_head as attention_head
from jaxformer.functional.attention import attention_weights as attention_weights
from jaxformer.functional.attention import masked_softmax as masked_softmax
from jaxformer.functional.cache import KeyValueCache as KeyValueCache
from jaxformer.functional.dropout import Dropout as Dropout
from jaxformer.functional.dropout import dropout as dropout
from jaxformer.functional.feed_forward import feed_forward as feed_forward
from jaxformer.functional.feed_forward import gated_feed_forward as gated_feed_forward
from jaxformer.functional.feed_forward import gelu as gelu
from jaxformer.functional.feed_forward import gelu_tanh as gelu_tanh
from jaxformer.functional.feed_forward import linear as linear
from jaxformer.functional.feed_forward import relu as relu
from jaxformer.functional.losses import cross_entropy as cross_entropy
from jaxformer.functional.losses import linear_cross_entropy as linear_cross_entropy
from jaxformer.functional.normalization import layer_norm as layer_norm
from jaxformer.functional.normalization import rms_norm as rms_norm
from jaxformer.functional.positions import learned as learned
from jaxformer.functional.positions import sinusoidal as sinusoidal
from jaxformer.functional.residual import post_norm as post_norm
from jaxformer.functional.residual import pre_norm as pre_norm
from jaxformer.functional.residual import residual as residual
