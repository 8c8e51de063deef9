# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="tpu") and PyTorch's decompositions, both captured into one program."""
