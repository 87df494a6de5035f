"""Tasks, and one runner that trains, averages, loads and scores all of them.

`base` defines a task, `registry` lists the tasks by name, `runner` and `planner` do the work that all tasks share.
"""

from jaxformer import lazy

_MODULES = "base config planner pretrained registry rundir runner training_setup"

__getattr__ = lazy.members(__name__, dict.fromkeys(_MODULES.split(), ""))
