# SPDX-License-Identifier: Apache-2.0
"""The Dynamo backend: an FX graph runs once on placeholder tensors, through the same kernels as
eager; one StableHLO program for each kind of arguments comes out."""

import torch

from torch_tpu import _C


def tpu(gm: torch.fx.GraphModule, example_inputs, **options):
    """Backend for `torch.compile(backend="tpu")`.

    Keyword options of torch.compile (`mode`, `options`) are accepted; XLA chooses by itself.
    Returns a function of the graph's inputs.
    """
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        keep_inference_input_mutations=True,
    )
    return compiler(gm, example_inputs)


def compile_graph(gm: torch.fx.GraphModule, example_inputs):
    """One ATen graph as a callable in AOTAutograd's boxed convention: it takes a list and clears it.

    The program is compiled at the first call; inputs of another shape, dtype or view geometry get
    a program of their own. Integers among the inputs (sizes) are part of the program.
    """
    programs: dict[tuple, tuple] = {}

    def call(inputs: list):
        numbers = tuple((i, x) for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor))
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        count = len(inputs)
        inputs.clear()
        if numbers not in programs:
            programs[numbers] = _program(gm, numbers, count)
        function, layout = programs[numbers]
        results = function(tensors)
        return [results[slot] if kind == "tensor" else slot for kind, slot in layout]

    call._boxed_call = True
    return call


def _program(gm, numbers, count):
    layout: list[tuple] = []

    def run(tensors):
        arguments = [None] * count
        for i, number in numbers:
            arguments[i] = number
        rest = iter(tensors)
        for i in range(count):
            if not any(i == j for j, _ in numbers):
                arguments[i] = next(rest)
        outputs = gm(*arguments)
        if not isinstance(outputs, (tuple, list)):
            outputs = (outputs,)
        layout.clear()
        kept = []
        for output in outputs:
            if isinstance(output, torch.Tensor):
                layout.append(("tensor", len(kept)))
                kept.append(output)
            else:
                layout.append(("constant", output))
        return kept

    return _C.CompiledFunction(run), layout
