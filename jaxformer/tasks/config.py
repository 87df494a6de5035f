"""The settings that every task has. Importing them imports none of a task's libraries."""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from jaxformer.config import LATER, PLACE, at_least, check_choices, check_numbers, check_saved
from jaxformer.errors import ConfigError
from jaxformer.files import local_path
from jaxformer.reprs import as_html, brief
from jaxformer.tasks import own_files
from jaxformer.training.config import AdamConfig, MuonConfig, TrainConfig

FREE_SETTINGS = frozenset(
    "dropout embedding_dropout attention_dropout activation_dropout state_dropout remat compute_dtype initialization "
    "vocab_size source_vocab_size target_vocab_size num_classes".split()
)
"""The model settings that may differ from those of the run that training starts from."""


@dataclasses.dataclass(frozen=True)
class LowRank:
    """Low-rank adapters of matrices (LoRA, Hu et al. 2022)."""

    kind: ClassVar[str] = "lora"

    rank: int = 8
    """The rank of the adapters."""
    targets: str = "*/attention/*"
    """Comma-separated patterns of the names of matrices that get adapters."""
    alpha: float = 16.0
    """The product of an adapter's two matrices is scaled by alpha / rank."""

    __repr__ = brief

    def __post_init__(self) -> None:
        at_least(1, self, "rank")
        if not self.alpha > 0:
            raise ConfigError(f"alpha must be more than 0, got {self.alpha}")
        if not self.target_patterns:
            raise ConfigError(f"targets names no matrix, got {self.targets!r}")

    @property
    def target_patterns(self) -> tuple[str, ...]:
        """The patterns of `targets`."""
        return words(self.targets)


@dataclasses.dataclass(frozen=True)
class TuneConfig:
    """The parameters to train: all, some, or adapters."""

    frozen: str = ""
    """Comma-separated patterns of the names of parameters to freeze, such as "encoder/*"."""
    adapters: LowRank | None = None
    """Adapters of matrices, which are trained, too. They freeze nothing: see `frozen`."""

    __repr__ = brief

    def __post_init__(self) -> None:
        check_choices(self)
        if self.frozen and not self.frozen_patterns:
            raise ConfigError(f"frozen names no parameter, got {self.frozen!r}")

    @property
    def frozen_patterns(self) -> tuple[str, ...]:
        """The patterns of `frozen`."""
        return words(self.frozen)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFolders:
    """The folders of a task's data; its `DataConfig` adds the rest."""

    directory: str = dataclasses.field(default="", metadata=PLACE)
    """The folder for relative paths; by default the working directory, then the environment variable JAXFORMER_DATA."""
    cache: str = dataclasses.field(default="", metadata=PLACE)
    """The folder for tokenized texts and decoded images, named by hash; by default `data` in the user's cache
    (JAXFORMER_CACHE)."""

    _repr_html_ = as_html

    def __post_init__(self) -> None:
        local_path(self.cache)


def check_length(name: str, length: int, limit: int | None) -> None:
    """Checks that the positions of a model are enough for the longest texts of its training."""
    if limit is not None and length > limit:
        raise ConfigError(f"{name} is {length}, but model.max_positions is {limit}")


def check_equal(run: str, what: str, there: Mapping[str, object], here: Mapping[str, object]) -> None:
    """Checks that settings, by their dotted names, are those of the run that training starts from."""
    different = [name for name, value in there.items() if here.get(name) != value]
    if different:
        old = {name: _as_option(there[name]) for name in different}
        new = {name: _as_option(here[name]) for name in different if name in here}
        words = ", ".join(f"{name} is {old[name]} in that run and {new[name]} in these settings" for name in new)
        options = " ".join(f"--{name} {value}" for name, value in old.items())
        raise ConfigError(f"init_from {run} has another {what}: {words}; add {options}")


