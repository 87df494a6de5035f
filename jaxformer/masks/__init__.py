"""Attention masks: a small algebra of objects that define which keys a query may attend to.

True means *attend*. A mask is not an array: a kernel asks it for one ``[t, s]`` tile of the ``[T, S]`` square at a
time. A kernel skips the blocks that `Mask.key_range` rules out at trace time and those that `Mask.live_ranges` rules
out at run time::

    mask = causal() & padding(tokens != pad)      # a decoder over a padded batch
    mask = causal() | prefix(lengths)             # a prefix language model
    mask.dense(T, S)                              # Bool [b, n, T, S], b in {1, B}, n in {1, N}

**The empty-row contract** holds for every attention implementation in this library and in every dtype:

(a) a query that may attend to no key gets output 0, weights 0 and gradient 0;
(b) a key that no query of its example may attend to is inert: for any contents of its key and value, including NaN and
    infinity, every output and every other gradient is unchanged bit for bit, and its own gradient is 0;
(c) at any masked pair with finite contents the weight is exactly 0.

Of (a), ONNX's ``Attention`` and PyTorch's ``scaled_dot_product_attention`` now promise the output, too.

The contract does not promise that a NaN that *some* query may see stays out of the rows that may not see it.

The functions below raise `ValueError` for a wrong rank, dtype or value; the message has the actual and expected ones.
"""

from jaxformer import lazy
from jaxformer.masks.algebra import UNBOUNDED as UNBOUNDED
from jaxformer.masks.algebra import And as And
from jaxformer.masks.algebra import Dense as Dense
from jaxformer.masks.algebra import Mask as Mask
from jaxformer.masks.algebra import Not as Not
from jaxformer.masks.algebra import Or as Or
from jaxformer.masks.algebra import as_mask as as_mask
from jaxformer.masks.algebra import dense as dense
from jaxformer.masks.algebra import from_binary as from_binary
from jaxformer.masks.algebra import from_torch as from_torch
from jaxformer.masks.kinds import Band as Band
from jaxformer.masks.kinds import BlockSparse as BlockSparse
from jaxformer.masks.kinds import CausalAt as CausalAt
from jaxformer.masks.kinds import Lengths as Lengths
from jaxformer.masks.kinds import Padding as Padding
from jaxformer.masks.kinds import Prefix as Prefix
from jaxformer.masks.kinds import Segments as Segments
from jaxformer.masks.kinds import Stored as Stored
from jaxformer.masks.kinds import block_sparse as block_sparse
from jaxformer.masks.kinds import causal as causal
from jaxformer.masks.kinds import lengths as lengths
from jaxformer.masks.kinds import padding as padding
from jaxformer.masks.kinds import prefix as prefix
from jaxformer.masks.kinds import segments as segments
from jaxformer.masks.kinds import stored as stored
from jaxformer.masks.kinds import window as window

lazy.list_names(__name__)
