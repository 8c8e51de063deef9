# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's OpInfo samples on tpu against the CPU.

usage: python tools/opcheck.py [REGEX] [--dtype float32 ...] [--grad] [--samples N] [-v]
Prints a line for each operator and dtype that fails, what falls back to the CPU, and a total.
"""
import argparse
import re
import traceback
import warnings

warnings.simplefilter("ignore")
import torch  # noqa: E402
import torch_tpu  # noqa: E402, F401
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402


def tree(f, x):
    if isinstance(x, torch.Tensor):
        return f(x)
    if isinstance(x, (list, tuple)):
        return type(x)(*(tree(f, v) for v in x)) if hasattr(x, "_fields") else type(x)(tree(f, v) for v in x)
    if isinstance(x, dict):
        return {k: tree(f, v) for k, v in x.items()}
    if isinstance(x, torch.device) and x.type == "cpu":
        return torch.device("tpu")
    if x == "cpu" and isinstance(x, str):
        return "tpu"
    return x


def to_tpu(t):
    return t.detach().to("tpu").requires_grad_(t.requires_grad)


def tensors(x):
    out = []
    tree(lambda t: out.append(t) or t, x)
    return out


def compare(got, want, op, dtype):
    got = tree(lambda t: t.cpu() if t.device.type == "tpu" else t, got)
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance(op, dtype))


def tolerance(op, dtype):
    if not (dtype.is_floating_point or dtype.is_complex):
        return {}
    table = {torch.float32: 2e-5, torch.complex64: 2e-5, torch.float64: 1e-7, torch.complex128: 1e-7,
             torch.float16: 2e-3, torch.bfloat16: 2e-2}
    return {"rtol": table[dtype] * 5, "atol": table[dtype]}


def run_one(op, dtype, grad, limit):
    for n, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if n >= limit:
            break
        tpu = tree(to_tpu, (sample.input, sample.args, sample.kwargs))
        try:
            want = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            continue
        got = op(tpu[0], *tpu[1], **tpu[2])
        for t in tensors(got):
            if t.device.type != "tpu":
                raise AssertionError("the result is not on tpu")
        compare(got, want, op, dtype)
        if grad:
            outs = [t for t in tensors(want) if t.requires_grad]
            if not outs:
                continue
            ins = [t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
            tins = [t for t in tensors(tpu) if t.requires_grad]
            touts = [t for t in tensors(got) if t.requires_grad]
            torch.manual_seed(0)
            seeds = [torch.randn_like(o) for o in outs]
            g = torch.autograd.grad(outs, ins, seeds, allow_unused=True)
            tg = torch.autograd.grad(touts, tins, [s.to("tpu") for s in seeds], allow_unused=True)
            for a, b in zip(tg, g, strict=True):
                if b is not None:
                    compare(a, b, op, dtype)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("regex", nargs="?", default=".")
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("-v", action="store_true")
    args = parser.parse_args()
    good = bad = 0
    for op in op_db:
        full = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        if not re.search(args.regex, full):
            continue
        for name in args.dtype:
            dtype = getattr(torch, name)
            if dtype not in op.supported_dtypes("cpu"):
                continue
            torch.tpu.reset_metrics() if hasattr(torch.tpu, "reset_metrics") else None
            before = dict(torch.tpu.fallback_stats())
            try:
                run_one(op, dtype, args.grad and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu"),
                        args.samples)
                good += 1
                verdict = "ok"
            except Exception as e:
                bad += 1
                verdict = f"FAIL {type(e).__name__}: {str(e).strip().splitlines()[0][:300] if str(e).strip() else ''}"
                if args.v:
                    traceback.print_exc()
                    print(str(e)[:2000])
            after = torch.tpu.fallback_stats()
            fell = sorted(k for k, v in after.items() if v != before.get(k, 0))
            if verdict != "ok" or fell:
                print(f"{full} {name}: {verdict}" + (f"  [cpu: {', '.join(fell)}]" if fell else ""), flush=True)
    print(f"{good} pass, {bad} fail")


if __name__ == "__main__":
    main()
