"""Models small enough to enumerate, and the numpy references of their searches."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer import decoding

PAD, BEGIN, END, VOCAB, LENGTH = 0, 1, 2, 6, 4


def plain(step):
    """A step over a bare pytree, as a step over a `TreeState`."""

    def wrapped(tokens, state):
        scores, tree = step(tokens, state.tree)
        return scores, decoding.TreeState(tree)

    return wrapped


def markov(seed, *, steps=3, batch=2, shift=0.0):
    """A model whose logits depend on the step, the last token and the sentence; `shift` is added to those of END."""
    table = np.random.default_rng(seed).normal(size=(batch, steps, VOCAB, VOCAB)).astype(np.float32) * 1.5
    table[..., END] += np.float32(shift)

    @plain
    def step(tokens, state):
        logits = jnp.asarray(table)[state["sentence"], jnp.minimum(state["step"], steps - 1), tokens]
        return logits, {**state, "step": state["step"] + 1}

    return step, table


def start(beam_size, batch=2, sentences=None):
    """The state of `markov` before the first token."""
    sentences = np.arange(batch) if sentences is None else np.asarray(sentences)
    sentence = np.broadcast_to(sentences.astype(np.int32)[:, None], (sentences.shape[0], beam_size))
    return decoding.TreeState(jax.device_put({"sentence": sentence, "step": np.zeros_like(sentence)}))


def log_softmax(table):
    table = table.astype(np.float64)
    return table - np.log(np.exp(table).sum(-1, keepdims=True))


def total_log_prob(table, sentence, tokens, before=BEGIN):
    """The log-probability of `tokens` after `before` at step 0, by direct summation."""
    log_probs = log_softmax(table)
    pairs = enumerate(zip((before, *tokens), tokens, strict=False))
    return sum(log_probs[sentence, min(i, table.shape[1] - 1), b, t] for i, (b, t) in pairs)


def as_tuples(hypotheses, sentence):
    """The tokens of each hypothesis of a sentence, without padding."""
    tokens, lengths = np.asarray(hypotheses.tokens)[sentence], np.asarray(hypotheses.lengths)[sentence]
    return [tuple(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)]
