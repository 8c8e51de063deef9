// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>

#include "hlo/ops.h"

// What authors of operators write. Shapes broadcast as in NumPy; dtypes never promote: two values
// of unequal dtypes throw, naming both. A C++ number takes the other side's dtype. Dimensions may
// be negative and count from the end.
namespace tpu::hlo {

// A value or a number. At least one side of a binary operation must be a value.
class Arg {
 public:
  Arg(Value v) : value_(v), is_value_(true) {}  // NOLINT
  Arg(Literal v) : literal_(v) {}               // NOLINT
  template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
  Arg(T v) : literal_(v) {}                     // NOLINT
  Arg(std::complex<double> v) : literal_(v) {}  // NOLINT
  bool is_value() const { return is_value_; }
  Value value() const { return value_; }
  const Literal& literal() const { return literal_; }

 private:
  Value value_;
  Literal literal_ = 0;
  bool is_value_ = false;
};

// Dimensions to act on: `1`, `{0, 2}` or a Dims; empty means none.
class Axes {
 public:
  Axes(int64_t dim) : dims_{dim} {}                           // NOLINT
  Axes(int dim) : dims_{dim} {}                               // NOLINT
  Axes(std::initializer_list<int64_t> dims) : dims_(dims) {}  // NOLINT
  Axes(Dims dims) : dims_(std::move(dims)) {}                 // NOLINT
  Dims of(int64_t rank, std::string_view op) const;           // sorted, in range, without repeats; else throws

 private:
  Dims dims_;
};
inline constexpr bool keep = true;  // sum(x, 1, keep): reduced dimensions stay with size 1

// Wraps a negative dimension; throws when out of range.
int64_t wrap_dim(int64_t dim, int64_t rank, std::string_view op);
Dims all_dims(Value x);  // 0 .. rank-1
Dims broadcast_dims(const Dims& a, const Dims& b, std::string_view op);
// Both sides in one shape and dtype: how every binary operation below starts.
std::pair<Value, Value> broadcast_pair(std::string_view op, Arg x, Arg y);

// Arithmetic. +, *: PRED too (or, and). % has the sign of the dividend; / of integers truncates.
Value operator+(Arg x, Arg y);
Value operator-(Arg x, Arg y);
Value operator*(Arg x, Arg y);
Value operator/(Arg x, Arg y);
Value operator%(Arg x, Arg y);
Value operator-(Value x);
// Bits of integers, logic of PRED. >> keeps the sign of signed types, and is logical for unsigned.
// Mind that !x of a Value is a Value: test for an empty handle with `x.node() == nullptr`.
Value operator&(Arg x, Arg y);
Value operator|(Arg x, Arg y);
Value operator^(Arg x, Arg y);
Value operator<<(Arg x, Arg y);
Value operator>>(Arg x, Arg y);
Value operator~(Value x);
Value operator!(Value x);  // PRED only

// Comparisons -> PRED. IEEE: NaN is unequal to all. Complex: eq and ne only.
Value eq(Arg x, Arg y);
Value ne(Arg x, Arg y);
Value lt(Arg x, Arg y);
Value le(Arg x, Arg y);
Value gt(Arg x, Arg y);
Value ge(Arg x, Arg y);

Value maximum(Arg x, Arg y);
Value minimum(Arg x, Arg y);
Value atan2(Arg y, Arg x);
Value pow(Arg x, Arg y);
Value where(Value condition, Arg x, Arg y);  // one of x, y must be a value
Value clip(Value x, Arg low, Arg high);      // minimum(maximum(x, low), high)

// The spec's names have short ones here; abs, cbrt, ceil, floor, log, rsqrt, sign, sqrt, tan, tanh,
// logistic, is_finite and the CHLO functions are in ops.h already.
Value cos(Value x);
Value exp(Value x);
Value expm1(Value x);
Value is_nan(Value x);  // float, complex -> PRED
Value log1p(Value x);
Value reciprocal(Value x);
Value round_even(Value x);
Value sin(Value x);

// Constants.
Value scalar(Graph& graph, DType t, Literal v);
Value full(Graph& graph, const Type& type, Literal v);
Value like(Value x, Literal v);  // x's dtype and shape
Value zeros_like(Value x);
Value lowest(Graph& graph, DType t);             // -inf, the smallest integer, false
Value highest(Graph& graph, DType t);            // inf, the largest integer, true
Value iota_like(Value x, int64_t dim, DType t);  // x's shape, counting along dim
bool is_splat(Value x);                          // a constant of one repeated element

// Shapes. What changes nothing makes no node; a splat constant is remade in the new shape.
Value broadcast_to(Value x, const Dims& dims);                  // right-aligned
Value broadcast_along(Value x, const Dims& dims, int64_t dim);  // a vector laid along dim
Value expand_dims(Value x, int64_t dim);                        // a new dimension of size 1 at dim
Value squeeze(Value x, int64_t dim);                            // dim must have size 1
Value swap_dims(Value x, int64_t a, int64_t b);
Value move_dim(Value x, int64_t from, int64_t to);
Value flip(Value x, const Axes& dims);
Value concat(const Values& parts, int64_t dim);
Value stack(const Values& parts, int64_t dim);
Value slice_dim(Value x, int64_t dim, int64_t start, int64_t limit, int64_t step = 1);  // 0 <= start <= limit <= size
Value select_dim(Value x, int64_t dim, int64_t index);                                  // x[..., index, ...]; dim goes
Value pad_dim(Value x, int64_t dim, int64_t low, int64_t high, Literal value = 0, int64_t interior = 0);

// Reductions. Of an empty extent: the neutral element. max and min: NaN propagates (on the CPU
// plugin only if compiled with xla_cpu_enable_fast_min_max = false; so too maximum, minimum).
Value sum(Value x, const Axes& dims, bool keep_dims = false);
Value prod(Value x, const Axes& dims, bool keep_dims = false);
Value max(Value x, const Axes& dims, bool keep_dims = false);
Value min(Value x, const Axes& dims, bool keep_dims = false);
Value any(Value x, const Axes& dims, bool keep_dims = false);  // PRED
Value all(Value x, const Axes& dims, bool keep_dims = false);  // PRED
struct Extreme {
  Value value, index;
};
// Extremum and its first position along dim; a NaN wins over all. index: S64 unless said.
Extreme argmax(Value x, int64_t dim, bool keep_dims = false, DType index = DType::S64);
Extreme argmin(Value x, int64_t dim, bool keep_dims = false, DType index = DType::S64);
enum class Scan { Sum, Product, Max, Min };
Value cumulative(Value x, int64_t dim, Scan scan, bool reverse = false);  // inclusive

// Products. `result`: dtype of accumulation and result; by default that of the operands.
Value matmul2(Value a, Value b, std::optional<DType> result = {},
              Precision precision = Precision::DEFAULT);  // [m,k] x [k,n]
Value batch_matmul(Value a, Value b, std::optional<DType> result = {},
                   Precision precision = Precision::DEFAULT);  // [...,m,k] x [...,k,n]

// x[:, indices, :] -> x.dims[:dim] + indices.dims + x.dims[dim+1:]. Indices in range (else clamped).
Value take(Value x, Value indices, int64_t dim);
// out[i..] = x[i.., indices[i..], i..] at dim: NumPy's take_along_axis, equal shapes but for dim.
Value take_along(Value x, Value indices, int64_t dim);
// dynamic_update_slice, but never in place: for an update that depends on x (see overwrites_what_it_reads).
Value update_by_select(Value x, Value update, const Values& starts);

}  // namespace tpu::hlo
