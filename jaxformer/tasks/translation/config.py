"""The settings of translation, and its built-in configurations; `demo` needs no file. Importing them imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from jaxformer.config import at_least, check_held_out
from jaxformer.data.weights import WeightConfig, check_used, check_weights, make_phases
from jaxformer.errors import ConfigError
from jaxformer.models.config import EncoderDecoderConfig, Seq2SeqConfig
from jaxformer.reprs import brief
from jaxformer.tasks.config import DataFolders, SearchConfig, TaskConfig, check_pair
from jaxformer.tokenizers.moses import check_language
from jaxformer.tokenizers.special_tokens import MIN_SUBWORDS
from jaxformer.training.config import AdamConfig, CosineDecay, TrainConfig

FILES = "source", "target", "validation_source", "validation_target", "test_source", "test_target"
"""The settings that name files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """The files of sentence pairs, and their languages."""

    source: str = ""
    """Training sentences, one per line; or, if `target` is empty, a table of tab-separated columns."""
    target: str = ""
    """The translations of `source`, line by line."""
    columns: tuple[int, int] = (0, 1)
    """The source and target columns of a table, counted from 0."""
    validation_source: str = ""
    """Validation sentences; by default, data.held_out training pairs are held out."""
    validation_target: str = ""
    """The translations of `validation_source`."""
    test_source: str = ""
    """Test sentences; by default, data.held_out training pairs are held out."""
    test_target: str = ""
    """The translations of `test_source`."""
    source_language: str = ""
    """The two-letter code (ISO 639-1) of the source language; selects the Moses rules for `pretokenize`. One of several
    corpora has that of data by default."""
    target_language: str = ""
    """The two-letter code (ISO 639-1) of the target language, and the tag of a corpus. It selects the word tokenizer of
    scores: the Moses rules for Moses BLEU, which is skipped without a language; sacrebleu's tokenizers for zh, ja and
    ko; and characters for other languages that are written without spaces. It also selects the rules for `pretokenize`.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig(PairsConfig, WeightConfig):
    """One of several corpora: its files, languages, weight and steps."""

    __repr__ = brief


@dataclasses.dataclass(frozen=True)
class DataConfig(DataFolders, PairsConfig):
    """The sentence pairs, their tokens and batches."""

    corpus: Literal["files", "grammar"] = "files"
    """Read files, or generate the built-in English-French corpus."""
    grammar_pairs: int = 72_000
    """The number of training pairs to generate; validation and test pairs are the same for every number."""
    corpora: Mapping[str, CorpusConfig] = dataclasses.field(default_factory=dict)
    """Several corpora by name, in place of `source` and `target`; scores are by corpus."""
    temperature: float = 1.0
    """The weight of a corpus of n pairs is n ** (1 / temperature), if corpora have no weights: 1 for all pairs alike,
    more for more equal shares."""
    mix_in_batch: bool = True
    """Mix the corpora within a batch; otherwise each batch holds pairs of one corpus."""
    tags: Literal["none", "source", "target", "both"] = "none"
    """The place of a token for the target language, which no text can spell: before the source, or as the first token
    of the target, which a search is then made to begin with. With both, the source begins with the token of its own
    language, too, as in NLLB; the codes of languages are then those of the model."""
    held_out: int | float = 1000
    """The number of pairs held out for validation, and as many for test, if no files are named; or a fraction of the
    training pairs, less than 1. They do not depend on the seed. With 0, which holds out none, name validation files."""
    lowercase: bool = False
    """Lowercase all text, including later inputs; references are then lowercased for scores."""
    pretokenize: Literal["none", "moses"] = "none"
    """Split all text into words by the Moses rules before splitting it into subwords; translations are detokenized.
    Moses BLEU is then computed on the words that the model produced."""
    vocab_size: int = 8000
    """The number of subwords in the vocabulary, which both languages share."""
    tokenizer: Literal["unigram", "bpe", "pretrained"] = "unigram"
    """The kind of tokens: subwords by a sentencepiece algorithm, or the tokens of `init_from`'s pretrained model."""
    tokenizer_sentences: int = 500_000
    """The largest number of sentences, of both languages, that the subwords are learned from. Of a larger corpus, a
    hash chooses them."""
    num_segmentations: int = 1
    """The number of segmentations sampled for each training sentence; an epoch uses one of them (subword
    regularization, Kudo 2018; BPE-dropout, Provilkov et al. 2020). 1 uses only the best one; 0 draws a new one in each
    epoch."""
    segmentation_alpha: float = 0.2
    """The smoothing of unigram's sampling distribution, more diverse if smaller; for bpe, the probability of dropping a
    merge, 0.1 in the paper."""
    max_length: int = 256
    """The maximum number of tokens per side; longer pairs are left out of training and reported."""
    tokens_per_batch: int = 4096
    """The number of tokens per batch on the longer side, padding included."""
    num_shapes: int = 6
    """The number of batch shapes (buckets); one program is compiled for each."""
    length_multiple: int = 1
    """Batch lengths are multiples of this; for a mesh that shards lengths, use the size of its `context` axis."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = "grammar_pairs", "tokenizer_sentences", "max_length", "tokens_per_batch", "num_shapes"
        at_least(1, self, *positive, "length_multiple")
        at_least(1 if self.tokenizer == "pretrained" else MIN_SUBWORDS, self, "vocab_size")
        at_least(0, self, "num_segmentations", "segmentation_alpha")
        if self.held_out != 0 or isinstance(self.held_out, float):
            check_held_out(self.held_out)
        if self.tokenizer == "bpe" and self.segmentation_alpha > 1:
            raise ValueError(f"segmentation_alpha must be at most 1 for bpe, got {self.segmentation_alpha}")
        if self.num_segmentations == 1 and self.segmentation_alpha != type(self).segmentation_alpha:
            raise ValueError(f"segmentation_alpha {self.segmentation_alpha} has no effect: num_segmentations is 1")
        if self.corpus == "grammar":
            for name in FILES:
                if file := getattr(self, name):
                    raise ValueError(f"{name} {file!r} has no effect: corpus is grammar, not files")
        check_pair(self.columns)
        if self.tags != "both":
            parts = {"": self} | {f"corpora.{name}.": corpus for name, corpus in self.corpora.items()}
            for where, side in itertools.product(parts, ("source_language", "target_language")):
                if code := getattr(parts[where], side):
                    check_language(code, where + side)
        if self.pretokenize == "moses" and not (self.source_language and self.target_language):
            raise ValueError(
                "pretokenize moses has rules for each language; set source_language and target_language, as en and de"
            )
        self._check_corpora()

    def _check_corpora(self) -> None:
        """Checks the settings of several corpora, before any file is read."""
        defaults = {"temperature": 1.0, "mix_in_batch": True, "tags": "none"}
        if not self.corpora:
            for name, default in defaults.items():
                if getattr(self, name) not in (default, "both"):
                    raise ValueError(f"{name} {getattr(self, name)} has no effect: corpora names none")
            return
        if self.corpus != "files":
            raise ValueError(f"corpora has no effect: corpus is {self.corpus}, not files")
        for name in (*FILES, "columns"):
            if getattr(self, name) != getattr(DataConfig, name):
                raise ValueError(f"{name} {getattr(self, name)!r} has no effect with corpora: set that of each one")
        make_phases(self.corpora, temperature=self.temperature)
        if not self.mix_in_batch and len(self.corpora) < 2:
            raise ValueError("mix_in_batch False has no effect: there are not several corpora")
        for name, corpus in self.corpora.items():
            if not corpus.source:
                raise ValueError(f"corpora.{name} names no file: set corpora.{name}.source")
            languages = self.languages(name)
            if not all({"none": (), "both": languages}.get(self.tags, languages[1:])):
                side = "source" if languages[1] else "target"
                raise ValueError(f"tags need a language: set corpora.{name}.{side}_language")
            if self.pretokenize == "moses" and languages != (self.source_language, self.target_language):
                raise ValueError(
                    f"pretokenize moses has the rules of one pair of languages, but corpora.{name} has others"
                )

    def languages(self, name: str) -> tuple[str, str]:
        """Returns the codes of the source and the target language of one of the `corpora`."""
        corpus = self.corpora[name]
        return corpus.source_language or self.source_language, corpus.target_language or self.target_language

    @property
    def directions(self) -> list[tuple[str, str]]:
        """The codes of the source and the target language of each corpus."""
        return [*map(self.languages, self.corpora)] or [(self.source_language, self.target_language)]

    @property
    def tagged_languages(self) -> tuple[str, ...]:
        """The languages that have a token in the vocabulary, for `tags`."""
        used = {"none": (), "both": (0, 1)}.get(self.tags, (1,))
        return tuple(sorted({pair[side] for pair in self.directions for side in used} - {""}))

    def only(self, name: str) -> Self:
        """Returns the settings of one of the `corpora` as those of the only corpus."""
        corpus, (source, target) = self.corpora[name], self.languages(name)
        files = {setting: getattr(corpus, setting) for setting in (*FILES, "columns")}
        return dataclasses.replace(
            self,
            corpora={},
            temperature=1.0,
            mix_in_batch=True,
            tags="both" if self.tags == "both" else "none",
            source_language=source,
            target_language=target,
            **files,
        )


@dataclasses.dataclass(frozen=True)
class SimCutConfig:
    """SimCut (Gao et al. 2022): a pass with some tokens cut off should predict like a clean one."""

    weight: float = 0.0
    """The weight of the divergence between the two passes (3 in the paper), which double the cost of a step; 0 for one
    pass."""
    cut: float = 0.05
    """The probability that a token of the second pass, of source or target, is cut off."""

    __repr__ = brief

    def __post_init__(self) -> None:
        at_least(0, self, "weight", "cut")
        if self.cut >= 1:
            raise ValueError(f"cut must be less than 1, got {self.cut}")


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The training loss: cross entropy of the next token."""

    label_smoothing: float = 0.1
    """The weight of the uniform distribution in the training targets."""
    z_loss: float = 0.0
    """The weight of the squared log-partition function (z-loss)."""
    r_drop: float = 0.0
    """The weight of the divergence between two passes with different dropout (R-Drop, Liang et al. 2021: 5 for
    translation), which doubles the cost of a step; 0 for one pass."""
    simcut: SimCutConfig = SimCutConfig()
    """The agreement with a pass over cut-off tokens."""

    __repr__ = brief

    def __post_init__(self) -> None:
        at_least(0, self, "label_smoothing", "z_loss", "r_drop")
        if self.label_smoothing >= 1:
            raise ValueError(f"label_smoothing must be less than 1, got {self.label_smoothing}")
        if self.r_drop and self.simcut.weight:
            raise ValueError("r_drop and simcut.weight both compare two passes; set one of them to 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig(SearchConfig):
    """The search for translations."""

    of_training: ClassVar[tuple[str, ...]] = ("validation_sentences",)
    of_scores: ClassVar[tuple[str, ...]] = ("rouge",)

    max_ratio: float = 2.0
    """A translation has at most max_ratio * source length + max_extra tokens, end token included; see also
    max_length."""
    max_extra: int = 10
    """See max_ratio."""
    min_ratio: float = 0.0
    """A translation has at least min_ratio * source length tokens, end token not included."""
    validation_sentences: int = 0
    """The number of validation sentences to translate greedily for BLEU at each validation; 0 for none."""
    rouge: bool = False
    """Also score by ROUGE-1, ROUGE-2 and ROUGE-L, as summaries are; at validations, by ROUGE-L (rouge_l)."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, self, "max_ratio", "max_extra", "min_ratio", "validation_sentences")
        for name, most in (("max_ratio", 100), ("max_extra", 10_000)):  # bounds for a model that never ends
            if not getattr(self, name) <= most:
                raise ValueError(f"{name} must be at most {most:,}, got {getattr(self, name):,}")

    @property
    def has_minimum(self) -> bool:
        """True if there is a minimum number of tokens."""
        return bool(self.min_length or self.min_ratio)

    @property
    def static(self) -> Self:
        """The same search without the settings that do not affect the compiled program."""
        return dataclasses.replace(super().static, validation_sentences=0, rouge=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TaskConfig):
    """A complete translation experiment."""

    task: ClassVar[str] = "translation"

    name: str = "translation"
    """The run's name in logs and plots."""
    model: EncoderDecoderConfig | Seq2SeqConfig = EncoderDecoderConfig()
    """The network; vocabulary sizes of 0 are replaced by the tokenizer's."""
    data: DataConfig = DataConfig()
    """Corpora and batches."""
    loss: LossConfig = LossConfig()
    """The training loss."""
    decode: DecodeConfig = DecodeConfig()
    """The search for translations."""

    __repr__ = brief

    def check(self) -> None:
        check_used(self.data.corpora, self.train.steps)
        if (metric := self.train.metric) in ("bleu", "rouge_l") and not self.decode.validation_sentences:
            raise ConfigError(f"train.metric is {metric}, but decode.validation_sentences is 0: nothing is translated")
        if metric == "rouge_l" and not self.decode.rouge:
            raise ConfigError("train.metric is rouge_l, but decode.rouge is False; set it to True")
        if self.decode.coverage_penalty and not self.model.has_attention:
            raise ConfigError("decode.coverage_penalty needs attention, but the model has model.attention none")
        if self.loss.r_drop and not any(rate for name, rate in vars(self.model).items() if name.endswith("dropout")):
            raise ConfigError(
                f"loss.r_drop {self.loss.r_drop} compares two passes with different dropout, but model.dropout is 0; "
                "raise model.dropout or set loss.r_drop to 0"
            )

    def check_resumed(self, saved: Self, done: int) -> None:
        check_weights(saved.data.corpora, self.data.corpora, done, self.data.temperature)


def demo() -> TranslationConfig:
    """English to French from a built-in grammar: three to eight minutes on two cores, BLEU above 97 on new texts."""
    return TranslationConfig(
        name="demo",
        model=EncoderDecoderConfig(
            d_model=128,
            num_heads=4,
            d_ff=256,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout=0.0,
            norm_position="pre",
        ),
        data=DataConfig(
            corpus="grammar",
            source_language="en",
            target_language="fr",
            vocab_size=2000,
            tokens_per_batch=2048,
            num_shapes=3,
            max_length=64,
        ),
        optimizer=AdamConfig(learning_rate=3e-3, schedule=CosineDecay(), warmup_steps=200),
        train=TrainConfig(steps=2000, validate_every=500, checkpoint_every=500, keep_last=2),
        decode=DecodeConfig(validation_sentences=200),
    )


def translation() -> TranslationConfig:
    """Translation between your own two files, at the size `small`: give --data.source and --data.target."""
    return _sized("translation", d_model=256, num_heads=4, d_ff=1024, num_layers=4, dropout=0.2, learning_rate=2e-3)


def tiny() -> TranslationConfig:
    """The smallest model, 2 M parameters, for two CPU cores and first trials (2 + 2 layers, D = 128)."""
    sizes = {"d_model": 128, "num_heads": 4, "d_ff": 512, "num_layers": 2, "dropout": 0.1}
    config = _sized("translation-tiny", **sizes, learning_rate=3e-3, steps=5000, tokens_per_batch=2048)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, num_shapes=3))


