"""Flax modules that own parameters and call `jaxformer.functional`; `pure` turns them into functions again."""

from jaxformer.modules.attention import AttentionFunction as AttentionFunction
from jaxformer.modules.attention import CrossAttention as CrossAttention
from jaxformer.modules.attention import KeyValue as KeyValue
from jaxformer.modules.attention import SelfAttention as SelfAttention
from jaxformer.modules.blocks import Block as Block
from jaxformer.modules.embedding import Embedding as Embedding
from jaxformer.modules.embedding import Embeddings as Embeddings
from jaxformer.modules.embedding import LearnedPositions as LearnedPositions
from jaxformer.modules.experts import MixtureOfExperts as MixtureOfExperts
from jaxformer.modules.feed_forward import FeedForward as FeedForward
from jaxformer.modules.feed_forward import GatedFeedForward as GatedFeedForward
from jaxformer.modules.linear import Linear as Linear
from jaxformer.modules.normalization import LayerNorm as LayerNorm
from jaxformer.modules.normalization import NormPair as NormPair
from jaxformer.modules.normalization import RMSNorm as RMSNorm
from jaxformer.modules.pure import Pure as Pure
from jaxformer.modules.pure import pure as pure
from jaxformer.modules.stack import Stack as Stack
