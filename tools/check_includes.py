# SPDX-License-Identifier: Apache-2.0
"""Checks the C++ layering, the length of files and their first line. Run by `make lint`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A folder may include from the folders named here, and from itself.
ALLOWED = {
    "base": set(),
    "pjrt": {"base"},
    "hlo": {"base"},
    "lowering": {"base", "hlo"},
    "runtime": {"base", "pjrt", "hlo"},
    "aten": {"base", "pjrt", "hlo", "lowering", "runtime"},
    "distributed": {"base", "pjrt", "hlo", "lowering", "runtime", "aten"},
    "python": {"base", "pjrt", "hlo", "lowering", "runtime", "aten", "distributed"},
}
TORCH = re.compile(r"#include <(ATen|c10|torch)/")
MAX_LINES = 600


def problems(path: Path):
    folder = path.relative_to(ROOT / "csrc").parts[0]
    lines = path.read_text().splitlines()
    if not lines or "SPDX-License-Identifier" not in lines[0]:
        yield f"{path}: the first line must be the SPDX line"
    if len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines, more than {MAX_LINES}: split it"
    for number, line in enumerate(lines, 1):
        match = re.match(r'#include "([a-z_]+)/', line)
        if match and match[1] != folder and match[1] not in ALLOWED[folder]:
            yield f"{path}:{number}: {folder}/ may not include from {match[1]}/"
        if TORCH.match(line) and folder not in ("aten", "distributed", "python"):
            yield f"{path}:{number}: no PyTorch header below aten/"
        if "pybind11/" in line and folder != "python":
            yield f"{path}:{number}: pybind11 only in python/"


def main() -> int:
    tracked = subprocess.run(["git", "ls-files", "csrc"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in tracked.stdout.split():
        if name.endswith((".h", ".cc")):
            found += problems(ROOT / name)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
