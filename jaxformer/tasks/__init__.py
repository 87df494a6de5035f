"""Tasks, and one runner that trains, averages, loads and scores all of them.

`base` defines a task, `registry` has the tasks by name, `runner` and `planner` do the work that all tasks share.
"""
