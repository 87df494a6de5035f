"""Complete networks: encoder, decoder, encoder-decoder, language model; and their costs."""

from jaxformer.models import costs as costs
from jaxformer.models import families as families
from jaxformer.models import transformer as transformer
from jaxformer.models.decoder import Context as Context
from jaxformer.models.decoder import Decoder as Decoder
from jaxformer.models.decoder import DecoderState as DecoderState
from jaxformer.models.encoder import Encoder as Encoder
from jaxformer.models.encoder import EncoderConfig as EncoderConfig
from jaxformer.models.encoder import Memory as Memory
from jaxformer.models.encoder import make_encoder as make_encoder
from jaxformer.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from jaxformer.models.encoder_decoder import EncoderDecoderConfig as EncoderDecoderConfig
from jaxformer.models.language_model import LanguageModel as LanguageModel
from jaxformer.models.language_model import LanguageModelConfig as LanguageModelConfig
from jaxformer.models.transformer import ExpertsConfig as ExpertsConfig
from jaxformer.models.transformer import RotaryConfig as RotaryConfig
from jaxformer.models.transformer import TransformerConfig as TransformerConfig
