// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <utility>

#include "base/error.h"

namespace tpu::aten {

// Throws what PyTorch turns into the Python exception that `error` stands for.
[[noreturn]] inline void rethrow_as_torch(const tpu::Error& error) {
  // PyTorch prints a place only with TORCH_SHOW_CPP_STACKTRACES; ours would be this line always.
  const c10::SourceLocation place{"torch_tpu", "torch_tpu", 0};
  const std::string text = error.what();
  switch (error.kind()) {
    case ErrorKind::Value: throw c10::ValueError(place, text);
    case ErrorKind::Type: throw c10::TypeError(place, text);
    case ErrorKind::Index: throw c10::IndexError(place, text);
    case ErrorKind::NotImplemented: throw c10::NotImplementedError(place, text);
    case ErrorKind::Linalg: throw c10::LinAlgError(place, text);
    case ErrorKind::OutOfMemory: throw c10::OutOfMemoryError(place, text);
    case ErrorKind::Runtime:
    case ErrorKind::Internal: break;
  }
  throw c10::Error(place, text);
}

// Calls `f`; a tpu::Error comes out as PyTorch's. Every way from PyTorch into our code goes through it.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return std::forward<F>(f)();
  } catch (const tpu::Error& error) {
    rethrow_as_torch(error);
  }
}

}  // namespace tpu::aten
