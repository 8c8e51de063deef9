// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tpu::hlo {

// The element types of StableHLO that PyTorch's dtypes map to.
enum class DType : uint8_t {
  PRED,
  S8,
  S16,
  S32,
  S64,
  U8,
  U16,
  U32,
  U64,
  F16,
  BF16,
  F32,
  F64,
  C64,
  C128,
  F8E4M3FN,
  F8E5M2,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  S4,
  U4,
};
inline constexpr int kDTypeCount = 21;

// Sizes, permutations, dimension numbers: always in the order of StableHLO's text.
using Dims = std::vector<int64_t>;

bool is_floating(DType t);  // f8, f16, bf16, f32, f64
bool is_complex(DType t);
bool is_integer(DType t);  // signed and unsigned, not PRED
bool is_signed_integer(DType t);
int byte_size(DType t);           // of one element in host memory; S4 and U4 take one byte
const char* mlir_name(DType t);   // "f32", "i1", "ui8", "complex<f32>"
const char* short_name(DType t);  // "F32", for messages
DType real_of(DType t);           // C64 -> F32, C128 -> F64, else t
DType complex_of(DType t);        // F32 -> C64, F64 -> C128, complex stays; others: Error

// A ranked, static tensor type.
struct Type {
  DType dtype = DType::F32;
  Dims dims;
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t numel() const;
  int64_t bytes() const { return numel() * byte_size(dtype); }
  bool operator==(const Type&) const = default;
};
std::string to_string(const Type& t);  // "f32[2,3]"
std::string mlir_type(const Type& t);  // "tensor<2x3xf32>"
int64_t numel(const Dims& dims);

}  // namespace tpu::hlo
