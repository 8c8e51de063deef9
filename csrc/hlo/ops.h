// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <complex>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "hlo/graph.h"

// Every StableHLO operation we use, one function each, in the spec's order and with its names (an
// underscore after a C++ keyword). Strict as the spec: shapes and dtypes must fit, nothing is
// promoted; a misfit throws tpu::Error naming the operation and both sides. math.h is the
// convenient layer. New nodes go to graph().current().
// The three names that math.h needs too, atan2, maximum and minimum, broadcast: they stand there.
namespace tpu::hlo {

// A C++ number that becomes a splat constant of whatever dtype it meets. Integers are exact.
class Literal {
 public:
  enum class Kind { Bool, Signed, Unsigned, Float, Complex };
  template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
  Literal(T v) {  // NOLINT: implicit by design
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = Kind::Bool;
      int_ = v;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind_ = Kind::Float;
      float_ = {static_cast<double>(v), 0.0};
    } else {
      kind_ = std::is_signed_v<T> ? Kind::Signed : Kind::Unsigned;
      int_ = static_cast<int64_t>(v);
    }
  }
  Literal(std::complex<double> v) : kind_(Kind::Complex), float_(v) {}  // NOLINT
  Kind kind() const { return kind_; }
  bool is_integer() const { return kind_ != Kind::Float && kind_ != Kind::Complex; }
  int64_t bits() const { return int_; }  // of an integer; two's complement
  std::complex<double> number() const;   // any kind
  std::string text(DType t) const;       // MLIR literal of dtype t; throws if it cannot hold it

 private:
  Kind kind_ = Kind::Signed;
  int64_t int_ = 0;
  std::complex<double> float_;
};

enum class Direction : uint8_t { EQ, NE, GE, GT, LE, LT };
enum class CompareType : uint8_t { FLOAT, TOTALORDER, SIGNED, UNSIGNED };
enum class Precision : uint8_t { DEFAULT, HIGH, HIGHEST };
enum class FftType : uint8_t { FFT, IFFT, RFFT, IRFFT };
enum class RngAlgorithm : uint8_t { DEFAULT, THREE_FRY, PHILOX };
enum class Transpose : uint8_t { NO_TRANSPOSE, TRANSPOSE, ADJOINT };

using Padding = std::vector<std::pair<int64_t, int64_t>>;  // low, high; a pair a dimension

struct DotDims {
  Dims lhs_batching = {}, rhs_batching = {}, lhs_contracting = {}, rhs_contracting = {};
};
// Positions of batch, feature and spatial dimensions in input, kernel and output.
struct ConvDims {
  int64_t input_batch = 0, input_feature = 1;
  Dims input_spatial = {};
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  Dims kernel_spatial = {};
  int64_t output_batch = 0, output_feature = 1;
  Dims output_spatial = {};
};
ConvDims conv_nchw(int64_t spatial_rank);  // PyTorch's layout: [b,f,0..] x [o,i,0..] -> [b,f,0..]
struct ConvOptions {                       // empty lists mean ones, no padding, no reversal
  Dims strides = {};
  Padding padding = {};
  Dims lhs_dilation = {}, rhs_dilation = {};
  std::vector<bool> reversal = {};
  int64_t feature_groups = 1, batch_groups = 1;
};
struct GatherDims {
  Dims offset_dims = {}, collapsed_slice_dims = {}, operand_batching_dims = {}, start_indices_batching_dims = {},
       start_index_map = {};
  int64_t index_vector_dim = 0;
};
struct ScatterDims {
  Dims update_window_dims = {}, inserted_window_dims = {}, input_batching_dims = {}, scatter_indices_batching_dims = {},
       scatter_dims_to_operand_dims = {};
  int64_t index_vector_dim = 0;
};
struct Window {  // empty strides and dilations mean ones; empty padding zeros
  Dims dims = {}, strides = {}, base_dilations = {}, window_dilations = {};
  Padding padding = {};
};
// Who talks to whom. channel_id 0: across replicas, no channel.
struct Replicas {
  std::vector<Dims> groups = {};  // of equal size
  int64_t channel_id = 0;
  bool use_global_device_ids = false;
};
struct CustomCall {
  std::string backend_config = {};
  bool has_side_effect = false;
  int api_version = 1;  // 1 original, 2 status returning, 4 typed FFI (config is a dictionary's text)
};

