"""Attention functions of other libraries and of ours, as adapters of `jaxformer.conformance`, if they are installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer import functional, sharding
from jaxformer.conformance import Adapter, LibraryAdapter, NotOfferedError, adapt
from jaxformer.functional.attention import api
from jaxformer.functional.attention.base import make_request
from jaxformer.functional.attention.vendor import splash

Side = Callable[[], Adapter]


def every() -> dict[str, Side]:
    """Returns the functions by name; a library is imported when its function is made."""
    sides: dict[str, Side] = {
        f"jaxformer {name}": functools.partial(_ours, name) for name in ("reference", "blockwise", "xla", "cudnn")
    }
    sides["jaxformer splash, interpreted"] = functools.partial(_ours, "splash")
    sides["jaxformer tokamax"] = functools.partial(_ours, "tokamax")
    sides["jaxformer ring, two devices"] = _ring
    sides["jax.nn.dot_product_attention"] = lambda: adapt(
        jax.nn.dot_product_attention, name="jax.nn:dot_product_attention"
    )
    sides["flax.nnx.dot_product_attention"] = functools.partial(_flax, "flax.nnx")
    sides["flax.linen.dot_product_attention"] = functools.partial(_flax, "flax.linen")
    sides["equinox.nn.MultiheadAttention"] = _equinox
    sides["tokamax.dot_product_attention"] = _tokamax
    for backend in ("math", "flash_attention", "efficient_attention"):
        sides[f"torch scaled_dot_product_attention, {backend}"] = functools.partial(_torch, backend)
    sides["torch.nn.MultiheadAttention"] = _torch_layer
    sides["x_transformers Attend"] = functools.partial(_x_transformers, False)
    sides["x_transformers Attend, flash"] = functools.partial(_x_transformers, True)
    return sides


def packages(name: str) -> Iterator[str]:
    """Yields the packages that a side needs and that are missing here."""
    needs = {"torch": "torch", "x_trans": "x_transformers", "equinox": "equinox", "tokamax": "tokamax"}
    for word, package in needs.items():
        needed = {package, "torch"} if word == "x_trans" else {package}
        if word in name:
            yield from (package for package in sorted(needed) if importlib.util.find_spec(package) is None)


def _ours(name: str) -> Adapter:
    return LibraryAdapter(functools.partial(_attend, name), name=f"jaxformer.functional:attention, {name}")


def _attend(name: str, query: Any, key: Any, value: Any, **options: Any) -> jax.Array:
    """One of our implementations; its refusal is what the kit calls not offered."""
    request = make_request(query, key, value, **options)
    refuse = splash.refuse_anywhere if name == "splash" else api.implementations[name].refuse
    if reason := refuse(request):
        raise NotOfferedError(reason)
    if name == "splash":
        return splash.attention(api.differentiable(request, name), interpret=True)
    return functional.attention(query, key, value, **options, implementation=name)


def _ring() -> Adapter:
    mesh = sharding.mesh("context=2", jax.devices()[:2])
    return LibraryAdapter(sharding.ring_attention(mesh, "context"), name="jaxformer.sharding:ring_attention", bias=None)


def _flax(package: str) -> Adapter:
    attend = importlib.import_module(package).dot_product_attention
    dropout = lambda rate, seed: {"dropout_rng": jax.random.key(seed), "dropout_rate": rate}
    return adapt(attend, name=f"{package}:dot_product_attention", dropout=dropout)


def _equinox() -> Adapter:
    """The layer, with kernels that change nothing."""
    eqx = importlib.import_module("equinox")

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        batch, length, heads, dim = query.shape
        flat = lambda x: x.reshape(*x.shape[:2], -1)
        layer = eqx.nn.MultiheadAttention(
            heads, heads * dim, vo_size=value.shape[3], value_size=heads * value.shape[3],
            output_size=heads * value.shape[3], key=jax.random.key(0),
        )  # fmt: skip
        kernels = lambda m: [x.weight for x in (m.query_proj, m.key_proj, m.value_proj, m.output_proj)]
        eyes = [jnp.eye(heads * x.shape[3], dtype=x.dtype) for x in (query, query, value, value)]
        layer = eqx.tree_at(kernels, layer, eyes)
        if mask is None:
            output = jax.vmap(layer)(flat(query), flat(key), flat(value))
        else:
            mask = jnp.broadcast_to(mask[(None,) * (4 - mask.ndim)], (batch, heads, length, key.shape[1]))
            output = jax.vmap(layer)(flat(query), flat(key), flat(value), mask)
        return output.reshape(batch, length, heads, -1)

    return adapt(attend, name="equinox.nn:MultiheadAttention", grouped=False)


def _tokamax() -> Adapter:
    tokamax = importlib.import_module("tokamax")

    attend = functools.partial(tokamax.dot_product_attention, implementation="xla")
    return adapt(attend, name="tokamax:dot_product_attention")


def _torch(backend: str) -> Adapter:
    import torch

    kernel = getattr(torch.nn.attention.SDPBackend, backend.upper())

    def attend(*inputs: Any, **options: Any) -> Any:
        grouped = inputs[0].shape[1] != inputs[1].shape[1]
        try:
            with torch.nn.attention.sdpa_kernel(kernel):
                attention = torch.nn.functional.scaled_dot_product_attention
                return attention(*inputs, **options, enable_gqa=grouped)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise NotOfferedError(f"{backend} has no kernel for this on a CPU") from error
            raise

    return Adapter(
        attend,
        framework="torch",
        layout="BNTH",
        mask="attn_mask",
        bias="attn_mask",
        causal="is_causal",
        causal_with_mask=False,
        scale="scale",
        dropout=lambda rate, seed: {"dropout_p": rate},
        name=f"torch.nn.functional:scaled_dot_product_attention, {backend}",
    )


def _torch_layer() -> Adapter:
    """The layer, with kernels that change nothing; padding is its `key_padding_mask`."""
    import torch

    def attend(query: Any, key: Any, value: Any, *, attn_mask: Any = None, lengths: Any = None) -> Any:
        batch, length, heads, dim = query.shape
        size, flat = heads * dim, lambda x: x.reshape(*x.shape[:2], -1)
        layer = torch.nn.MultiheadAttention(size, heads, bias=False, batch_first=True, dtype=query.dtype)
        eye = torch.eye(size, dtype=query.dtype)
        with torch.no_grad():
            layer.in_proj_weight.copy_(torch.cat([eye] * 3))
            layer.out_proj.weight.copy_(eye)
        hidden = None if lengths is None else torch.arange(key.shape[1]) >= lengths[:, None]
        if attn_mask is not None:
            attn_mask = attn_mask.expand(batch, heads, length, key.shape[1]).reshape(-1, length, key.shape[1])
            if hidden is not None and attn_mask.dtype != torch.bool:
                hidden = torch.zeros(hidden.shape, dtype=attn_mask.dtype).masked_fill(hidden, -torch.inf)
        output, _ = layer(
            flat(query), flat(key), flat(value), attn_mask=attn_mask, key_padding_mask=hidden, need_weights=False
        )
        return output.reshape(query.shape)

    return Adapter(
        attend,
        framework="torch",
        mask="attn_mask",
        mask_is="inverted",
        bias="attn_mask",
        lengths="lengths",
        grouped=False,
        value_dim=False,
        name="torch.nn:MultiheadAttention",
    )


def _x_transformers(flash: bool) -> Adapter:
    made = importlib.import_module("x_transformers.attend").Attend

    def attend(
        query: Any, key: Any, value: Any, *, mask: Any = None, attn_bias: Any = None, causal: bool = False
    ) -> Any:
        return made(flash=flash, causal=causal)(query, key, value, mask=mask, attn_bias=attn_bias)[0]

    return Adapter(
        attend,
        framework="torch",
        layout="BNTH",
        mask="mask",
        bias="attn_bias",
        causal="causal",
        causal_from="last",
        name="x_transformers.attend:Attend" + (", flash" if flash else ""),
    )
