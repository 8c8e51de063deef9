# SPDX-License-Identifier: Apache-2.0
"""A compiled ATen graph as PyTorch's AOTAutograd cache keeps it: the graph and what its programs are made from."""

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule
from torch.fx._graph_pickler import GraphPickler, Options
from torch.utils._python_dispatch import _disable_current_modes

import torch_tpu
from torch_tpu import _C
from torch_tpu.compile.buckets import Form, Policy
from torch_tpu.compile.runner import Runner, host_nodes

# What of a node's metadata is read later: the user's lines, and what a checkpoint computes again.
KEPT = ("stack_trace", "recompute", "ac_graph_id")


class Artifact(OutputCode):
    """One ATen graph as a callable in AOTAutograd's boxed convention, which can be pickled."""

    def __init__(self, gm: GraphModule, options: dict[str, Any], policy: Policy):
        super().__init__()
        self._boxed_call = True
        self.options, self.policy = options, policy
        self.host = frozenset(node.name for node in host_nodes(gm))
        self.graph: GraphModule | bytes = _own(gm)
        self._start()

    def _start(self) -> None:
        self.runner = Runner(self.graph, self.host, self.options, self.policy)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self.runner(inputs)

    def prepare_for_serialization(self) -> None:
        """Called on a shallow copy, which is pickled then."""
        del self.runner
        if isinstance(self.graph, GraphModule):
            try:
                with _disable_current_modes():  # its constants are real tensors
                    self.graph = GraphPickler.dumps(self.graph, Options(ops_filter=None))
            except Exception as error:
                raise BypassAOTAutogradCache(f"the graph can't be pickled: {error}") from error

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Called on one that comes from the cache."""
        if isinstance(self.graph, bytes):
            with _disable_current_modes():
                self.graph = GraphPickler.loads(self.graph, None)
            self.graph.recompile()
            self._start()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass


def _own(gm: GraphModule) -> GraphModule:
    """A copy with the metadata that is needed: AOTAutograd strips the graphs that it keeps itself."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, copied := {}))
    for node, copy in copied.items():
        copy.meta = {key: node.meta[key] for key in KEPT if key in node.meta}
        if (form := Form.of(node.meta.get("val"))) is not None:
            copy.meta["form"] = form
    own = GraphModule(gm, graph)
    own.meta = {}
    for name, child in list(own.named_children()):
        if isinstance(child, GraphModule):
            setattr(own, name, _own(child))
    return own


class CacheKey(CustomGraphPass):
    """Stands among inductor's passes while PyTorch makes the key of a graph, so that what our results depend on is in
    it. It never runs."""

    def __init__(self, options: dict[str, Any], policy: Policy):
        self.parts = (*_build(), sorted(options.items(), key=str), policy)

    def __call__(self, graph: torch.fx.Graph) -> None:
        raise AssertionError("no pass of the tpu backend")

    def uuid(self) -> Any:
        return repr(self.parts)


@functools.cache
def _build() -> tuple[Any, ...]:
    """Tells one build of torch_tpu from another."""
    library = os.stat(_C.__file__)
    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(path.read_bytes())
    return torch_tpu.__version__, library.st_size, library.st_mtime_ns, sources.hexdigest()
