# SPDX-License-Identifier: Apache-2.0
"""What a call of a compiled function of 100 parameters costs over its program, stage by stage, in one run.

usage: python benchmarks/compile_overhead.py [--parameters N] [--rounds N]
The function sums 100 small tensors, so that the program does next to nothing. Each figure is the best of the rounds, in
microseconds of the calling thread's processor time a call, launched without waiting:
  program    the program launched by itself from C++: PJRT alone
  graph      our callable with a list of tensors: argument handling, launch, results
  aot        the same inside AOTAutograd's wrappers
  call       the whole compiled call: Dynamo's guards and bytecode too
  framework  Dynamo and AOTAutograd with a backend that gives back a ready tensor: what any backend has
`over` is call - program: what a call adds to its program.
"""

import argparse
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from torch_tpu.compile import backend, runner


def added(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    first, *rest = parts
    for p in rest:
        first = first + p
    return first


class Sum(nn.Module):
    def __init__(self, parts: list[torch.Tensor]):
        nn.Module.__init__(self)
        self.parts = nn.ParameterList(parts)

    def forward(self) -> torch.Tensor:
        return added(self.parts)


def timed(call: Callable[[], Any], times: int = 200) -> float:
    """Microseconds of one call; what was launched before has finished."""
    call()
    torch.tpu.synchronize()
    start = time.thread_time()
    for _ in range(times):
        call()
    took = time.thread_time() - start
    torch.tpu.synchronize()
    return took / times * 1e6


def cloned(function: Any, name: str) -> Any:
    """The same function to Python, another to Dynamo, which keeps its results by the code."""
    return types.FunctionType(function.__code__.replace(co_name=name), function.__globals__, name)


class Stages:
    """One compiled function, and the ways into it. `form`: tensors in a list, or in a module."""

    def __init__(self, form: str, count: int, grad: bool):
        torch._dynamo.reset()
        parts = [torch.full((4,), float(i), device="tpu", requires_grad=grad) for i in range(count)]
        self.parts, self.form = parts, form
        result = torch.ones(4, device="tpu")
        made: list[tuple[Any, list[Any]]] = []
        outer: list[tuple[Any, tuple[Any, ...]]] = []
        whole = runner.whole

        def noted(*args: Any) -> Any:
            program = whole(*args)

            def call(inputs: list[Any]) -> Any:
                made[:] = [(program, list(inputs))]
                return program(inputs)

            return call

        def entered(gm: Any, inputs: Any) -> Any:
            inner = backend.tpu(gm, inputs)

            def call(*arguments: Any) -> Any:
                outer[:] = [(inner, arguments)]
                return inner(*arguments)

            return call

        def ready(gm: Any, inputs: Any) -> Any:
            def call(given: list[Any]) -> list[Any]:
                given.clear()
                return [result.detach()]

            call._boxed_call = True
            return call

        runner.whole = noted
        self.compiled(entered)()
        runner.whole = whole
        (self.program, self.inputs), (self.inner, self.arguments) = made[0], outer[0]
        self.call = self.compiled("tpu")
        self.framework = self.compiled(aot_autograd(fw_compiler=ready, inference_compiler=ready))

    def compiled(self, how: Any) -> Callable[[], Any]:
        """The function by this backend, called once."""
        name = f"by_{len(self.parts)}_{how if isinstance(how, str) else type(how).__name__}"
        if self.form == "module":
            kind = type("Sum", (Sum,), {"forward": cloned(Sum.forward, name)})
            function: Any = kind([nn.Parameter(p, requires_grad=p.requires_grad) for p in self.parts])
            given: tuple[Any, ...] = ()
        else:
            function, given = cloned(added, name), (self.parts,)
        compiled = torch.compile(function, backend=how)
        compiled(*given)
        return lambda: compiled(*given)

    def measure(self) -> dict[str, float]:
        found = {"program": self.program.seconds_alone(self.inputs, 200) * 1e6}
        with torch.no_grad():
            found["graph"] = timed(lambda: self.program(list(self.inputs)))
        found["aot"] = timed(lambda: self.inner(*self.arguments))
        found["call"] = timed(self.call)
        found["framework"] = timed(self.framework)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    for form, grad in (("list", False), ("module", False), ("list", True), ("module", True)):
        with torch.set_grad_enabled(grad):
            stages = Stages(form, args.parameters, grad)
            rounds = [stages.measure() for _ in range(args.rounds)]
        best = {name: min(r[name] for r in rounds) for name in rounds[0]}
        best["over"] = best["call"] - best["program"]
        text = "  ".join(f"{name} {us:6.1f}" for name, us in best.items())
        print(f"{form:<6} {'with' if grad else 'without'} gradients: {text}", flush=True)


if __name__ == "__main__":
    main()
