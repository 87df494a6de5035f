"""Traces of steps."""

import gzip
import json
import re

import jax
import pytest

from jaxformer import training
from jaxformer.errors import ConfigError
from jaxformer.training.profile import profiled_steps
from tests.training.small import OPTIMIZER, loss, new_state, settings, stream


def test_a_trace_has_the_steps_that_were_asked_for(tmp_path):
    """Perfetto and XProf open these files, which know the blocks of the model; a training that ends first ends it."""

    def named(params, batch, key):
        with jax.named_scope("a_block"):
            total, *rest = loss(params, batch, key)
            return 3.0 * total, *rest  # a program of its own: the compilation cache would give one without the name

    step, outputs = training.make_step(named, OPTIMIZER), training.Outputs(profile=training.Profile(tmp_path, 3, 4))
    training.fit(step, new_state(), stream, config=settings(6), outputs=outputs)
    (file,) = tmp_path.rglob("perfetto_trace.json.gz")
    (xplane,) = tmp_path.rglob("*.xplane.pb")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    steps = {event["args"]["step_num"] for event in events if "step_num" in event.get("args", {})}
    assert steps == {"3", "4"}
    assert re.search(rb"jit\(step\)/[^ ]*a_block", xplane.read_bytes())


@pytest.mark.parametrize("text", ["0", "4:3", "a", "1:", "-3", "", "2:9", "21:22", "99:101"])
def test_steps_that_cannot_be_traced(text):
    with pytest.raises(ConfigError, match="the steps to profile must"):
        profiled_steps(text, start=5, steps=20)
