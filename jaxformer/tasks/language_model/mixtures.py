"""Language models of several texts: the texts by name, and their windows."""

from __future__ import annotations

import dataclasses
import pathlib

from jaxformer.caches import data_cache
from jaxformer.data.mixture import MixedWindows, keyed
from jaxformer.data.text import Texts
from jaxformer.data.weights import make_phases
from jaxformer.data.windows import OrderedWindows, RandomWindows, TokenStream, prepare_text
from jaxformer.digests import short_digest
from jaxformer.errors import DataError
from jaxformer.tasks.base import Data, InTurn
from jaxformer.tasks.language_model.config import LanguageModelingConfig
from jaxformer.tasks.text import TextCorpus, make_run_tokenizer


@dataclasses.dataclass(frozen=True)
class TextMixture:
    """Several texts by name."""

    parts: dict[str, TextCorpus]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and the validation data of all texts."""
        found = [(name, part.fingerprints) for name, part in self.parts.items()]
        return {key: short_digest(f"{name} {each[key]}\n" for name, each in found) for key in ("train", "validation")}


def only(config: LanguageModelingConfig, name: str) -> LanguageModelingConfig:
    """Returns the configuration of one of several texts alone."""
    part = config.data.corpora[name]
    data = dataclasses.replace(config.data, corpora={}, temperature=1.0, text=part.text, validation=part.validation)
    return dataclasses.replace(config, data=data)


def prepare_mixture(
    config: LanguageModelingConfig, corpus: TextMixture, run: pathlib.Path
) -> Data[MixedWindows | OrderedWindows]:
    """Tokenizes several texts with one vocabulary, and cuts each into windows."""
    data, cache = config.data, data_cache(config.data.cache)
    whole = Texts(tuple(part.train for part in corpus.parts.values()))
    tokenizer = make_run_tokenizer(run, whole, cache, kind=data.tokenizer, vocab_size=data.vocab_size)
    windows, held_out, report = list[RandomWindows](), dict[str, OrderedWindows](), list[str]()
    for number, (name, part) in enumerate(corpus.parts.items()):
        stream, rest = (prepare_text(one, tokenizer, cache) for one in (part.train, part.validation))
        seed = int(keyed(config.seed, number)[0])
        try:
            windows.append(RandomWindows(stream, data.length, data.batch_size, seed))
            held_out[name] = OrderedWindows(rest, data.length, data.batch_size)
        except DataError as error:
            raise DataError(f"data.corpora.{name}: {error}") from error
        report.append(f"{name}: {part.train.report()}, {counted(stream)}; validation: {counted(rest)}")
    sizes = [one.stream.num_labels for one in windows]
    phases = make_phases(data.corpora, sizes=sizes, temperature=data.temperature)
    train = MixedWindows(tuple(windows), phases, config.seed)
    shares = ", ".join(f"{name} {share:.1%}" for name, share in zip(corpus.parts, phases.shares[0], strict=True))
    report.append(
        f"a vocabulary of {tokenizer.vocab_size:,} tokens; batches of {data.batch_size} windows of {data.length} "
        f"tokens, at first {shares}; {train.steps_per_epoch:,} of them are as long as the texts"
    )
    return Data(train, InTurn(held_out), tokenizer, report, [data.length])


def counted(stream: TokenStream) -> str:
    """Returns the number of tokens of a text and the number of unknown ones, which other tokenizers may produce."""
    unknown = stream.num_unknown
    return f"{stream.num_labels:,} tokens" + (f", {unknown:,} of them unknown" if unknown else "")
