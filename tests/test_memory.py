# SPDX-License-Identifier: Apache-2.0
"""Memory counts and limits, pinned memory, and processes forked from one that uses the device."""

import pytest
import torch
from subprocess_run import run


def test_memory_counts():
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    torch.tpu.reset_accumulated_memory_stats()
    x = torch.zeros(1 << 20, device="tpu")
    x = x + 1
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before >= 4 << 20
    assert torch.tpu.max_memory_allocated() >= torch.tpu.memory_allocated()
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    assert stats["allocated_bytes.all.allocated"] >= 4 << 20
    assert torch.accelerator.memory_stats(0) == stats
    assert torch.tpu.memory_reserved() == torch.tpu.memory_allocated()
    peak = torch.tpu.max_memory_allocated()
    del x
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() == before
    assert torch.tpu.max_memory_allocated() == peak
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == before
    torch.tpu.empty_cache()
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total == torch.tpu.get_device_properties().total_memory
    assert torch.accelerator.get_memory_info() == (free, total)


def test_out_of_memory():
    code = """
        import torch
        assert torch.tpu.mem_get_info()[1] == 8 << 20
        x = torch.zeros(1 << 20, device="tpu") + 0   # 4 MiB
        try:
            y = [torch.zeros(1 << 20, device="tpu") + i for i in range(4)]
            torch.tpu.synchronize()
        except torch.OutOfMemoryError as e:
            assert "tpu:0 is out of memory" in str(e) and "8.00 MiB" in str(e), e
        else:
            raise AssertionError("no error")
        y = None
        assert torch.tpu.memory_stats()["num_ooms"] >= 1
        assert (x[:1000] + 1)[0].item() == 1   # and it goes on
    """
    run(code, TORCH_TPU_MEMORY_LIMIT_MB="8")


def test_pinned_memory():
    plain = torch.arange(1000.0)
    assert not plain.is_pinned()
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and pinned[10:].is_pinned() and pinned.data_ptr() % 4096 == 0
    assert torch.equal(pinned, plain) and pinned.device.type == "cpu"
    assert torch.empty(0).pin_memory().numel() == 0
    made = torch.empty(5000, pin_memory=True)
    assert made.is_pinned()
    for _ in range(20):
        moved = pinned.to("tpu", non_blocking=True)
        assert torch.equal(moved.cpu(), plain)
        back = torch.empty(1000, pin_memory=True)
        back.copy_(moved, non_blocking=True)
        torch.tpu.synchronize()
        assert torch.equal(back, plain)
    address = made.data_ptr()
    del made
    assert address  # freed memory is not pinned: checked through a new, plain tensor there, if any
    torch.accelerator.empty_host_cache()


def test_source_may_change_after_a_blocking_copy():
    source = torch.zeros(1 << 18)
    moved = source.to("tpu")
    source.fill_(1)
    assert moved.sum().item() == 0


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((8,), float(i * i))


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_forked_after_use(workers):
    x = torch.ones(4, device="tpu")
    assert x.sum().item() == 4
    context = "fork" if workers else None
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=8, num_workers=workers, pin_memory=True, multiprocessing_context=context
    )
    total = torch.zeros((), device="tpu")
    for batch in loader:
        assert batch.is_pinned()
        total += batch.to("tpu", non_blocking=True).sum()
    assert total.item() == 8 * sum(i * i for i in range(32))


def test_fork_after_use():
    code = """
        import os, torch
        x = torch.ones(1000, device="tpu") + 1
        torch.tpu.synchronize()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                assert torch.tpu._is_in_bad_fork() and not torch.tpu.is_available()
                torch.manual_seed(1)
                assert torch.ones(3).sum() == 3
                torch.tpu.synchronize()
                del x                                    # must not touch the device
                try:
                    torch.zeros(1, device="tpu") + 1
                except RuntimeError as e:
                    assert "Cannot re-initialize the tpu device in a forked subprocess" in str(e), e
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert x.sum().item() == 2000
    """
    run(code)


def test_fork_before_use():
    code = """
        import os, torch
        pid = os.fork()
        if pid == 0:
            ok = (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]
            os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]
    """
    run(code)
