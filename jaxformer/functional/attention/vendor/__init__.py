"""What others have written, one file a vendor: `jax.nn` with cuDNN, splash attention on TPU, tokamax.

Each file adds what a kernel lacks, the contract of empty rows and inert keys, and says what the kernel cannot do.
"""

from jaxformer.functional.attention.vendor import jax_nn as jax_nn
from jaxformer.functional.attention.vendor import splash as splash
from jaxformer.functional.attention.vendor import tokamax as tokamax
