"""Tasks, and one runner that trains, averages, loads and scores all of them.

`base` defines a task, `registry` lists the tasks by name, `runner` and `planner` do the work that all tasks share.
"""

from jaxformer import lazy

__getattr__ = lazy.members(__name__, dict.fromkeys("base config planner registry rundir runner trainer".split(), ""))
