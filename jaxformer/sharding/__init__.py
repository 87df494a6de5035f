"""Placement on a mesh of devices.

`mesh` makes a mesh from a string. `shardings_like` and `state_shardings` return the shardings with which parameters and
training state are created (``jax.jit(..., out_shardings=)``); `with_axis_rules`, inside ``jax.jit``, places
activations. `Placement` holds a mesh and a rule table, and applies all of these to a training run.
"""

from jaxformer import lazy
from jaxformer.sharding.attention import ring_attention as ring_attention
from jaxformer.sharding.attention import sharded_attention as sharded_attention
from jaxformer.sharding.mesh import AXES as AXES
from jaxformer.sharding.mesh import mesh as mesh
from jaxformer.sharding.placement import Placement as Placement
from jaxformer.sharding.rules import RULES as RULES
from jaxformer.sharding.rules import Rules as Rules
from jaxformer.sharding.rules import shardings_like as shardings_like
from jaxformer.sharding.rules import spec as spec
from jaxformer.sharding.rules import state_shardings as state_shardings
from jaxformer.sharding.rules import with_axis_rules as with_axis_rules
from jaxformer.sharding.tables import linear_loss as linear_loss
from jaxformer.sharding.tables import lookup as lookup
from jaxformer.sharding.tables import table_copies as table_copies
from jaxformer.sharding.tables import with_copies as with_copies

lazy.list_names(__name__)
