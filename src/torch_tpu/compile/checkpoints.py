# SPDX-License-Identifier: Apache-2.0
"""What an activation checkpoint computes again stays where the backward needs it."""

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


class Checkpoints:
    """For one run of a backward graph. What a checkpoint recomputes depends on saved tensors alone: XLA might compute
    all checkpoints first and hold them at once, or make one of two. So its inputs go through an optimization barrier
    together with the gradient that has come down to it."""

    def __init__(self, gm: GraphModule):
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.after = {n for n in placeholders if n.name.startswith("tangents")}  # what depends on a gradient
        self.saved = set(placeholders) - self.after
        self.latest: torch.Tensor | None = None  # the last gradient that was computed
        self.behind: dict[tuple[Any, Node], torch.Tensor] = {}

    def made(self, node: Node, value: Any) -> None:
        """`node` gave `value`."""
        if node in self.after or not self.after.isdisjoint(node.all_input_nodes):
            self.after.add(node)
            if isinstance(value, torch.Tensor) and value.device.type == "tpu":
                self.latest = value

    def argument(self, user: Node, node: Node, value: Any) -> Any:
        """What `user` gets for its input `node`."""
        if self.latest is None or node not in self.saved or user in self.after:
            return value
        if user.meta.get("recompute") not in AGAIN or not isinstance(value, torch.Tensor) or value.dim() == 0:
            return value
        key = (user.meta.get("ac_graph_id"), node)
        if key not in self.behind:
            self.behind[key] = torch.ops.tpu.optimization_barrier([value, self.latest])[0]
        return self.behind[key]
