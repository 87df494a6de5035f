"""Tasks, and what trains, averages, loads and scores all of them.

`base` defines a task, `registry` lists the tasks by name; `runner`, `restore` and `planner` do the work that all share.
"""

from jaxformer import lazy

_MODULES = "base config planner pretrained registry restore rundir runner training_setup trim"

__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
