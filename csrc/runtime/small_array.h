// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tpu::runtime {

// Arrays whose usual length is small, without a heap allocation for it.
template <class T, size_t N>
class SmallArray {
 public:
  explicit SmallArray(size_t size) : data_(size <= N ? inline_ : new T[size]) {}
  ~SmallArray() {
    if (data_ != inline_) delete[] data_;
  }
  SmallArray(const SmallArray&) = delete;
  SmallArray& operator=(const SmallArray&) = delete;
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  T inline_[N];
  T* data_;
};

}  // namespace tpu::runtime
