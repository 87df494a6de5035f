"""Attention: `api` dispatches to implementations; implementations import only `base`."""

from jaxformer.functional.attention.api import attention as attention
from jaxformer.functional.attention.api import attention_weights as attention_weights
from jaxformer.functional.attention.base import masked_softmax as masked_softmax
from jaxformer.functional.attention.reference import attention_head as attention_head
