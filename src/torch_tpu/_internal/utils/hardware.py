# SPDX-License-Identifier: Apache-2.0
from torch_tpu.tpu._device import device_count, get_device_name


def get_tpu_device_name() -> str:
    return get_device_name()


def get_tpu_device_count() -> int:
    return device_count()
