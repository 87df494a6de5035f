"""Calls of attention functions of PyTorch, whose inputs are tensors; the one file of the kit that imports it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.conformance.adapter import Request
from jaxformer.conformance.engines import Engine


def tensor(x: np.ndarray, *, is_variable: bool = False) -> Any:
    """Returns a copy of an array, which may be bfloat16, as a tensor."""
    import torch

    narrow = x.dtype.name == "bfloat16"
    made = torch.tensor(x.astype(np.float32) if narrow else x)
    made = made.to(torch.bfloat16) if narrow else made
    return made.requires_grad_(True) if is_variable else made


def array(x: Any) -> np.ndarray:
    """Returns a tensor as an array; bfloat16 becomes that of `ml_dtypes`, which comes with JAX."""
    import torch

    x = x.detach()
    return x.float().numpy().astype(jnp.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


Tree = dict[str, Any]


class TorchEngine(Engine):
    """Calls a function of PyTorch on the CPU; derivatives are those of autograd."""

    def _call(self, request: Request, seed: int, variables: bool) -> tuple[Any, Tree]:
        import torch

        self.last = request
        torch.manual_seed(seed)
        inputs = {"query": request.query, "key": request.key, "value": request.value}
        arguments = self.adapter.arguments(request, seed)
        is_bias = lambda name: variables and request.bias is not None and name == self.adapter.bias
        tensors = {k: tensor(self.adapter.to_layout(x), is_variable=variables) for k, x in inputs.items()}
        given = {
            name: tensor(self._cast(x, request), is_variable=is_bias(name)) if isinstance(x, np.ndarray) else x
            for name, x in arguments.items()
        }
        before = {name: x.detach().clone() for name, x in (tensors | given).items() if torch.is_tensor(x)}
        result = self.adapter.function(*tensors.values(), **given)
        after = tensors | given
        same = lambda a, b: torch.equal(torch.nan_to_num(a, 7.0), torch.nan_to_num(b.detach(), 7.0))
        self.changed = next((name for name, x in before.items() if not same(x, after[name])), "")
        bias = {} if not variables or request.bias is None else {"bias": given[str(self.adapter.bias)]}
        return result.permute([self.adapter.layout.index(letter) for letter in "BTNH"]), tensors | bias

    @staticmethod
    def _cast(x: np.ndarray, request: Request) -> np.ndarray:
        """A bias and an additive mask have the dtype of the queries."""
        return x.astype(request.query.dtype) if x.dtype == np.float32 else x

    def output(self, request: Request, seed: int = 0) -> np.ndarray:
        return array(self._call(request, seed, False)[0])

    def _slopes(self, request: Request, upstream: np.ndarray, create_graph: bool) -> tuple[Tree, Tree]:
        import torch

        result, variables = self._call(request, 0, True)
        loss = (result.float() * tensor(upstream.astype(np.float32))).sum()
        slopes = torch.autograd.grad(loss, list(variables.values()), create_graph=create_graph)
        return variables, dict(zip(variables, slopes, strict=True))

    def _named(self, slopes: Tree) -> dict[str, np.ndarray]:
        arrays = {name: array(x) for name, x in slopes.items()}
        return {name: x if name == "bias" else self.adapter.from_layout(x) for name, x in arrays.items()}

    def pull(self, request: Request, upstream: np.ndarray) -> dict[str, np.ndarray]:
        return self._named(self._slopes(request, upstream, create_graph=False)[1])

    def curve(
        self, request: Request, upstream: np.ndarray, direction: dict[str, np.ndarray], mode: str
    ) -> dict[str, np.ndarray]:
        import torch

        if mode != "reverse over reverse":
            raise NotImplementedError("forward mode of PyTorch is not tried")
        variables, slopes = self._slopes(request, upstream, create_graph=True)
        along = {name: tensor(self.adapter.to_layout(x)) for name, x in direction.items()}
        total = sum((slopes[name] * x).sum() for name, x in along.items())
        return self._named(dict(zip(variables, torch.autograd.grad(total, list(variables.values())), strict=True)))
