"""Translation word for word: the grammar's words without its rules."""

from __future__ import annotations

import re

from jaxformer.demo import ambiguous, lexicon, verbs
from jaxformer.demo.phrases import POSSESSIVES
from jaxformer.demo.statements import COMPARATIVES


def dictionary_baseline(english: str) -> str:
    """Translates a sentence word for word through a dictionary of base forms: translation without grammar."""
    words: list[str] = re.findall(r"\w+|[^\w\s]", english)
    text = " ".join(WORDS.get(word.lower(), word) for word in words)
    text = re.sub(r" ([.,])", r"\1", text)
    return text[:1].upper() + text[1:]


_FUNCTION_WORDS = {
    "the": "le", "a": "un", "an": "un", "some": "des", "any": "de", "this": "ce", "these": "ces", "of": "de", "to": "à",
    "at": "à", "in": "dans", "on": "sur", "and": "et", "but": "mais", "because": "parce que", "not": "pas",
    "never": "jamais", "no": "plus", "longer": "plus", "nothing": "rien", "nobody": "personne", "that": "que",
    "who": "qui", "what": "que", "why": "pourquoi", "when": "quand", "where": "où", "how": "comment",
    "many": "beaucoup", "than": "que", "more": "plus", "i": "je", "we": "nous", "you": "vous", "he": "il", "she": "elle",
    "they": "ils", "it": "il", "me": "moi", "us": "nous", "him": "le", "them": "les", "is": "est", "are": "sont",
    "was": "était", "were": "étaient", "am": "suis", "be": "être", "born": "né", "there": "là", "will": "va", "do": "fait",
    "does": "fait", "did": "fait", "cannot": "peut pas", "can": "peut", "could": "pouvait", "must": "doit",
    "yesterday": "hier", "tomorrow": "demain", "every": "chaque", "day": "jour", "for": "pour", "look": "regarder",
    "looks": "regarde", "looked": "regardé", "looking": "regarder", "bank": "banque", "spring": "printemps",
}  # fmt: skip


def _dictionary() -> dict[str, str]:
    words = dict(_FUNCTION_WORDS)
    for english, (masculine, _, _) in POSSESSIVES.items():
        words[english] = masculine
    for noun in (*lexicon.NOUNS, ambiguous.BANKS, ambiguous.LIGHT):
        words[noun.english], words[noun.english_plural] = noun.french, noun.french_plural
    for adjective in lexicon.ADJECTIVES:
        words[adjective.english.lower()] = adjective.masculine
    for english, comparative in COMPARATIVES.items():
        words[comparative] = "meilleur" if english == "good" else f"plus {words[english]}"
    singles = (verbs.PLAY, verbs.KNOW_PERSON, verbs.MISS_TRAIN, verbs.DRINK, verbs.HAVE)
    for verb in (*verbs.TRANSITIVE, *verbs.DATIVE, *verbs.INTRANSITIVE, *verbs.MOTION, *verbs.MODAL, *singles):
        base, third, past, participle, ing = (form.split()[0] for form in verb.english)
        for form, french in ((base, verb.infinitive), (third, verb.present[1]), (ing, verb.infinitive),
                             (past, verb.participle), (participle, verb.participle)):  # fmt: skip
            words.setdefault(form, french)
    for table in (lexicon.MONTHS, lexicon.NUMBERS):
        words.update({english.lower(): french for english, french in table.items()})
    for english, (french, *_) in (lexicon.MASSES | lexicon.INSTRUMENTS | lexicon.SPORTS).items():
        words[english] = french
    for english, french, *_ in (
        *lexicon.INSTITUTIONS,
        *lexicon.OUTER,
        *lexicon.INNER,
        *lexicon.DOCUMENTS,
        *lexicon.PASSIVES,
    ):
        words.setdefault(english.lower(), french)
    return words


WORDS = _dictionary()
