# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/: the code in them runs, what they quote is there.

A ```python block must run. Where a ```text block follows it, that is what it prints, the exception
that ends it included; "…" stands for anything. A ```cpp block stands in the file that the comment
before it names. Links and paths must lead somewhere.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import torch_tpu.__main__ as torch_tpu_main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"(?:^<!-- (\S+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Runs each block in a child of one process that has torch loaded, the device not open.
DRIVER = """
import json, os, sys, tempfile, traceback
import torch

for block in json.load(sys.stdin):
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            os.dup2(file.fileno(), 1)
            status = 0
            try:
                exec(compile(block, "<docs>", "exec"), {"__name__": "__main__"})
            except BaseException as error:
                print(f"{type(error).__name__}: {error}")
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        print(json.dumps([status, file.read().decode()]))
"""


@dataclass
class Block:
    line: int
    source: str  # of the comment before it
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(text[: m.start()].count("\n") + 1, m[1] or "", m[2], m[3]) for m in FENCE.finditer(text)]


def printed_as(expected: str, output: str) -> bool:
    pattern = re.escape(expected.strip()).replace("\\\n…", "…").replace("…", ".*")
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def test_pages_are_there():
    for name in ("architecture", "add_an_operator", "debugging", "environment", "errors", "known_differences"):
        assert ROOT / "docs" / f"{name}.md" in PAGES


WITH_PYTHON = [page for page in PAGES if any(b.language == "python" for b in blocks(page))]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=names(WITH_PYTHON))
def test_python_runs(page):
    found = blocks(page)
    chosen = [i for i, block in enumerate(found) if block.language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([found[i].text for i in chosen]),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    wrong = []
    for i, line in zip(chosen, done.stdout.splitlines(), strict=True):
        status, output = json.loads(line)
        shown = found[i + 1].text if i + 1 < len(found) and found[i + 1].language == "text" else None
        if shown is None and status != 0 or shown is not None and not printed_as(shown, output):
            wrong.append(f"{page.name}:{found[i].line} prints\n{output}")
    assert not wrong, "\n".join(wrong) + "\n" + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_quoted_code_is_in_its_file(page):
    for block in blocks(page):
        if block.language == "cpp":
            assert block.source, f"{page.name}:{block.line}: no comment names the file"
            assert block.text in (ROOT / block.source).read_text(), f"{page.name}:{block.line}: not in {block.source}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_and_paths(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:csrc|src|tests|tools|docs|examples|benchmarks)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


def command(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "torch_tpu", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_environment_page():
    assert (ROOT / "docs" / "environment.md").read_text() == command("env", "--markdown")


def test_op(capsys):
    assert "usage" in command("op", "--help")

    def shown(name: str) -> str:
        assert torch_tpu_main.op(name) == 0
        return capsys.readouterr().out

    assert "lowered as _softmax, csrc/lowering/softmax.cc:" in shown("_softmax")
    text = shown("aten::add.Tensor")
    for form in ("aten::add.Tensor(", "aten::add_.Tensor(", "aten::add.out(", "alpha: Scale"):
        assert form in text, text
    assert "C++ of torch_tpu" in shown("view")
    assert "CPU fallback" in shown("linalg_eig")
    assert "composite" in shown("softmax.int")
    assert "decomposition" in shown("_weight_norm_interface")
    assert torch_tpu_main.op("nonsense") == 1
