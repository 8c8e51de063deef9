# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_tpu`: what is installed and in force, for people and bug reports."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from torch_tpu import _C
from torch_tpu.tpu import EagerMode, get_device_properties


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _size(count: float) -> str:
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} {units[0]}" if units[0] == "bytes" else f"{count:.1f} {units[0]}"


def _row(name: str, value: object) -> None:
    print(f"{name + ':':<14} {value}")


def report() -> int:
    _row("torch_tpu", _version("torch_tpu"))
    _row("torch", torch.__version__)
    _row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    _row("libtpu", _version("libtpu"))
    status = 0
    try:
        plugin = _C.plugin_info()
    except (RuntimeError, ValueError) as error:
        _row("plugin", error)
        status = 1
    else:
        major, minor = plugin["api_version"]
        _row("plugin", plugin["path"])
        _row("PJRT API", f"{major}.{minor}, platform {plugin['platform']}")
        _row("XLA", plugin["platform_version"].splitlines()[0] if plugin["platform_version"] else "?")
        for i in range(_C.device_count()):
            device = get_device_properties(i)
            memory = _size(device.total_memory) if device.total_memory else "memory unknown"
            _row(f"tpu:{i}", f"{device.name}, {memory}")
    _row("eager mode", EagerMode(_C.eager_mode()).name)
    cache()
    for name, value, was_set, _, _ in _C.env_table():
        if was_set:
            _row("environment", f"{name}={value}")
    return status


def cache(action: str | None = None) -> int:
    folder = _C.cache_folder()
    if not folder:
        _row("cache", "off")
        return 0
    if action == "clear":
        _C.cache_clear()
    files, size = _C.cache_usage()
    _row("cache", f"{folder}: {files} programs, {_size(size)}")
    return 0


def env() -> int:
    for name, value, was_set, default, help_text in _C.env_table():
        state = f"{value}" if was_set else f"{default or 'unset'} (default)"
        print(f"{name} = {state}\n    {help_text}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("env", help="every environment variable, its value and meaning")
    cached = commands.add_parser("cache", help="the folder of compiled programs")
    cached.add_argument("action", nargs="?", choices=["clear"], help="delete them")
    args = parser.parse_args()
    if args.command == "env":
        return env()
    if args.command == "cache":
        return cache(args.action)
    return report()


if __name__ == "__main__":
    raise SystemExit(main())
