# SPDX-License-Identifier: Apache-2.0
"""Attention on DTensors: how it may be sharded, and the ring that context parallelism makes of it.

PyTorch has both for the attention operators of other devices. Loaded when torch.distributed.tensor is (see follow()).
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

_TENSOR = "torch.distributed.tensor"
_CONTEXT = "torch.distributed.tensor.experimental._context_parallel._attention"


def follow() -> None:
    """Adds to both modules when they are imported, or now where they are."""
    for name, extend in (("torch.distributed.tensor", _add_strategies), (_CONTEXT, _add_ring)):
        if name in sys.modules:
            extend(sys.modules[name])
    sys.meta_path.insert(0, _Follower())


class _Follower(importlib.abc.MetaPathFinder):
    """Finds the two modules as the other finders do, and extends them once they have run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in (_TENSOR, _CONTEXT):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module
        extend = _add_strategies if name == _TENSOR else _add_ring

        def run_and_extend(module: ModuleType) -> None:
            run(module)
            extend(module)

        spec.loader.exec_module = run_and_extend  # type: ignore[method-assign]
        return spec


def _add_strategies(_: ModuleType) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy, register_op_strategy

    ops = torch.ops.aten

    def tensors(schema: Any) -> int:
        return sum(isinstance(argument, OpStrategy) for argument in schema.args_schema)

    def bias_of(schema: Any, position: int, placement: Any) -> Any:
        """How an attention bias goes with operands that are sharded so: where it is broadcast it is whole."""
        bias = schema.args_schema[position] if len(schema.args_schema) > position else None
        if not isinstance(bias, OpStrategy) or placement == Replicate():
            return Replicate()
        dim, rank = placement.dim, len(bias.shape)
        own = dim - (4 - rank)
        return Shard(own) if own >= 0 and bias.shape[own] > 1 else Replicate()

    @register_op_strategy(ops._scaled_dot_product_fused_attention_overrideable.default, RuntimeSchemaInfo(4))
    def forward(schema: Any) -> Any:
        rows = []
        for p in (Replicate(), Shard(0), Shard(1)):  # whole, by the batch, by the heads
            row = [p, p, None, None, None, None, Replicate(), Replicate(), None, p, p, p]
            rows.append(row + [bias_of(schema, 3, p)] * (tensors(schema) - 3))
        return expand_to_full_mesh_op_strategy(schema.get_mesh_from_args(), schema, rows, input_index=9)

    @register_op_strategy(ops._scaled_dot_product_fused_attention_overrideable_backward.default)
    def backward(schema: Any) -> Any:
        rows = []
        has_bias = isinstance(schema.args_schema[4], OpStrategy)
        for p in (Replicate(), Shard(0), Shard(1)):
            bias = bias_of(schema, 4, p)
            if has_bias and schema.args_schema[5][3] and bias != p:
                continue  # its gradient would be a sum over the shards
            row = [p, p, p, bias if has_bias else None, p, p, p, p, *([bias] if has_bias else []), p, p]
            rows.append(row + [Replicate()] * (tensors(schema) + 4 - len(row)))
        mesh = schema.get_mesh_from_args(validate=False)
        return expand_to_full_mesh_op_strategy(mesh, schema, rows, input_index=4)


def _add_ring(context: Any) -> None:
    from torch.distributed.tensor import DTensor

    ops = torch.ops.aten
    forward = ops._scaled_dot_product_fused_attention_overrideable.default
    backward = ops._scaled_dot_product_fused_attention_overrideable_backward.default
    sequence = 2

    def named(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by their names, defaults included, DTensors as this rank's part."""
        given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
        values = {a.name: given.get(a.name, a.default_value) for a in op._schema.arguments}
        return {name: v.to_local() if isinstance(v, DTensor) else v for name, v in values.items()}

    def handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        query = args[0 if op is forward else 1]
        mesh, placements = query.device_mesh, query.placements
        values = named(op, args, kwargs)
        if values["attn_bias"] is not None:
            raise NotImplementedError("context parallelism takes no attention bias")
        if op is forward:
            call = functools.partial(forward, attn_bias=None)
            q, k, v, is_causal = (values.pop(n) for n in ("query", "key", "value", "is_causal"))
            values.pop("attn_bias")
            results = context._templated_ring_attention(
                mesh.get_group(), sequence, call, query=q, key=k, value=v, is_causal=is_causal, **values
            )
            sharded = 2  # the output and the sums
        else:
            results = context._templated_ring_attention_backward(
                mesh.get_group(), sequence, backward, grad_out_name="grad_out", **values
            )
            sharded = 3
        return tuple(
            DTensor.from_local(r, mesh, placements, run_check=False) if i < sharded else r
            for i, r in enumerate(results)
        )

    context.custom_ops.update({forward: handle, backward: handle})
