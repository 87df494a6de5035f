"""The arguments of an attention function: `Request`, one call in the terms of the kit; `Adapter`, how it is made."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxformer import functional, masks
from jaxformer.errors import ConfigError, did_you_mean
from jaxformer.reprs import brief


class NotOfferedError(Exception):
    """A function does not take what a request needs; the message says what."""


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """One call of attention: arrays of NumPy in the layout ``[batch, length, heads, dim]``, and what is masked.

    A query attends to the keys that all of `mask`, `causal`, `window`, `lengths` and `segments` allow.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None = None  # True = attend; [B, N, T, S], or what broadcasts to it
    causal: bool = False
    window: tuple[int, int] | None = None  # this many keys before the query, and after it
    lengths: np.ndarray | None = None  # [B], the keys of each example that are no padding
    segments: tuple[np.ndarray, np.ndarray] | None = None  # [B, T] and [B, S]
    bias: np.ndarray | None = None
    scale: float | None = None
    rate: float = 0.0

    __repr__ = brief

    def but(self, **changes: Any) -> Request:
        """Returns a copy with other fields."""
        return dataclasses.replace(self, **changes)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of queries and of keys."""
        return self.query.shape[1], self.key.shape[1]

    def parts(self, causal_from: str = "first") -> dict[str, np.ndarray]:
        """Returns each mask as a Boolean array of four dimensions, by its name.

        Args:
          causal_from: "first": query 0 is at the position of key 0; "last": the last query is at that of the last key.
        """
        num_queries, num_keys = self.sizes
        offset = num_keys - num_queries if causal_from == "last" else 0
        ahead = np.arange(num_keys) - np.arange(num_queries)[:, None] - offset
        parts = {}
        if self.mask is not None:
            parts["mask"] = self.mask[(None,) * (4 - self.mask.ndim)]
        if self.causal:
            parts["causal"] = (ahead <= 0)[None, None]
        if self.window is not None:
            parts["window"] = ((-self.window[0] <= ahead) & (ahead <= self.window[1]))[None, None]
        if self.lengths is not None:
            parts["lengths"] = (np.arange(num_keys) < self.lengths[:, None])[:, None, None]
        if self.segments is not None:
            queries, keys = self.segments
            parts["segments"] = (queries[:, :, None] == keys[:, None])[:, None]
        return parts

    def allowed(self, causal_from: str = "first") -> np.ndarray:
        """Returns the conjunction of all masks, ``bool [B, N, T, S]``."""
        result = np.ones((len(self.query), self.query.shape[2], *self.sizes), bool)
        for part in self.parts(causal_from).values():
            result &= part
        return result


NAMES = {
    "mask": "mask attn_mask attention_mask",
    "causal": "is_causal causal",
    "window": "local_window_size window_size window",
    "lengths": "key_value_seq_lengths lengths kv_lengths",
    "segments": "segment_ids segments",
    "bias": "bias attn_bias attention_bias",
    "scale": "scale sm_scale softmax_scale",
}
"""The names of arguments by which `adapt` recognizes what a function takes."""

MASKS = ("boolean", "inverted", "additive")


@dataclasses.dataclass(frozen=True)
class Adapter:
    """The arguments that an attention function takes, and how. `adapt` reads them from the signature.

    Arguments of the function are given by their names; None means that the function does not take this. A causal mask,
    a window, lengths and segments that it does not take are a part of its mask.
    """

    function: Callable[..., Any]
    layout: str = "BTNH"
    """The order of batch B, length T, heads N and dim H in queries, keys, values and the result."""
    framework: str = "jax"
    """"jax", "numpy" or "torch"."""
    mask: str | None = None
    mask_is: str = "boolean"
    """"boolean" (True = attend), "inverted" (True = masked) or "additive" (0, and minus infinity where masked)."""
    mask_shapes: tuple[str, ...] = ()
    """Shapes such as ("B11S", "TS"); by default the usual ones are tried, and those that are refused are named."""
    causal: str | None = None
    causal_from: str = "first"
    """The place where a causal mask of T queries and S keys begins: "first", or "last" as a cached step needs it."""
    causal_with_mask: bool = True
    """False if the function takes no mask beside the causal flag."""
    window: str | None = None
    """The argument for (keys before, keys after)."""
    lengths: str | None = None
    segments: str | None = None
    """The argument for the pair of segments ``[B, T]`` and ``[B, S]``."""
    bias: str | None = None
    scale: str | None = None
    dropout: Callable[[float, int], Mapping[str, Any]] | None = None
    """A function of the rate and a seed that returns the arguments for dropout of the weights."""
    grouped: bool | None = None
    """True if it takes fewer key heads than heads; None tries it, and an error means no. So also `value_dim`."""
    value_dim: bool | None = None
    dtypes: tuple[str, ...] = ()
    """Names such as ("float32", "bfloat16"); by default these two and float16 are tried, as the shapes of masks."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of every call."""
    name: str = ""
    """``package.module:function`` in reports; by default, where the function is defined."""

    __repr__ = brief

    @property
    def place(self) -> tuple[str, str]:
        """The module and the name of the function, of what a partial wraps, or of the class of an object."""
        if self.name:
            module, _, name = self.name.rpartition(":")
            return module, name
        inner = getattr(self.function, "func", self.function)
        inner = inner if hasattr(inner, "__qualname__") else type(inner)
        return inner.__module__, inner.__qualname__

    def __post_init__(self) -> None:
        choices = {"framework": ("jax", "numpy", "torch"), "mask_is": MASKS, "causal_from": ("first", "last")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if sorted(self.layout) != sorted("BTNH"):
            raise ConfigError(f"layout must be the letters B, T, N and H in any order, got {self.layout!r}")

    def arguments(self, request: Request, seed: int = 0) -> dict[str, Any]:
        """Returns the keyword arguments of a request; arrays are NumPy's.

        Raises:
          NotOfferedError: the function does not take what the request needs.
        """
        arguments, parts = dict(self.options), request.parts(self.causal_from)
        in_mask = self.needs_mask(request)
        wanted = {"bias": request.bias is not None, "scale": request.scale is not None, "dropout": request.rate > 0}
        for name, is_wanted in wanted.items():
            if is_wanted and getattr(self, name) is None:
                raise NotOfferedError(f"it takes no {name}")
        if in_mask and self.mask is None:
            raise NotOfferedError(f"it takes no {' and no '.join(dict.fromkeys([in_mask[0], 'mask']))}")
        arguments |= {getattr(self, name): getattr(request, name) for name in parts if name not in in_mask}
        if self.mask and in_mask:
            arguments[self.mask] = self._mask([parts[name] for name in in_mask], request.mask)
        if self.bias and request.bias is not None:
            arguments[self.bias] = self._bias(request.bias, arguments)
        if self.scale and request.scale is not None:
            arguments[self.scale] = request.scale
        if self.dropout and request.rate:
            arguments |= self.dropout(request.rate, seed)
        return arguments

    def needs_mask(self, request: Request) -> list[str]:
        """Returns the masks of a request that go into the argument `mask`."""
        parts = request.parts()
        needed = [name for name in parts if getattr(self, name) is None or name == "mask"]
        if "causal" in parts and needed and "causal" not in needed and not self.causal_with_mask:
            needed.append("causal")
        return needed

    def _mask(self, parts: list[np.ndarray], given: np.ndarray | None) -> np.ndarray:
        allowed = functools.reduce(operator.and_, parts)
        if given is not None and len(parts) == 1:
            allowed = given  # in the shape that is tried
        if self.mask_is == "additive":
            return np.where(allowed, 0, -np.inf).astype(np.float32)
        return allowed ^ (self.mask_is == "inverted")

    def _bias(self, bias: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
        """Returns a bias, to which a mask is added if both are one argument."""
        if self.mask is None or self.bias != self.mask or self.mask not in arguments:
            return bias
        mask = arguments[self.mask]
        if mask.dtype == bool:
            mask = np.where(mask ^ (self.mask_is == "inverted"), 0, -np.inf)
        return (bias + mask).astype(np.float32)

    def to_layout(self, x: Any) -> Any:
        """Returns an array ``[B, T, N, H]`` in the layout of the function."""
        return x.transpose([("BTNH").index(letter) for letter in self.layout])

    def from_layout(self, x: Any) -> Any:
        """Returns an array of the function as ``[B, T, N, H]``."""
        return x.transpose([self.layout.index(letter) for letter in "BTNH"])


@dataclasses.dataclass(frozen=True)
class LibraryAdapter(Adapter):
    """An attention that takes ``mask=`` as a `masks.Mask`, which a kernel reads tile by tile; see `modules`.

    >>> import numpy as np
    >>> request = Request(*[np.ones((1, 2, 1, 4))] * 3, causal=True)
    >>> LibraryAdapter(functional.attention).arguments(request)["mask"]
    Band(before=None, after=0)
    """

    mask: str | None = "mask"
    bias: str | None = "bias"
    scale: str | None = "scale"

    def arguments(self, request: Request, seed: int = 0) -> dict[str, Any]:
        kinds = {
            "mask": lambda x: masks.dense(x[(None,) * (4 - x.ndim)]),
            "causal": lambda _: masks.causal(),
            "window": lambda x: masks.window(*x),
            "lengths": masks.lengths,
            "segments": lambda x: masks.segments(*x),
        }
        if request.bias is not None and self.bias is None:
            raise NotOfferedError("it takes no bias")
        given = {"bias": request.bias, "scale": request.scale}
        arguments = dict(self.options) | {name: value for name, value in given.items() if value is not None}
        if parts := [kinds[name](getattr(request, name)) for name in request.parts()]:
            arguments["mask"] = functools.reduce(operator.and_, parts)
        if request.rate:
            arguments["dropout"] = functional.Dropout(request.rate, jax.random.key(seed))
        return arguments


def adapt(function: Callable[..., Any], **fields: Any) -> Adapter:
    """Returns the adapter of a function, from the names of its arguments; `fields` override what they say.

    Raises:
      ConfigError: `function` cannot be called, or a field does not exist or has a wrong value.

    >>> import jax
    >>> adapt(jax.nn.dot_product_attention).window
    'local_window_size'
    """
    if not callable(function):
        raise ConfigError(f"an attention must be a function, got {function!r}")
    known = [field.name for field in dataclasses.fields(Adapter)]
    if wrong := [name for name in fields if name not in known]:
        raise ConfigError(f"an adapter has no {wrong[0]!r}{did_you_mean(wrong[0], known)}")
    try:
        taken = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # built in, as that of torch
        taken = set()
    found: dict[str, Any] = {
        field: next((name for name in names.split() if name in taken), None) for field, names in NAMES.items()
    }
    found["framework"] = framework_of(function)
    return Adapter(function, **{**found, **fields})


def framework_of(function: Callable[..., Any]) -> str:
    """Returns the framework whose arrays a function takes, by the modules that its file imports; "jax" in doubt."""
    inner = inspect.unwrap(getattr(function, "func", function))
    modules = {str(getattr(inner, "__module__", "")).partition(".")[0]}
    for value in getattr(inner, "__globals__", {}).values():
        if inspect.ismodule(value):
            modules.add(value.__name__.partition(".")[0])
    for framework in ("jax", "torch", "jaxformer", "flax", "numpy"):
        if framework in modules:
            return framework if framework in ("torch", "numpy") else "jax"
    return "jax"
