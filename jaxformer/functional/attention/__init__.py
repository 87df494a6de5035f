"""Attention. Read the files in this order.

=====================  ================================================================================
reference              `attention_head`, the definition for one head of one example, lifted by ``jax.vmap``
base                   `Request`, one checked call, and what implementations share: softmax, `soft_cap`, sinks
api                    `attention`: makes the request, chooses an implementation, runs it; `explain_attention`: why
blockwise              attention tile by tile, which `tiles` describes; `ring` runs it on a mesh
vendor                 the kernels of `jax.nn`, cuDNN and tokamax, and of TPUs (splash)
weights                weights, entropies and alignments, for inspection, also of your own attention function
additive, linear       other kinds of attention, which are not implementations of `attention`
=====================  ================================================================================

Implementations import `base` and not each other.
"""
