// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tpu {

// Where the user's program is, such as "model.py:25": the innermost line of Python outside of PyTorch
// and this package. On a thread of autograd the line that called backward. Empty where there is none.
// Costs microseconds and takes the GIL: for misses and errors, not for each call.
std::string user_location();

// Told by the layer that knows Python.
void set_location_source(std::string (*source)());

}  // namespace tpu
