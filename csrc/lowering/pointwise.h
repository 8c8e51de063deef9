// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

#include "lowering/op.h"
#include "lowering/promote.h"

// What pointwise operators have in common: every operand is converted to one dtype t, the maths is
// done in compute_dtype(t), and the result is rounded to t once.
namespace tpu::lowering {

// `v` as an operand of an operation in dtype t: rounded to t, in the dtype t is computed in.
Value operand(Value v, DType t);
// As CPU PyTorch's arithmetic has it: a lone number is not rounded to a 16-bit t first.
Value unrounded_operand(Value v, DType t);

enum class Rule {
  Same,   // the common dtype; 16-bit floats are computed in f32
  Float,  // as Same, but integers become the default float
  Raw,    // the common dtype as it is
  Test,   // as Raw; the result is PRED whatever the operands are
};

// Kinds of dtypes that CPU PyTorch has no kernel for: the call raises NotImplementedError, naming it.
struct Refused {
  const char* kernel = nullptr;  // "bitwise_and_cpu"
  bool (*refuses)(DType) = nullptr;
  void check(DType t) const;
};
inline bool no_bits(DType t) { return is_floating(t) || is_complex(t); }
inline bool no_order(DType t) { return is_complex(t); }
inline bool bool_or_complex(DType t) { return t == PRED || is_complex(t); }

struct UnaryRow {
  const char* name;
  Rule rule;
  Value (*f)(Value);
  Refused refused = {};
};
struct BinaryRow {
  std::initializer_list<const char*> names;  // overloads: Tensor and Scalar forms are alike
  Rule rule;
  Value (*f)(Value, Value);
  Refused refused = {};
};
// Registers each row. A static object of these stands where TPU_LOWER would.
struct UnaryTable {
  UnaryTable(const char* file, int line, std::initializer_list<UnaryRow> rows);
};
struct BinaryTable {
  BinaryTable(const char* file, int line, std::initializer_list<BinaryRow> rows);
};

// f of the operands in their common dtype, under `rule`.
Value pointwise(Rule rule, const Values& operands, const std::function<Value(const Values&)>& f);

}  // namespace tpu::lowering

#define TPU_LOWER_UNARY(...) \
  static const ::tpu::lowering::UnaryTable TPU_CONCAT(tpu_unary_, __COUNTER__)(__FILE__, __LINE__, __VA_ARGS__)
#define TPU_LOWER_BINARY(...) \
  static const ::tpu::lowering::BinaryTable TPU_CONCAT(tpu_binary_, __COUNTER__)(__FILE__, __LINE__, __VA_ARGS__)
