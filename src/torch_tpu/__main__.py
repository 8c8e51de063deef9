# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_tpu`: what is installed and in force, for people and bug reports."""

import argparse
import platform
import re

import torch

from torch_tpu import _C
from torch_tpu._text import installed, size
from torch_tpu.tpu import EagerMode, get_device_properties


def _row(name: str, value: object) -> None:
    print(f"{name + ':':<14} {value}")


def report() -> int:
    _row("torch_tpu", installed("torch_tpu"))
    _row("torch", torch.__version__)
    _row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    _row("libtpu", installed("libtpu"))
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
            memory = size(device.total_memory) if device.total_memory else "memory unknown"
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
    files, used = _C.cache_usage()
    _row("cache", f"{folder}: {files} programs, {size(used)}")
    return 0


def env(markdown: bool = False) -> int:
    if markdown:
        print(ENVIRONMENT_PAGE, end="")
        for name, _, _, default, help_text in _C.env_table():
            print(f"| `{name}` | {f'`{default}`' if default else 'unset'} | {help_text.replace('|', chr(92) + '|')} |")
        return 0
    for name, value, was_set, default, help_text in _C.env_table():
        state = f"{value}" if was_set else f"{default or 'unset'} (default)"
        print(f"{name} = {state}\n    {help_text}")
    return 0


ENVIRONMENT_PAGE = """\
# Environment variables

Printed by `python -m torch_tpu env --markdown`; `python -m torch_tpu env` shows what is in force.
Set them before `import torch`: most are read once, at first use.
A value that makes no sense raises an error where it is read; the message names the variable.

| variable | default | meaning |
|---|---|---|
"""


# Who serves an operator on the device, by the file that registered its kernel.
_SERVED = {
    "captured.cc": "PyTorch's decomposition, captured into one program; on the CPU if it can't be",
    "views.cc": "C++ of torch_tpu: a view, copy or factory, or an operator whose output size depends on data",
}


def _served(name: str, lowerings: dict[str, tuple]) -> str:
    """How the device comes to run the overload `name`, "aten::add.out"."""
    if name in lowerings:
        _, lowering, file, line, _ = lowerings[name]
        return f"lowered as {lowering}, {file}:{line}"
    dump = torch._C._dispatch_dump(name)
    if found := re.search(r"^PrivateUse1: registered at (\S*?)([^/\s]+\.cc):(\d+)", dump, re.MULTILINE):
        return _SERVED.get(found[2], f"C++ of torch_tpu, {found[1]}{found[2]}:{found[3]}")
    for key in ("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", "CompositeImplicitAutograd"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            return "composite: PyTorch's own C++, in terms of other operators"
    return "CPU fallback"


def op(name: str) -> int:
    """Every overload of an operator in its functional, in-place and out= forms, and who serves it."""
    namespace, _, rest = name.rpartition("::")
    base, _, overload = rest.partition(".")
    qualified = f"{namespace or 'aten'}::{base}"
    lowerings = {entry[0]: entry for entry in _C.registered()}
    known = set(torch._C._dispatch_get_all_op_names())  # the others are TorchScript's alone
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        lowering = lowerings[full][1] if full in lowerings else None
        wanted = not overload or overload == schema.overload_name or lowering == rest
        if schema.name in (qualified, qualified + "_") and full in known and wanted:
            schemas[full] = schema
    if not schemas:
        print(f"PyTorch has no operator {qualified}{overload and '.' + overload}")
        return 1
    for full, schema in sorted(schemas.items()):
        print(schema)
        print(f"    {_served(full, lowerings)}")
        if full in lowerings:
            named = [f"{a.name}: {kind}" for a, kind in zip(schema.arguments, lowerings[full][4], strict=False)]
            print(f"    parameters: {', '.join(named) or 'none'}")
    return 0


def aot(topology: str, script: str, arguments: list[str]) -> int:
    from torch_tpu.aot._watch import run_script

    try:
        return run_script(topology, script, arguments[1:] if arguments[:1] == ["--"] else arguments)
    except (RuntimeError, ValueError) as error:
        print(f"python -m torch_tpu aot: {error}")
        return 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_tpu", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    environment = commands.add_parser("env", help="every environment variable, its value and meaning")
    environment.add_argument("--markdown", action="store_true", help="as the page docs/environment.md")
    cached = commands.add_parser("cache", help="the folder of compiled programs")
    cached.add_argument("action", nargs="?", choices=["clear"], help="delete them")
    operator = commands.add_parser("op", help="how an operator comes to run on the device")
    operator.add_argument("name", help="_softmax, add.Tensor, aten::sort, tpu::copy_")
    ahead = commands.add_parser("aot", help="run a program and compile all that it launches for a TPU topology")
    ahead.add_argument("--topology", default="TPU7x:2x2x1", help="such as v6e:2x2 (default: %(default)s)")
    ahead.add_argument("script", help="a Python file")
    ahead.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments, after --")
    args = parser.parse_args()
    if args.command == "aot":
        return aot(args.topology, args.script, args.arguments)
    if args.command == "env":
        return env(args.markdown)
    if args.command == "op":
        return op(args.name)
    if args.command == "cache":
        return cache(args.action)
    return report()


if __name__ == "__main__":
    raise SystemExit(main())
