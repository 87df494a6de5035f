"""Verbs take nouns that exist."""

from jaxformer.demo import phrases, verbs


def test_every_verb_has_subjects_and_objects():
    assert all(phrases.nouns_of(verb.object) and phrases.nouns_of(verb.subject) for verb in verbs.TRANSITIVE)
