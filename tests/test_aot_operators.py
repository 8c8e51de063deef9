# SPDX-License-Identifier: Apache-2.0
"""The programs of PyTorch's operator samples, compiled for TPUs: `make test-aot`. One program for each
entry and dtype, forward and gradient; values are judged elsewhere, on virtual devices.

Without TORCH_TPU_TEST_AOT=1 a few entries stand for all. What a TPU can't do stands in
expected_failures.txt.
"""

import conformance
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from torch_tpu import _C
from torch_tpu.aot import _compile, _watch

TOPOLOGIES = ["TPU7x:2x2x1", "v6e:2x2"]
DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
FEW = {"add", "addmm", "nn.functional.conv2d", "softmax", "sort", "nonzero", "cumsum", "linalg.qr", "fft.fft", "argmax"}

pytestmark = [
    pytest.mark.skipif(not conformance.libtpu_installed(), reason="libtpu is not installed"),
    pytest.mark.timeout(300, method="signal"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("libtpu"),  # one process at a time may use the library
]


def cases() -> list:
    found = []
    for op in op_db:
        supported = op.supported_dtypes("cpu")
        for dtype in DTYPES:
            if dtype in supported:
                few = op.name in FEW and dtype in (torch.float32, torch.int64)
                marks = [] if few else [pytest.mark.aot]
                found.append(pytest.param(op, dtype, marks=marks, id=f"{conformance.full_name(op)}-{str(dtype)[6:]}"))
    return found


def programs(op: OpInfo, dtype: torch.dtype, generation: str) -> list[str]:
    """StableHLO of one sample: a traced one, or those that eager launches where it has to read a value."""
    grad = conformance.differentiable(op, dtype)
    for sample in conformance.spread(op.sample_inputs("cpu", dtype, requires_grad=grad), 1):
        leaves = conformance.tensors((sample.input, sample.args, sample.kwargs))

        def run(*tensors: torch.Tensor, sample=sample, leaves=leaves) -> object:
            placed = {id(leaf): t for leaf, t in zip(leaves, tensors, strict=True)}
            value, args, kwargs = conformance.tree(
                lambda t: placed[id(t)], (sample.input, tuple(sample.args), sample.kwargs)
            )
            return sample.output_process_fn_grad(op(value, *args, **kwargs)) if grad else op(value, *args, **kwargs)

        try:
            return [_compile.trace(run, tuple(leaves), {}, generation, grad, None).text]
        except Exception:
            return launched(op, sample, grad, generation)
    return []


def launched(op: OpInfo, sample, grad: bool, generation: str) -> list[str]:
    _C.start_watching()
    while _C.next_seen(0):
        pass
    with _C.Target(generation):
        moved = conformance.moved(sample)
        try:
            result = conformance.call(op, moved)
            if grad:
                roots = [t for t in conformance.tensors(sample.output_process_fn_grad(result)) if t.requires_grad]
                torch.autograd.backward([t.abs().sum() for t in roots])
        except Exception:  # whether it should run is for the other tests to say
            pass
    found = []
    while seen := _C.next_seen(0):
        found.append(seen[2])
    return found


@pytest.mark.parametrize(("op", "dtype"), cases())
def test_operator(op: OpInfo, dtype: torch.dtype) -> None:
    texts = programs(op, dtype, "TPU")  # the forms are those of every generation
    if not texts:
        pytest.skip("launches nothing")
    failures = []
    for topology in TOPOLOGIES:
        for text in texts:
            if failure := _watch.judge(text, topology).failure:
                failures.append(f"{topology}: {failure[:1000]}")
    assert not failures, "\n".join(failures)
