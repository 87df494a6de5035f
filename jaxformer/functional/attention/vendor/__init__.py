"""Kernels of other projects, one file for each: `jax.nn` with cuDNN, splash attention on TPU, tokamax.

Each file enforces the contract of empty rows and inert keys, which the kernels lack, and refuses requests that a kernel
cannot compute.
"""

from jaxformer.functional.attention.vendor import jax_nn as jax_nn
from jaxformer.functional.attention.vendor import splash as splash
from jaxformer.functional.attention.vendor import tokamax as tokamax
