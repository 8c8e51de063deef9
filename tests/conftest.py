# SPDX-License-Identifier: Apache-2.0
"""expected_failures.txt, the tests behind a variable, and the CPU fallbacks seen, at the end of the run."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import program_counts
import pytest
import torch

EXPECTED = Path(__file__).parent / "expected_failures.txt"
ONLY_WITH = {"grid": "TORCH_TPU_TEST_GRID", "aot": "TORCH_TPU_TEST_AOT"}
fallbacks: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    for name, variable in ONLY_WITH.items():
        config.addinivalue_line("markers", f"{name}: only with {variable}=1")


def expected_failures() -> list[tuple[str, str]]:
    lines = [line for line in EXPECTED.read_text().splitlines() if line and not line.startswith("#")]
    return [(test.strip(), reason.strip()) for test, reason in (line.split(" | ", 1) for line in lines)]


@pytest.hookimpl(tryfirst=True)  # before -k takes some away: a line that names no test is an error
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    by_id = {item.nodeid.split("tests/")[-1].split("@")[0]: item for item in items}
    whole = not any("::" in arg for arg in config.args)
    files = {name.split("::")[0] for name in by_id}
    for test, reason in expected_failures():
        pattern = re.compile(re.escape(test).replace(r"\*", ".*"))
        matched = [name for name in by_id if pattern.fullmatch(name)]
        if not matched and whole and test.split("::")[0] in files:
            raise pytest.UsageError(f"{EXPECTED.name}: no test is called {test}")
        for name in matched:
            by_id[name].add_marker(pytest.mark.xfail(reason=reason, strict=True))
    for marker, variable in ONLY_WITH.items():
        if os.environ.get(variable) != "1":
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
            items[:] = [item for item in items if not item.get_closest_marker(marker)]


@pytest.fixture
def fresh_dynamo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing compiled before counts, and the seed is the same."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def pytest_runtest_teardown() -> None:
    if torch.tpu.is_initialized():  # after each: a test may reset the counts
        fallbacks.update(torch.tpu.fallback_stats())
        program_counts.bound()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if output := getattr(session.config, "workeroutput", None):
        output["fallbacks"] = sorted(fallbacks)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    fallbacks.update(getattr(node, "workeroutput", {}).get("fallbacks", []))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    names = sorted(name.removeprefix("aten::") for name in fallbacks)
    terminalreporter.write_line(f"CPU fallbacks: {len(names)}{': ' if names else ''}{', '.join(names)}")