def small() -> TranslationConfig:
    """Ten thousand to a million pairs, on a GPU or many cores: 9.4 M parameters (4 + 4 layers, D = 256)."""
    return dataclasses.replace(translation(), name="translation-small")


def base() -> TranslationConfig:
    """Millions of pairs on an accelerator: the paper's base model, pre-norm, 61 M parameters (D = 512)."""
    sizes = {"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_layers": 6, "dropout": 0.1, "vocab_size": 32_000}
    return _sized("translation-base", **sizes, learning_rate=7e-4, steps=100_000, tokens_per_batch=25_000)


def big() -> TranslationConfig:
    """Millions of pairs on several accelerators: the paper's big model, pre-norm, 209 M parameters (D = 1024)."""
    sizes = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "num_layers": 6, "dropout": 0.3, "vocab_size": 32_000}
    return _sized("translation-big", **sizes, learning_rate=5e-4, steps=300_000, tokens_per_batch=25_000)


def _sized(
    name: str,
    *,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_layers: int,
    dropout: float,
    learning_rate: float,
    vocab_size: int = 8000,
    **budget: int,
) -> TranslationConfig:
    """Returns a configuration whose encoder and decoder have this shape; `budget` has steps and tokens_per_batch."""
    steps = budget.get("steps", 20_000)
    return TranslationConfig(
        name=name,
        model=EncoderDecoderConfig(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            num_encoder_layers=num_layers,
            num_decoder_layers=num_layers,
            dropout=dropout,
            norm_position="pre",
        ),
        data=DataConfig(vocab_size=vocab_size, tokens_per_batch=budget.get("tokens_per_batch", 4096)),
        optimizer=AdamConfig(learning_rate=learning_rate, warmup_steps=4000 if steps > 20_000 else 1000),
        train=TrainConfig(steps=steps, validate_every=500, checkpoint_every=500, patience=10),
        decode=DecodeConfig(validation_sentences=200),
    )
