"""Tasks, and the one runner that trains, averages, loads, scores and plans every one of them.

`base` says what a task is, `registry` knows their names, `runner` does what is the same for every task.
"""
