# SPDX-License-Identifier: Apache-2.0
"""The dtypes of the grid: all that the device has."""

NAMES = (
    "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool", "uint8", "int8", "int16", "int32",
    "int64", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