def _as_option(value: object) -> str:
    if value is None:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def words(text: str) -> tuple[str, ...]:
    """Returns the comma-separated words of a setting."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def split_classes(text: str) -> tuple[str, ...]:
    """Returns the comma-separated names of classes in a setting, normalized (NFC) as labels are."""
    return words(unicodedata.normalize("NFC", text))


def check_pair(columns: tuple[int, ...]) -> None:
    """Checks that the columns of a table are two."""
    if len(columns) != 2 or min(columns) < 0 or columns[0] == columns[1]:
        raise ConfigError(f"columns must be two different numbers from 0, got {columns}")


def check_classes(setting: str) -> None:
    """Checks the setting `classes`."""
    names = split_classes(setting)
    if len(names) != len(set(names)) or len(names) == 1:
        raise ConfigError(f"classes must be two or more different names, got {setting!r}")


MOST_CANDIDATES = 65_536
"""The maximum number of candidates for minimum Bayes risk, which compares all pairs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Greedy:
    """The most probable token at every step."""

    kind: ClassVar[str] = "greedy"
    renormalize: bool = False
    """Renormalize probabilities after rules have removed tokens, like Hugging Face's ``renormalize_logits``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beam:
    """The most probable texts that a beam finds."""

    kind: ClassVar[str] = "beam"
    beam_size: int = 4
    """The number of live hypotheses per input; 1 is greedy search."""
    length_penalty: float = 1.0
    """The exponent of the length by which a hypothesis's log-probability is divided; 0 for no length normalization."""
    normalization: Literal["tokens", "words", "gnmt"] = "tokens"
    """The length used in normalization: all tokens, the tokens before the end token, or (5 + tokens) / 6 as in Wu et
    al. 2016."""
    coverage_penalty: float = 0.0
    """The weight of the coverage penalty for input positions that get little attention (Wu et al. 2016)."""
    stopping: Literal["first", "now", "limit"] = "first"
    """The rule that stops the search for an input; docs/search.md explains the three."""
    patience: float = 1.0
    """The search stops after patience * beam_size finished hypotheses; with stopping "first"."""
    renormalize: bool = False
    """Renormalize probabilities after rules have removed tokens, like Hugging Face's ``renormalize_logits``."""

    def __post_init__(self) -> None:
        at_least(1, self, "beam_size")
        at_least(0, self, "length_penalty", "coverage_penalty")
        if not self.patience > 0:
            raise ValueError(f"patience must be positive, got {self.patience}")
        if self.patience != 1 and self.stopping != "first":
            raise ValueError(f"patience {self.patience} is for stopping first, got stopping {self.stopping}")
        if self.normalization != "tokens" and not self.length_penalty:
            raise ValueError(f"normalization {self.normalization} has no effect: length_penalty is 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Texts drawn from the model's distribution, which is renormalized after rules have removed tokens."""

    kind: ClassVar[str] = "sample"
    temperature: float = 1.0
    """Logits are divided by this number before sampling."""
    top_k: int = 0
    """Sample from this number of most probable tokens; 0 for all."""
    top_p: float = 1.0
    """Sample from the smallest set of most probable tokens with at least this total probability (nucleus sampling)."""
    min_p: float = 0.0
    """Sample from the tokens whose probability is at least this fraction of the highest one (min-p sampling)."""
    seed: int = 0
    """The seed of sampling; samples are a function of the seed, the index of the text and the token's position."""

    def __post_init__(self) -> None:
        at_least(0, self, "top_k", "min_p", "seed")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}; or take search greedy")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}")
        if self.seed >= 2**32:
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinimumRisk:
    """The candidate that is most similar to the others (minimum Bayes risk)."""

    kind: ClassVar[str] = "minimum_risk"
    num_candidates: int = 32
    """The number of candidates for each input."""
    utility: Literal["chrf", "bleu"] = "chrf"
    """The similarity (utility) of candidates."""
    candidates: Sample | Beam = Sample()
    """The search for the candidates: samples, or the best of a beam."""

    def __post_init__(self) -> None:
        check_choices(self)
        if not 2 <= self.num_candidates <= MOST_CANDIDATES:
            raise ValueError(f"num_candidates must be from 2 to {MOST_CANDIDATES:,}, got {self.num_candidates}")
        if isinstance(self.candidates, Beam) and self.num_candidates > self.candidates.beam_size:
            raise ValueError(
                f"num_candidates must be at most candidates.beam_size, {self.candidates.beam_size}, got "
                f"{self.num_candidates}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """The settings of text generation that every search has."""

    without_search: ClassVar[Mapping[str, tuple[str, ...]]] = {"score": ("average", "batch_size")}
    """The commands that do not generate text, each with the settings that it uses."""
    of_training: ClassVar[tuple[str, ...]] = ()
    """The settings that only training uses."""
    of_scores: ClassVar[tuple[str, ...]] = ()
    """The settings that only training and ``evaluate`` use."""

    search: Beam | Greedy | Sample | MinimumRisk = Beam()
    """The rule by which text is chosen: a beam, greedy, sample, or minimum_risk."""
    repetition_penalty: float = 1.0
    """The logits of tokens that occurred before, in a prompt too, are divided by this number, or multiplied by it if
    they are negative (CTRL); 1 for no penalty. Beams change log-probabilities instead, as in Hugging Face."""
    no_repeat_ngram_size: int = 0
    """The length, in tokens, of n-grams that must not occur twice; 0 for no limit."""
    forbid: str = ""
    """Comma-separated words or phrases that are never generated; case-sensitive."""
    shortlist: str = ""
    """A file of words; only the subwords of these words are generated (a shortlist)."""
    average: Literal["probability", "log"] = "probability"
    """The average that an ensemble takes: of its models' probabilities, or of their log-probabilities."""
    cache_dtype: Literal["model", "bfloat16"] = "model"
    """The dtype of the key-value cache: the dtype of activations, or bfloat16, half the size of float32."""

    _repr_html_ = as_html

    def __post_init__(self) -> None:
        check_choices(self)
        at_least(0, self, "no_repeat_ngram_size")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty must be above 0 and finite, got {self.repetition_penalty}")
        if self.forbid and not self.forbidden_phrases:
            raise ValueError(f"forbid names no word or phrase, got {self.forbid!r}")

    @property
    def forbidden_phrases(self) -> tuple[str, ...]:
        """The words and phrases of `forbid`."""
        return words(self.forbid)

    @property
    def finder(self) -> Beam | Sample:
        """The search that finds texts: that of the candidates, for minimum Bayes risk. Greedy is a beam of one."""
        search = self.search
        if isinstance(search, MinimumRisk):
            search = search.candidates
        if isinstance(search, Greedy):
            return Beam(beam_size=1, renormalize=search.renormalize)
        return search

    @property
    def coverage_penalty(self) -> float:
        """The weight of the coverage penalty of a beam; 0 in sampling."""
        return self.finder.coverage_penalty if isinstance(self.finder, Beam) else 0.0

    def num_texts(self, n_best: int) -> int:
        """Returns the number of texts to find for each input, so that there are `n_best`.

        Raises:
          ConfigError: `n_best` is below 1, or above the number that the search finds.
        """
        number, limit = n_best, ""
        if isinstance(self.search, MinimumRisk):
            number, limit = self.search.num_candidates, f" and at most num_candidates = {self.search.num_candidates}"
        elif isinstance(self.finder, Beam):
            number, limit = self.finder.beam_size, f" and at most beam_size = {self.finder.beam_size}"
        if not 1 <= n_best <= number:
            raise ConfigError(f"n_best must be at least 1{limit}, got {n_best}")
        return self.finder.beam_size if isinstance(self.finder, Beam) else number


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(GenerationConfig):
    """The search for output text given an input."""

    forced_end: Literal["scored", "free", "never"] = "scored"
    """The log-probability of an end token that is forced at the length limit: the model's (0 in sampling, where it is
    not drawn), or 0; or none is forced."""
    batch_size: int = 64
    """The number of inputs per batch."""
    max_length: int = 0
    """The maximum number of output tokens, end token included; 0 for no such limit."""
    min_length: int = 0
    """The minimum number of output tokens, end token not included."""

    __repr__ = brief

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "batch_size")
        at_least(0, self, "max_length", "min_length")
        if self.max_length and self.min_length >= self.max_length:
            raise ValueError("min_length must be below max_length")

    @property
    def has_minimum(self) -> bool:
        """True if there is a minimum number of tokens."""
        return self.min_length > 0

    @property
    def greedy(self) -> Self:
        """The same search made greedy."""
        finder = self.finder
        return dataclasses.replace(self, search=Greedy(renormalize=isinstance(finder, Beam) and finder.renormalize))

    @property
    def static(self) -> Self:
        """The search that finds texts, without the settings that do not affect the compiled program."""
        finder = self.finder
        if isinstance(finder, Sample):
            finder = dataclasses.replace(finder, seed=0)
        return dataclasses.replace(self, search=finder, batch_size=1, forbid="", shortlist="")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The settings that every task has; a task adds `model`, `data` and, if its predictor searches, `decode`."""

    task: ClassVar[str] = ""
    """The name of the task, as in `registry.TASKS`."""

    name: str = "run"
    """The run's name in logs and plots."""
    seed: int = 0
    """The seed of the initial parameters, dropout and the order of the data."""
    init_from: str = ""
    """Start from the parameters of another run, RUN or RUN:CHECKPOINT, and use its tokenizer if it has one."""
    init_positions: Literal["extend", "copy", "interpolate"] = "extend"
    """The start of a table of learned positions if `model.max_positions` differs from that of the run in `init_from`:
    extend draws new rows, so that short inputs give the same results; copy repeats the table; interpolate stretches it,
    or compresses it. With extend and copy, a shorter table has the first rows. The positions of image patches are
    always interpolated."""
    mesh: str = dataclasses.field(default="", metadata=PLACE)
    """Axes of the device mesh, such as "data=8,tensor=4"; by default all devices are `data`."""
    attention: str = dataclasses.field(default="", metadata=LATER)
    """FILE.py:NAME, an attention of your own in place of the library's: a function, a module or `modules.per_layer`. A
    run remembers the file and its hash."""
    optimizer: AdamConfig | MuonConfig = AdamConfig()
    """Adam or Muon, and the schedule."""
    tune: TuneConfig = TuneConfig()
    """The parameters to train."""
    train: TrainConfig = TrainConfig()
    """Steps, validation, checkpoints."""

    __repr__ = brief
    _repr_html_ = as_html

    def with_settings_of(self, source: TaskConfig) -> Self:
        """Returns these settings, with the ones that must agree taken from `source`, the run that `init_from` names."""
        del source
        return self

    def check(self) -> None:
        """Checks that settings are compatible with each other, before anything is read."""

    def check_resumed(self, saved: Self, done: int) -> None:
        """Checks that a run with the configuration `saved` can go on with this one after `done` steps."""

    def check_init(self, source: TaskConfig) -> None:
        """Checks that settings are compatible with the run that `init_from` names, before anything is read."""

    def __post_init__(self) -> None:
        check_numbers(self)
        check_saved(self)
        at_least(0, self, "seed")
        if self.attention:
            own_files.parse(self.attention)
        if self.init_positions != TaskConfig.init_positions and not self.init_from:
            raise ConfigError(f"init_positions {self.init_positions} has no effect without init_from")
        if self.seed >= 2**32:  # JAX would wrap it to a smaller seed
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")