// Functions that become regions. Combine and sort's comparison may use only their arguments and
// constants they make; branches and loop bodies may use any value around them.
using Combine = std::function<Value(Value, Value)>;
using CombineMany = std::function<Values(Values lhs, Values rhs)>;
using Build = std::function<Values()>;  // a branch

Value abs(Value x);           // signed integer, float, complex (-> real)
Value add(Value x, Value y);  // PRED: or
Value all_gather(Value x, int64_t dim, const Replicas& replicas);
Value all_reduce(Value x, const Replicas& replicas, const Combine& combine);
Value all_to_all(Value x, int64_t split_dim, int64_t concat_dim, int64_t split_count, const Replicas& replicas);
Value and_(Value x, Value y);             // PRED, integer
Value bitcast_convert(Value x, DType t);  // widths differ: a trailing dimension appears or goes; complex: equal widths
Value broadcast_in_dim(Value x, const Dims& dims, const Dims& broadcast_dimensions);
Values case_(Value index, const std::vector<Build>& branches);  // index: scalar S32; out of range: the last
Value cbrt(Value x);                                            // float
Value ceil(Value x);                                            // float
Value cholesky(Value a, bool lower);                            // [..., n, n] float, complex
Value clamp(Value low, Value x, Value high);                    // low and high: scalar or as x
Value collective_permute(Value x, const std::vector<std::pair<int64_t, int64_t>>& source_target,
                         int64_t channel_id = 0);
Value compare(Value x, Value y, Direction direction, CompareType type);
Value complex(Value re, Value im);  // F32, F64
Value concatenate(const Values& parts, int64_t dim);
Value constant(Graph& graph, const Type& type, const Literal& splat);
Value constant(Graph& graph, const Type& type, const std::vector<int64_t>& elements);  // row-major
Value constant(Graph& graph, const Type& type, const std::vector<double>& elements);
Value convert(Value x, DType t);  // same dtype: x itself; to PRED: x != 0; complex -> real: real part
Value convolution(Value x, Value kernel, const ConvDims& dims, const ConvOptions& options = {},
                  Precision precision = Precision::DEFAULT);  // result: x's dtype
Value convolution(Value x, Value kernel, const ConvDims& dims, const ConvOptions& options, Precision precision,
                  DType result);
Value cosine(Value x);               // float, complex
Value count_leading_zeros(Value x);  // integer
Values custom_call(Graph& graph, std::string_view target, const Values& operands, const std::vector<Type>& results,
                   const CustomCall& options = {});
Value divide(Value x, Value y);  // integers truncate
Value dot_general(Value x, Value y, const DotDims& dims,
                  Precision precision = Precision::DEFAULT);  // -> batch, lhs free, rhs free
Value dot_general(Value x, Value y, const DotDims& dims, Precision precision, DType result);
Value dynamic_slice(Value x, const Values& starts, const Dims& sizes);  // starts: scalar integers, clamped
Value dynamic_update_slice(Value x, Value update, const Values& starts);
Value exponential(Value x);                            // float, complex
Value exponential_minus_one(Value x);                  // float, complex
Value fft(Value x, FftType type, const Dims& length);  // of the last dimensions, 1 to 3
Value floor(Value x);                                  // float
Value gather(Value x, Value indices, const GatherDims& dims, const Dims& slice_sizes, bool sorted = false);
Values if_(Value condition, const Build& then, const Build& otherwise);  // condition: scalar PRED
Value imag(Value x);                                                     // float (zero), complex
Value iota(Graph& graph, const Type& type, int64_t dim);
Value is_finite(Value x);          // float -> PRED
Value log(Value x);                // float, complex
Value log_plus_one(Value x);       // float, complex
Value logistic(Value x);           // float, complex
Value multiply(Value x, Value y);  // PRED: and
Value negate(Value x);             // integer, float, complex
Value not_(Value x);               // PRED, integer
Values optimization_barrier(const Values& xs);
Value or_(Value x, Value y);  // PRED, integer
Value pad(Value x, Value padding_value, const Dims& low, const Dims& high,
          const Dims& interior);   // low, high may be negative
Value partition_id(Graph& graph);  // U32
Value popcnt(Value x);             // integer
Value power(Value x, Value y);     // integer, float, complex
Value real(Value x);               // float (itself), complex
Values reduce_many(const Values& xs, const Values& inits, const Dims& dims, const CombineMany& combine);  // as reduce
// inits: scalars. Templates only to win over std::reduce, which <numeric> brings in by ADL.
template <class F>
  requires std::is_invocable_r_v<Values, const F&, Values, Values>
