"""A part of the built-in corpus, made once."""

import pytest

from jaxformer import demo


@pytest.fixture(scope="session")
def parts():
    return demo.splits(num_train=24_000)


@pytest.fixture(scope="session")
def corpus(parts):
    return (*parts.train, *parts.validation, *parts.seen, *parts.unseen)
