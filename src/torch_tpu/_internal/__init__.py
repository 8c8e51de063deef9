# SPDX-License-Identifier: Apache-2.0
"""Names that libraries import from here, kept where the reference has them. Nothing else."""
