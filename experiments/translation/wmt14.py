"""WMT 2014: the experiments of "Attention Is All You Need" (Vaswani et al. 2017).

Expected scores on newstest2014: 27.3 (base) and 28.4 (big) BLEU en-de, 38.1 and 41.8 en-fr, tokenized and with
compounds split (table 2 of the paper). The mixed-case 13a score printed here is about one point lower on equal output.

The training text (4.5 million pairs en-de, 36 million en-fr) is not downloaded. Place it as ``wmt/train.en``,
``wmt/train.de`` and so on below the data directory. newstest2013 is the validation set, as in the paper. One step holds
about 25,000 source and 25,000 target tokens, as in the paper. Times are from the paper, on 8 P100 GPUs.
"""

from jaxformer.models import EncoderDecoderConfig
from jaxformer.tasks.translation import Beam, DataConfig, DecodeConfig, TranslationConfig
from jaxformer.training.config import AdamConfig, TrainConfig
from jaxformer.training.schedules import noam_peak

BASE = EncoderDecoderConfig(compute_dtype="bfloat16")
BIG = EncoderDecoderConfig(d_model=1024, num_heads=16, d_ff=4096, dropout=0.3, compute_dtype="bfloat16")
# 1.5 billion parameters: not a model of the paper, but one that needs a mesh.
LARGE = EncoderDecoderConfig(
    d_model=2048,
    num_heads=16,
    d_ff=8192,
    num_encoder_layers=12,
    num_decoder_layers=12,
    norm_position="pre",
    remat=True,
    compute_dtype="bfloat16",
)


def base_en_de() -> TranslationConfig:
    """English to German, base: 63 M parameters, 100,000 steps, 12 hours on 8 P100; 27.3 BLEU."""
    return _config("base", "de", BASE, steps=100_000)


def big_en_de() -> TranslationConfig:
    """English to German, big: 214 M parameters, 300,000 steps, 3.5 days on 8 P100; 28.4 BLEU."""
    return _config("big", "de", BIG, steps=300_000)


def large_en_de() -> TranslationConfig:
    """English to German, 12 and 12 pre-norm layers of d_model 2,048: 1.5 billion parameters, for planning a pod."""
    return _config("large", "de", LARGE, steps=100_000)


def base_en_fr() -> TranslationConfig:
    """English to French, base: 100,000 steps; 38.1 BLEU."""
    return _config("base", "fr", BASE, steps=100_000)


def big_en_fr() -> TranslationConfig:
    """English to French, big, with the paper's dropout of 0.1: 300,000 steps; 41.8 BLEU."""
    model = EncoderDecoderConfig(d_model=1024, num_heads=16, d_ff=4096, compute_dtype="bfloat16")
    return _config("big", "fr", model, steps=300_000)


def _config(size: str, target: str, model: EncoderDecoderConfig, *, steps: int) -> TranslationConfig:
    return TranslationConfig(
        name=f"wmt14 en-{target} {size}",
        model=model,
        data=DataConfig(
            source="wmt/train.en",
            target=f"wmt/train.{target}",
            validation_source="wmt/newstest2013.en",
            validation_target=f"wmt/newstest2013.{target}",
            test_source=f"wmt/newstest2014.en-{target}.en",
            test_target=f"wmt/newstest2014.en-{target}.{target}",
            source_language="en",
            target_language=target,
            vocab_size=37_000 if target == "de" else 32_000,
            tokenizer="bpe",
            tokens_per_batch=25_000,
            num_shapes=8,
            max_length=256,
        ),
        optimizer=AdamConfig(learning_rate=noam_peak(model.d_model, 4000), warmup_steps=4000),
        train=TrainConfig(
            steps=steps, validate_every=2000, checkpoint_every=1500, keep_last=5 if size == "base" else 20
        ),
        decode=DecodeConfig(search=Beam(length_penalty=0.6), validation_sentences=500, max_ratio=1.0, max_extra=50),
    )
