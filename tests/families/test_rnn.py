# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and cells, forward and gradients, against the CPU."""

import copy

import pytest
import torch
from torch import nn

import torch_tpu  # noqa: F401


def check(make, *inputs):
    torch.manual_seed(0)
    cpu = make()
    tpu = copy.deepcopy(cpu).to("tpu")
    results = []
    for module, device in ((cpu, "cpu"), (tpu, "tpu")):
        args = [
            tuple(t.to(device) for t in a) if isinstance(a, tuple) else a.detach().to(device).requires_grad_()
            for a in inputs
        ]
        out = module(*args)
        flat = [t for o in (out if isinstance(out, tuple) else (out,)) for t in (o if isinstance(o, tuple) else (o,))]
        sum((t * t).sum() for t in flat).backward()
        results.append(
            [t.detach().cpu() for t in flat] + [args[0].grad.cpu()] + [p.grad.cpu() for p in module.parameters()]
        )
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{}, dict(num_layers=2, bidirectional=True, batch_first=True), dict(bias=False)])
def test_layers(kind, options):
    check(lambda: kind(4, 3, **options), torch.randn(3, 2, 4))
    assert not [name for name in torch.tpu.fallback_stats() if "thnn" in name]


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind, bias):
    check(lambda: kind(4, 3, bias=bias), torch.randn(2, 4))


def test_packed():
    torch.manual_seed(0)
    cpu = nn.GRU(4, 3, batch_first=True, bidirectional=True)
    tpu = copy.deepcopy(cpu).to("tpu")
    x = torch.randn(2, 3, 4)
    out = []
    for m, d in ((cpu, "cpu"), (tpu, "tpu")):
        packed = nn.utils.rnn.pack_padded_sequence(x.to(d), [3, 2], batch_first=True)
        y, h = m(packed)
        out.append([nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0].detach().cpu(), h.detach().cpu()])
    torch.testing.assert_close(out[1], out[0], rtol=1e-5, atol=1e-6)


def test_lstm_projection():
    check(lambda: nn.LSTM(4, 6, proj_size=3), torch.randn(3, 2, 4))
