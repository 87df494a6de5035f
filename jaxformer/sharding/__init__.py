"""Placement: what lies where on a mesh of devices."""

from jaxformer.sharding.attention import ring_attention as ring_attention