Values reduce(const Values& xs, const Values& inits, const Dims& dims, const F& combine) {
  return reduce_many(xs, inits, dims, combine);
}
template <class F>
  requires std::is_invocable_r_v<Value, const F&, Value, Value>
Value reduce(Value x, Value init, const Dims& dims, const F& combine) {
  return reduce_many({x}, {init}, dims,
                     [&combine](const Values& a, const Values& b) { return Values{combine(a[0], b[0])}; })[0];
}
Value reduce_precision(Value x, int exponent_bits, int mantissa_bits);  // float
Value reduce_scatter(Value x, int64_t dim, const Replicas& replicas, const Combine& combine);
Values reduce_window(const Values& xs, const Values& inits, const Window& window, const CombineMany& combine);
Value reduce_window(Value x, Value init, const Window& window, const Combine& combine);
Value remainder(Value x, Value y);         // sign of x, as C's fmod
Value replica_id(Graph& graph);            // U32
Value reshape(Value x, const Dims& dims);  // same dims: x itself
Value reverse(Value x, const Dims& dims);
struct RngResult {
  Value state, output;
};
RngResult rng_bit_generator(Value state, const Type& output,
                            RngAlgorithm algorithm);  // state: U64[2] THREE_FRY, U64[2..3] PHILOX; output unsigned
Value round_nearest_afz(Value x);                     // float; halves away from zero
Value round_nearest_even(Value x);                    // float; halves to even
Value rsqrt(Value x);                                 // float, complex
// combine gets (operand element, update element). indices: integers, out of range ones are skipped.
Values scatter(const Values& xs, Value indices, const Values& updates, const ScatterDims& dims,
               const CombineMany& combine, bool sorted = false, bool unique = false);
Value scatter(Value x, Value indices, Value update, const ScatterDims& dims, const Combine& combine,
              bool sorted = false, bool unique = false);
Value select(Value condition, Value on_true, Value on_false);  // condition: PRED, scalar or as the others
Value select_and_scatter(Value x, Value source, Value init, const Window& window, const Combine& select,
                         const Combine& scatter);  // window without dilations
Value shift_left(Value x, Value y);                // integer
Value shift_right_arithmetic(Value x, Value y);
Value shift_right_logical(Value x, Value y);
Value sign(Value x);                                                                // signed integer, float, complex
Value sine(Value x);                                                                // float, complex
Value slice(Value x, const Dims& starts, const Dims& limits, const Dims& strides);  // whole: x itself
// less gets scalars lhs0, rhs0, lhs1, rhs1, ...; it must be a strict weak order
Values sort(const Values& xs, int64_t dim, bool stable, const std::function<Value(const Values&)>& less);
Value sqrt(Value x);                                // float, complex
Value subtract(Value x, Value y);                   // not PRED
Value tan(Value x);                                 // float, complex
Value tanh(Value x);                                // float, complex
Value transpose(Value x, const Dims& permutation);  // identity: x itself
Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal, Transpose transpose_a);
Values while_(const Values& state, const std::function<Value(const Values&)>& condition,
              const std::function<Values(const Values&)>& body);
Value xor_(Value x, Value y);  // PRED, integer

// CHLO: mathematics that the compiler's front end expands. f16, bf16, f32, f64; "complex" where said.
Value acos(Value x);   // complex
Value acosh(Value x);  // complex
Value asin(Value x);   // complex
Value asinh(Value x);  // complex
Value atan(Value x);   // complex
Value atanh(Value x);  // complex
Value bessel_i1e(Value x);
Value cosh(Value x);  // complex
Value digamma(Value x);
Value erf(Value x);
Value erf_inv(Value x);
Value erfc(Value x);
Value is_inf(Value x);      // -> PRED
Value is_neg_inf(Value x);  // -> PRED
Value is_pos_inf(Value x);  // -> PRED
Value lgamma(Value x);
Value next_after(Value x, Value y);
Value polygamma(Value n, Value x);
Value sinh(Value x);    // complex
Value square(Value x);  // complex
struct TopK {
  Value values, indices;
};
TopK top_k(Value x, int64_t k);  // largest along the last dimension, sorted; indices S32; integer, float
Value zeta(Value x, Value q);

}  // namespace tpu::hlo
