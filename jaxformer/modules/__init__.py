"""Flax modules that own parameters and call `jaxformer.functional`; `pure` turns them into pure functions.

A module that draws random initial parameters takes ``rngs=``. A module that does not, such as `LayerNorm`, whose scale
starts at 1, or `Block`, which is composed of other modules, takes none.
"""

from jaxformer import lazy
from jaxformer.modules import positions as positions
from jaxformer.modules.attention import CrossAttention as CrossAttention
from jaxformer.modules.attention import KeyValue as KeyValue
from jaxformer.modules.attention import Logits as Logits
from jaxformer.modules.attention import SelfAttention as SelfAttention
from jaxformer.modules.attention_contract import AttentionReport as AttentionReport
from jaxformer.modules.attention_contract import check_attention as check_attention
from jaxformer.modules.attention_function import AttentionFunction as AttentionFunction
from jaxformer.modules.blocks import Block as Block
from jaxformer.modules.captured import CapturedAttention as CapturedAttention
from jaxformer.modules.convolution import Convolution as Convolution
from jaxformer.modules.convolution import ConvolutionStack as ConvolutionStack
from jaxformer.modules.embedding import Embedding as Embedding
from jaxformer.modules.embedding import Embeddings as Embeddings
from jaxformer.modules.embedding import LearnedPositions as LearnedPositions
from jaxformer.modules.embedding import PatchEmbeddings as PatchEmbeddings
from jaxformer.modules.embedding import PositionVectors as PositionVectors
from jaxformer.modules.embedding import RawPositions as RawPositions
from jaxformer.modules.embedding import SinusoidalPositions as SinusoidalPositions
from jaxformer.modules.head import Head as Head
from jaxformer.modules.layers import FeedForward as FeedForward
from jaxformer.modules.layers import Gains as Gains
from jaxformer.modules.layers import GatedFeedForward as GatedFeedForward
from jaxformer.modules.layers import LayerNorm as LayerNorm
from jaxformer.modules.layers import Linear as Linear
from jaxformer.modules.layers import MixtureOfExperts as MixtureOfExperts
from jaxformer.modules.layers import NormPair as NormPair
from jaxformer.modules.layers import RMSNorm as RMSNorm
from jaxformer.modules.lora import LoRA as LoRA
from jaxformer.modules.lora import lora as lora
from jaxformer.modules.lora import matching as matching
from jaxformer.modules.per_layer import per_layer as per_layer
from jaxformer.modules.positions import PositionScheme as PositionScheme
from jaxformer.modules.positions import T5Bias as T5Bias
from jaxformer.modules.pure import Pure as Pure
from jaxformer.modules.pure import pure as pure
from jaxformer.modules.recurrent import Alignment as Alignment
from jaxformer.modules.recurrent import Recurrent as Recurrent
from jaxformer.modules.recurrent import RecurrentStack as RecurrentStack
from jaxformer.modules.sequence import AttentionLayer as AttentionLayer
from jaxformer.modules.sequence import GridAttention as GridAttention
from jaxformer.modules.sequence import LinearAttentionLayer as LinearAttentionLayer
from jaxformer.modules.sequence import RecurrentLayer as RecurrentLayer
from jaxformer.modules.sequence import SequenceLayer as SequenceLayer
from jaxformer.modules.stack import Stack as Stack

lazy.list_names(__name__)
