"""What is measured, one file a side; each runs as a process of its own under `worker.py`."""
