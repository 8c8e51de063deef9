# SPDX-License-Identifier: Apache-2.0
"""Streams and events."""

import threading

import pytest
import torch


def test_streams():
    stream = torch.tpu.Stream()
    other = torch.tpu.Stream("tpu")
    assert stream.device == torch.device("tpu:0") and stream != other
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    with stream:
        assert torch.accelerator.current_stream() == stream
        x = torch.ones(64, 64, device="tpu") @ torch.ones(64, 64, device="tpu")
        with torch.tpu.stream(other), torch.tpu.stream(None):
            assert torch.tpu.current_stream() == other
        assert torch.tpu.current_stream() == stream
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    other.wait_stream(stream)
    with other:
        y = x + 1
    other.synchronize()
    assert other.query() and stream.query()
    assert y[0, 0].item() == 65
    torch.tpu.set_stream(stream)
    assert torch.tpu.current_stream() == stream
    torch.accelerator.set_stream(torch.tpu.default_stream())


def test_streams_are_a_threads_own():
    seen = []
    with torch.tpu.Stream():
        thread = threading.Thread(target=lambda: seen.append(torch.tpu.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.tpu.default_stream()]


def test_events():
    event = torch.tpu.Event()
    assert event.query()  # nothing to wait for
    event.synchronize()
    x = torch.rand(256, 256, device="tpu")
    for _ in range(10):
        x = x @ x * 0.01
    event.record()
    event.synchronize()
    assert event.query()
    stream = torch.tpu.Stream()
    stream.wait_event(event)
    event.wait(stream)
    stream.synchronize()
    assert stream.record_event().query()


def test_event_times_are_those_of_the_work():
    x = torch.rand(512, 512, device="tpu")
    (x @ x).cpu()  # compiled
    start, middle, end = (torch.tpu.Event(enable_timing=True) for _ in range(3))
    torch.accelerator.synchronize()  # or `start` would be stamped by the end of what came before
    start.record()
    for _ in range(3):
        x @ x
    middle.record()
    for _ in range(30):
        x @ x
    end.record()
    torch.accelerator.synchronize()
    short, long = start.elapsed_time(middle), middle.elapsed_time(end)
    assert 0 < short < long
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        start.elapsed_time(torch.tpu.Event(enable_timing=True))
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        start.elapsed_time(torch.tpu.Event())


def test_synchronize_from_threads():
    failures = []

    def work(seed: int) -> None:
        try:
            stream = torch.tpu.Stream()
            with stream:
                x = torch.full((32,), float(seed), device="tpu")
                for _ in range(50):
                    x = x + 1
                event = stream.record_event()
                event.synchronize()
                assert x.tolist() == [seed + 50.0] * 32
                torch.tpu.synchronize()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
