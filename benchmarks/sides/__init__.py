"""The sides of the benchmarks, one file each; `worker.py` runs each in its own process."""
