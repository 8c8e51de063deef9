# SPDX-License-Identifier: Apache-2.0
"""Runs code in a process of its own: what is decided at import, at fork or at the first use."""

import os
import subprocess
import sys
import textwrap


def run(code: str, **environment: str) -> str:
    """Runs `code` in a process of its own; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
