# SPDX-License-Identifier: Apache-2.0
"""The Dynamo backend: AOTAutograd makes ATen graphs of Dynamo's, and keeps what comes of them in its cache."""

import contextvars
from typing import Any

import torch
from torch.fx import GraphModule

from torch_tpu.compile import control_flow, fakes  # noqa: F401 what a cached graph is made of must be there
from torch_tpu.compile.buckets import Policy

# XLA's options for what is compiled in this context (torch.tpu.compiler).
compiler_options: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("compiler_options", default={})  # noqa: B039

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")


def tpu(gm: GraphModule, example_inputs: list[Any], *, mode: str | None = None, options: dict | None = None) -> Any:
    """Backend for `torch.compile(backend="tpu")`; docs/compile.md says what it does.

    Every `mode` that PyTorch knows is accepted and means the same: XLA has no levels to choose from.
    `options`: XLA's own, such as {"xla_cpu_enable_fast_math": True}, for this function's programs; and for sizes that
    vary "size_buckets", the sizes to pad to, and "exact_sizes", how many get programs of their own first.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    from torch_tpu.compile.artifact import Artifact, CacheKey

    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile(backend='tpu'): unknown mode {mode!r}, expected one of {', '.join(MODES)}")
    options = {**compiler_options.get(), **(options or {})}
    policy = Policy.of(options)
    if unknown := sorted(name for name in options if not name.startswith("xla_")):
        raise ValueError(f"torch.compile(backend='tpu'): unknown options {unknown}; XLA's begin with xla_")

    def compile_one(graph: GraphModule, _: Any) -> Artifact:
        return Artifact(graph, options, policy)

    compiler = aot_autograd(
        fw_compiler=SerializableAOTDispatchCompiler(Artifact, compile_one),
        bw_compiler=SerializableAOTDispatchCompiler(Artifact, compile_one),
        inference_compiler=SerializableAOTDispatchCompiler(Artifact, compile_one),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    # The cache keeps our graphs themselves, the backward's with the forward's; nothing of them is compiled yet.
    with (
        torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
        torch._inductor.config.patch(post_grad_custom_post_pass=CacheKey(options, policy)),
    ):
        return compiler(gm, example_inputs)
