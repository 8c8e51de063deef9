# SPDX-License-Identifier: Apache-2.0
"""Sweeps over the models of a library: each on `tpu` against the CPU, in a process of its own."""
