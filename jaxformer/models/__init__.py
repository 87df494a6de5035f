"""Complete networks (encoders, decoders, encoder-decoders, language models, vision models)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer import lazy
from jaxformer.models import choices as choices
from jaxformer.models.config import ClassifierConfig as ClassifierConfig
from jaxformer.models.config import DecoderConfig as DecoderConfig
from jaxformer.models.config import EncoderConfig as EncoderConfig
from jaxformer.models.config import EncoderDecoderConfig as EncoderDecoderConfig
from jaxformer.models.config import ImageEncoderConfig as ImageEncoderConfig
from jaxformer.models.config import LanguageModelConfig as LanguageModelConfig
from jaxformer.models.config import PoolingConfig as PoolingConfig
from jaxformer.models.config import Seq2SeqConfig as Seq2SeqConfig
from jaxformer.models.config import TextConfig as TextConfig
from jaxformer.models.config import TextDecoderConfig as TextDecoderConfig
from jaxformer.models.config import TokenClassifierConfig as TokenClassifierConfig
from jaxformer.models.config import TransformerConfig as TransformerConfig
from jaxformer.models.vision_config import GridConfig as GridConfig
from jaxformer.models.vision_config import RecurrentCaptionerConfig as RecurrentCaptionerConfig
from jaxformer.models.vision_config import ResidualNetworkConfig as ResidualNetworkConfig
from jaxformer.models.vision_config import TransformerCaptionerConfig as TransformerCaptionerConfig
from jaxformer.models.vision_config import VisionTransformerConfig as VisionTransformerConfig

if TYPE_CHECKING:
    from jaxformer.models import families as families
    from jaxformer.models import presets as presets
    from jaxformer.models import transformer as transformer
    from jaxformer.models.captioner import Captioner as Captioner
    from jaxformer.models.captioner import RecurrentCaptioner as RecurrentCaptioner
    from jaxformer.models.captioner import TransformerCaptioner as TransformerCaptioner
    from jaxformer.models.classifier import Classifier as Classifier
    from jaxformer.models.classifier import TokenClassifier as TokenClassifier
    from jaxformer.models.classifier import VisionTransformer as VisionTransformer
    from jaxformer.models.classifier import with_image_size as with_image_size
    from jaxformer.models.decoder import Decoder as Decoder
    from jaxformer.models.decoder import make_decoder as make_decoder
    from jaxformer.models.decoding_model import Context as Context
    from jaxformer.models.decoding_model import DecoderState as DecoderState
    from jaxformer.models.decoding_model import StepWeights as StepWeights
    from jaxformer.models.encoder import Encoder as Encoder
    from jaxformer.models.encoder import Memory as Memory
    from jaxformer.models.encoder import make_encoder as make_encoder
    from jaxformer.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from jaxformer.models.language_model import LanguageModel as LanguageModel
    from jaxformer.models.language_model import MaskedLanguageModel as MaskedLanguageModel
    from jaxformer.models.recurrent_decoder import CapturedWeights as CapturedWeights
    from jaxformer.models.recurrent_decoder import RecurrentContext as RecurrentContext
    from jaxformer.models.recurrent_decoder import RecurrentDecoder as RecurrentDecoder
    from jaxformer.models.recurrent_decoder import RecurrentDecoderState as RecurrentDecoderState
    from jaxformer.models.residual_network import FeatureGrid as FeatureGrid
    from jaxformer.models.residual_network import ResidualNetwork as ResidualNetwork
    from jaxformer.models.seq2seq import Seq2Seq as Seq2Seq
    from jaxformer.models.token_model import TokenModel as TokenModel

__getattr__ = lazy.members(
    __name__,
    {
        "captioner": "Captioner RecurrentCaptioner TransformerCaptioner",
        "classifier": "Classifier TokenClassifier VisionTransformer with_image_size",
        "decoder": "Decoder make_decoder",
        "encoder": "Encoder Memory make_encoder",
        "encoder_decoder": "EncoderDecoder",
        "decoding_model": "Context DecoderState StepWeights",
        "language_model": "LanguageModel MaskedLanguageModel",
        "recurrent_decoder": "CapturedWeights RecurrentContext RecurrentDecoder RecurrentDecoderState",
        "residual_network": "FeatureGrid ResidualNetwork",
        "seq2seq": "Seq2Seq",
        "token_model": "TokenModel",
        "families": "",
        "presets": "",
        "transformer": "",
    },
)
