"""Kernels of other projects: `jax.nn` with cuDNN and functions of its signature (tokamax), splash attention on TPU.

Each file enforces the contract of empty rows and inert keys, which the kernels lack, and refuses requests that a kernel
cannot compute.
"""
