"""Whole networks."""

from jaxformer.models import costs as costs
from jaxformer.models.encoder_decoder import Context as Context
from jaxformer.models.encoder_decoder import DecoderState as DecoderState
from jaxformer.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from jaxformer.models.encoder_decoder import EncoderDecoderConfig as EncoderDecoderConfig
from jaxformer.models.encoder_decoder import Memory as Memory
