# SPDX-License-Identifier: Apache-2.0
"""Accelerate with ACCELERATE_TORCH_DEVICE=tpu: its own test scripts, and a loop of ours."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("accelerate")

LOOP = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
assert accelerator.device == torch.device("tpu"), accelerator.device
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
x = torch.randn(64, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
losses = []
for _ in range(3):
    for a, b in data:
        assert a.is_tpu
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(a), b)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).item())
assert sum(losses[-8:]) < 0.8 * sum(losses[:8]), losses
accelerator.save_state(FOLDER)
accelerator.load_state(FOLDER)
"""


def run(*arguments: str) -> None:
    environment = {**os.environ, "ACCELERATE_TORCH_DEVICE": "tpu", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_training_loop(tmp_path) -> None:
    run("-c", LOOP.replace("FOLDER", repr(str(tmp_path))))


@pytest.mark.parametrize("script", ["test_sync", "test_ops"])
def test_shipped_script(script: str) -> None:
    run("-m", f"accelerate.test_utils.scripts.{script}")
