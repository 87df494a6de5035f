"""A beam search as text shows every step of a sentence."""

import math

import jax.numpy as jnp

from jaxformer import decoding
from jaxformer.inspection import beams
from tests.decoding.toys import BEGIN, END, markov, start


def test_every_step_of_one_sentence_is_written():
    step, _ = markov(3)
    trace = decoding.BeamTrace()
    limits = decoding.Limits(max_length=4, max_lengths=jnp.array([2, 4]), bos=BEGIN, eos=END)
    decoding.beam_search(step, start(2), limits, beam_size=2, trace=trace)
    for sentence, count in ((0, 2), (1, 3)):  # the second has two finished hypotheses then
        text = beams.as_text(trace, "pb$xyz".__getitem__, sentence=sentence)
        steps = [part.splitlines() for part in text.split("step ")[1:]]
        assert [lines[0] for lines in steps] == [str(number) for number in range(1, count + 1)]
        for lines, considered in zip(steps, trace.steps, strict=False):
            for line, one in zip(lines[1:], considered[sentence], strict=True):
                probability, log_prob, score, fate, *words = line.split()
                assert abs(float(probability) - math.exp(one.log_prob)) < 1e-4
                assert (float(log_prob), float(score)) == (round(one.log_prob, 4), round(one.score, 4))
                assert (fate, words) == (one.fate, ["pb$xyz"[token] for token in one.tokens])


def test_the_tree_leads_from_every_hypothesis_to_the_one_it_continues():
    step, _ = markov(3)
    trace = decoding.BeamTrace()
    limits = decoding.Limits(max_length=4, max_lengths=jnp.array([2, 4]), bos=BEGIN, eos=END)
    decoding.beam_search(step, start(2), limits, beam_size=2, trace=trace)
    tree = beams.tree(trace, "pb$xyz".__getitem__, sentence=1)
    assert [len(nodes) for nodes in tree] == [len(considered[1]) for considered in trace.steps[: len(tree)]]
    for number, nodes in enumerate(tree):
        for node, one in zip(nodes, trace.steps[number][1], strict=True):
            words, place = [], number
            while node is not None:
                words.insert(0, node.piece)
                place -= 1
                node = tree[place][node.parent] if node.parent >= 0 else None
            assert words == ["pb$xyz"[token] for token in one.tokens]
            assert place == -1
