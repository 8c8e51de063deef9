# SPDX-License-Identifier: Apache-2.0
"""The entry point that PyTorch calls at the end of `import torch`."""

import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_lock = threading.RLock()
_loaded = False


def package_file(package: str, names: tuple[str, ...]) -> str:
    """Path of the first file of an installed package that exists, without importing it; else ""."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return ""
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for name in names:
            path = Path(folder) / name
            if path.is_file():
                return str(path)
    return ""


def load() -> None:
    """Makes `tpu` a device of PyTorch. Idempotent, prints nothing, opens no device."""
    global _loaded
    with _lock:
        if _loaded:
            return
        _loaded = True  # first: the imports below come back here
        try:
            _load()
        except BaseException:
            _loaded = False
            raise


def _load() -> None:
    # XLA logs machine features at each program it loads from disk; its errors reach us as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    import torch

    from torch_tpu import _C

    _C.set_bundled_plugin(package_file("fastatomstruct_xla_cpu", ("libpjrt_cpu.so",)))
    _C.set_libtpu_path(package_file("libtpu", ("libtpu.so",)))

    _C.set_library_folders(str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep)

    torch.utils.rename_privateuse1_backend("tpu")
    from torch_tpu import backends, tpu

    if getattr(torch, "tpu", None) is not tpu:
        torch._register_device_module("tpu", tpu)
    # `import torch.tpu.amp` must find this module, not load a second copy of it.
    for name in ("amp", "memory", "random", "streams"):
        sys.modules[f"torch.tpu.{name}"] = sys.modules[f"torch_tpu.tpu.{name}"]
    torch.backends.tpu = backends
    sys.modules["torch.backends.tpu"] = backends
    if not hasattr(torch.Tensor, "tpu"):
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
    # PyTorch's default for a new device is float16. Thread-local: other threads must name the dtype.
    torch.set_autocast_dtype("tpu", torch.bfloat16)
    if not hasattr(torch.nn.Module._apply, "__wrapped__"):
        torch.nn.Module._apply = _keeping_parameters(torch.nn.Module._apply)
    if not hasattr(torch.utils.swap_tensors, "__wrapped__"):  # a first load may have failed after this
        torch.utils.swap_tensors = _keeping_hooks(torch.utils.swap_tensors)
    if not hasattr(torch.Tensor.__dlpack_device__, "__wrapped__"):
        torch.Tensor.__dlpack_device__ = _with_our_name(torch.Tensor.__dlpack_device__)
    _C._register()
    if not getattr(torch.__spec__, "_initializing", False):
        # Loaded by hand: a backward on the CPU may have started the autograd engine already.
        _C._add_autograd_workers()
    from torch_tpu import process_group
    from torch_tpu.compile import decompositions

    decompositions.register()
    process_group.register()
    if topology := os.environ.get("TORCH_TPU_AOT_TOPOLOGY"):
        from torch_tpu.aot import _watch

        _watch.start(topology)


def _keeping_parameters(apply: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch 2.13 makes new Parameters in Module.to("tpu"): tied weights would split, and an optimizer
    built before would update the old ones. PyTorch's own switch for swapping them in place is set
    while a module goes to another kind of device, and only then: it has costs of its own."""
    import torch
    from torch.__future__ import get_swap_module_params_on_conversion, set_swap_module_params_on_conversion

    def changes_device(module: Any, fn: Callable[[Any], Any]) -> bool:
        first = next(module.parameters(), None)
        if first is None or torch.nn.parameter.is_lazy(first):
            device, dtype = torch.device("cpu"), None
        else:
            device, dtype = first.device, first.dtype
        try:
            with torch.no_grad():
                probe = torch.empty(0, device=device, dtype=dtype)
                moved = fn(probe)
        except Exception:  # the call itself will say what is wrong
            return False
        return isinstance(moved, torch.Tensor) and moved.device.type != device.type

    @functools.wraps(apply)
    def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        if get_swap_module_params_on_conversion() or not changes_device(self, fn):
            return apply(self, fn, recurse)
        set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, recurse)
        finally:
            set_swap_module_params_on_conversion(False)

    return _apply


def _keeping_hooks(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """swap_tensors() leaves gradient hooks behind in the old tensor's autograd state, though the
    Python object still lists them; assigning the list registers them anew."""
    import torch
    from torch.nn.parameter import is_lazy

    @functools.wraps(swap)
    def swap_tensors(t1: Any, t2: Any) -> None:
        if is_lazy(t1) and type(t2) is torch.nn.Parameter:
            t2.__class__ = type(t1)  # Module.to() wraps the moved value as a plain Parameter
        swap(t1, t2)
        for tensor in (t1, t2):
            for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                if listed := getattr(tensor, hooks):
                    setattr(tensor, hooks, listed)

    return swap_tensors


def _with_our_name(original: Callable[[Any], tuple[Any, int]]) -> Callable[[Any], tuple[Any, int]]:
    """PyTorch exports the device under the name "privateuse1", which renaming it took away."""

    @functools.wraps(original)
    def dlpack_device(self: Any) -> tuple[Any, int]:
        try:
            return original(self)
        except ValueError:
            if self.device.type != "tpu":
                raise
            from torch.utils.dlpack import DLDeviceType

            return DLDeviceType.kDLExtDev, self.device.index

    return dlpack_device
