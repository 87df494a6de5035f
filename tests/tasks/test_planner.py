"""Plans: the batch of the plan, and remedies that work."""

import dataclasses

import jax
import pytest

from jaxformer import sharding
from jaxformer.cli import plan
from jaxformer.cli.arguments import override
from jaxformer.errors import ConfigError
from jaxformer.models import choices
from jaxformer.planning import graph, topology
from jaxformer.tasks import planner, registry
from jaxformer.tasks.config import TuneConfig
from jaxformer.tasks.planner import workload
from jaxformer.training.config import TrainConfig
from tests.planning.small import tight
from tests.tasks.plans import CONFIG, MODEL, budget


@pytest.fixture
def here(monkeypatch):
    """Eight CPU devices are a slice."""
    monkeypatch.setattr(topology, "devices", lambda name, *, slices: jax.devices())


def test_the_longest_batch(here):
    """16 rows of 1000 / 48, in multiples of 8; padded for 4 devices and 3 parts."""
    step = workload(CONFIG, topology.mesh("v5e:2x4", CONFIG.mesh))
    assert step.costs.batch == (24, 48, 48)
    assert step.costs.description == "24 x 48 source tokens and 24 x 48 target tokens"
    assert step.costs.tokens == 24 * 48


def test_recomputed_operations_of_a_plan():
    """One device unrolls a few layers, which recomputes nothing; a mesh or a deep stack does not unroll."""
    deep = dataclasses.replace(CONFIG, mesh="", model=dataclasses.replace(MODEL, num_decoder_layers=5))
    found = []
    for config, number in ((CONFIG, 1), (CONFIG, 8), (deep, 1)):
        setup = planner.planned_setup(config, sharding.mesh("data=*", jax.devices()[:number]))
        costs = setup.costs(setup.abstract_batch(24, 48))
        found.append(costs.computed_flops - costs.flops)
    pairs = 4 * MODEL.d_model * 24 * 48**2
    layers = MODEL.num_encoder_layers + 2 * MODEL.num_decoder_layers
    assert found == [0, layers * pairs, 2 * 5 * pairs]


def test_a_plan_tells_that_parameters_are_frozen():
    """The step then computes fewer products than the costs count; reading the graph shows how many."""
    found = []
    for frozen in ("", "encoder/*"):
        config = dataclasses.replace(CONFIG, mesh="", tune=TuneConfig(frozen=frozen))
        setup = planner.planned_setup(config, sharding.mesh("data=1", jax.devices()[:1]))
        batch = setup.abstract_batch(24, 48)
        costs = setup.costs(batch)
        assert costs.has_frozen == bool(frozen)
        found.append((costs.flops, graph.products(setup.step(), setup.abstract_state(), batch).flops))
    (counted, full), (same, less) = found
    assert counted == same
    kernels = MODEL.num_encoder_layers * (4 * MODEL.d_model**2 + 2 * MODEL.d_model * MODEL.d_ff)
    assert full - less >= 2 * 24 * 48 * kernels  # at least the gradient of the encoder's kernels


def test_settings_that_training_refuses(here):
    """Contradicting settings, and a batch that the model cannot take, give an error for users."""
    captioning = registry.configure("captioning", decode={"validation_images": 0})
    with pytest.raises(ConfigError, match=r"decode\.validation_images is 0"):
        planner.plan(captioning, "v5e:2x4")
    learned = dataclasses.replace(
        CONFIG, model=dataclasses.replace(MODEL, positions=choices.Learned(), max_positions=48)
    )
    with pytest.raises(ConfigError, match="a batch of 24 x 49: a sequence of length 49 has no learned position"):
        planner.plan(learned, "v5e:2x4", shape=(24, 49))


@pytest.mark.parametrize("shape", [None, (90, 48)])
@pytest.mark.full
def test_remedies_have_the_promised_effect(here, shape):
    """Each gives as many rows per device and part as its bytes are for."""
    config, found, mesh = budget(96 * 48), tight(2, 4, 40), topology.mesh("v5e:2x4", CONFIG.mesh)
    for said in planner.remedies(config, found, shape=shape)[1:3]:
        option, value = said.partition(":")[0].split()
        followed, given = config, shape
        if option == "--batch":
            given = plan._shape(value)
        else:
            followed = override(config, [option, value])
        assert (option == "--batch") == (shape is not None) or option == "--train.num_microbatches"
        rows = workload(followed, mesh, shape=given).costs.batch[0]
        assert rows == 4 * 2 * followed.train.num_microbatches
        assert "about 14.5 GiB" in said


def test_remedies_without_an_effect_are_not_named():
    """Nothing is split below a row, and training accepts the suggested batch."""
    config = budget(12 * 48, remat=True)
    (only,) = planner.remedies(config, tight(2, 1, 18, rows=12))  # a row a device and part already
    assert only.startswith("fsdp=8 instead of 4")
    (only,) = planner.remedies(budget(96 * 48, remat=True), tight(2, 1, 200))  # a row does not fit, even alone
    assert only == "smaller rows, such as shorter ones: one alone takes about 24.6 GiB beside the state"
    one = dataclasses.replace(budget(8 * 48, remat=True), train=TrainConfig())
    (only,) = planner.remedies(one, tight(2, 1, 20, rows=8))  # training would refuse 4 rows on 4 devices
    assert only.startswith("--train.num_microbatches 2: the batch in 2 parts, about 11.5 GiB")
    batch = planner.remedies(one, tight(2, 1, 20, rows=8), shape=(8, 48))
    assert batch[1].startswith("--batch 4x48: a smaller batch, about 11.5 GiB")


def test_remedies_of_a_state_that_is_too_large():
    """A smaller batch would not help."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, remat=True))
    (only,) = planner.remedies(config, tight(8, 16, 40))
    assert only == "fsdp=8 instead of 4 in the mesh: half of the state's 24.0 GiB a device"
