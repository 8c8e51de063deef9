// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tpu::pjrt {

// The module as the compiler of a platform should get it. For a TPU, with every argument and result of
// `main` marked as held whole by the device that runs it, which is what they are: without the marks the
// compiler writes the result of a scatter on the SparseCore once more in another layout (0.67 GB in a
// DLRM step). A module that already says where its values are stays as it is.
std::string marked_for(std::string_view platform, std::string_view mlir_text);

}  // namespace tpu::pjrt
