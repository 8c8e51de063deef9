// SPDX-License-Identifier: Apache-2.0
#include "hlo/type.h"

#include "base/error.h"

namespace tpu::hlo {
namespace {

enum class Family : uint8_t { Pred, Signed, Unsigned, Float, Complex };
struct Row {
  const char* short_name;
  const char* mlir_name;
  Family family;
  int bytes;
};
constexpr Row kRows[kDTypeCount] = {
    {"PRED", "i1", Family::Pred, 1},
    {"S8", "i8", Family::Signed, 1},
    {"S16", "i16", Family::Signed, 2},
    {"S32", "i32", Family::Signed, 4},
    {"S64", "i64", Family::Signed, 8},
    {"U8", "ui8", Family::Unsigned, 1},
    {"U16", "ui16", Family::Unsigned, 2},
    {"U32", "ui32", Family::Unsigned, 4},
    {"U64", "ui64", Family::Unsigned, 8},
    {"F16", "f16", Family::Float, 2},
    {"BF16", "bf16", Family::Float, 2},
    {"F32", "f32", Family::Float, 4},
    {"F64", "f64", Family::Float, 8},
    {"C64", "complex<f32>", Family::Complex, 8},
    {"C128", "complex<f64>", Family::Complex, 16},
    {"F8E4M3FN", "f8E4M3FN", Family::Float, 1},
    {"F8E5M2", "f8E5M2", Family::Float, 1},
    {"F8E4M3FNUZ", "f8E4M3FNUZ", Family::Float, 1},
    {"F8E5M2FNUZ", "f8E5M2FNUZ", Family::Float, 1},
    {"S4", "i4", Family::Signed, 1},
    {"U4", "ui4", Family::Unsigned, 1},
};
const Row& row(DType t) { return kRows[static_cast<int>(t)]; }

}  // namespace

bool is_floating(DType t) { return row(t).family == Family::Float; }
bool is_complex(DType t) { return row(t).family == Family::Complex; }
bool is_signed_integer(DType t) { return row(t).family == Family::Signed; }
bool is_integer(DType t) { return is_signed_integer(t) || row(t).family == Family::Unsigned; }
int byte_size(DType t) { return row(t).bytes; }
const char* mlir_name(DType t) { return row(t).mlir_name; }
const char* short_name(DType t) { return row(t).short_name; }

DType real_of(DType t) {
  if (t == DType::C64) return DType::F32;
  if (t == DType::C128) return DType::F64;
  return t;
}

DType complex_of(DType t) {
  if (t == DType::F32) return DType::C64;
  if (t == DType::F64) return DType::C128;
  TPU_CHECK(is_complex(t), "no complex dtype has parts of ", short_name(t));
  return t;
}

int64_t numel(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}
int64_t Type::numel() const { return hlo::numel(dims); }

std::string to_string(const Type& t) {
  std::string out = mlir_name(t.dtype);
  out += '[';
  for (size_t i = 0; i < t.dims.size(); ++i) {
    if (i != 0) out += ',';
    out += std::to_string(t.dims[i]);
  }
  return out + ']';
}

std::string mlir_type(const Type& t) {
  std::string out = "tensor<";
  for (int64_t d : t.dims) {
    out += std::to_string(d);
    out += 'x';
  }
  out += mlir_name(t.dtype);
  return out + '>';
}

}  // namespace tpu::hlo
