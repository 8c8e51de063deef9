// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "hlo/graph.h"
#include "hlo/math.h"
#include "hlo/ops.h"
#include "lowering/target.h"

namespace tpu::lowering {

using namespace hlo;  // lowerings are written in StableHLO's own words
using enum hlo::DType;

// ---- Parameter kinds -------------------------------------------------------------------------
// The types of a lowering's parameters, in the order of the ATen schema. They say how an argument
// takes part in the plan: a Value is a run-time operand; everything else is part of the plan's key.
//
//   Value                 Tensor, or a Scalar / float / int that varies from call to call
//   optional<Value>       Tensor?, Scalar?, float?, int?
//   Values                Tensor[], Scalar[];   vector<optional<Value>>  Tensor?[]
//   Scale                 Scalar that is an operand, plus whether it is exactly 0 or 1
//   Dim                   int, wrapped by the rank of the first Value
//   Axes                  int[] or int?, wrapped and sorted; none or empty means all dimensions
//   int64_t bool double string Dims DType, vector<bool>, vector<double>, optional<each>
//   Literal               Scalar as a number of whatever kind: for operators with special cases
//   Random                Generator?: the generator's key and counter as operands
//   Unused                anything: layout, device, memory format, out-of-band flags

struct Dim {
  int64_t value = 0;
  operator int64_t() const { return value; }
  operator hlo::Axes() const { return hlo::Axes(value); }
};

struct Axes {
  Dims dims;         // sorted, no duplicates
  bool all = false;  // given as none or empty
  operator const Dims&() const { return dims; }
  operator hlo::Axes() const { return hlo::Axes(dims); }
  bool has(int64_t d) const;
};

struct Scale {
  Value value;  // null when exactly 0 or 1
  bool zero = false;
  bool one = false;
};

// Philox key and counter, both rank-0 U64. random.cc turns them into bits.
struct Random {
  Value seed;
  Value offset;
};

struct Unused {};

enum class Kind : uint8_t {
  Value,
  OptValue,
  Values,
  OptValues,
  Scale,
  Dim,
  Axes,
  Int,
  OptInt,
  Bool,
  OptBool,
  Double,
  OptDouble,
  Str,
  OptStr,
  Dims,
  OptDims,
  Doubles,
  OptDoubles,
  Bools,
  DType,
  OptDType,
  Number,
  Random,
  Unused,
};
const char* kind_name(Kind kind);

// One argument as the body gets it. Which fields count depends on the kind.
struct Argument {
  bool given = true;          // false: None
  std::vector<Value> values;  // Value kinds; a null Value is a None in a list
  int64_t i = 0;              // Int, Dim, Bool, DType
  double d = 0;
  Dims dims;  // Dims, Bools
  std::vector<double> doubles;
  Literal number = 0;  // Number
  std::string s;
  bool zero = false, one = false;  // Scale
};

// ---- What a body may ask about the call it is lowering -----------------------------------------

// What a call must not meet at run time: a program gives the offending number, which the kernel reads
// and raises for.
struct RuntimeCheck {
  Value offender;  // rank-0 S64; kNoOffender if there is none
  ErrorKind kind;
  std::function<std::string(int64_t)> message;  // from the offender
  // Where the check is no more than that: integers that must all lie from `low` to `high`, or with `outside`
  // none of them. What is known of them may then spare the program.
  Value values = {};
  int64_t low = 0, high = 0;
  bool outside = false;
};
inline constexpr int64_t kNoOffender = INT64_MIN;

struct CallInfo {
  Graph* graph = nullptr;
  std::vector<std::optional<Type>> results;  // from PyTorch's meta kernel; empty if it has none
  std::vector<Value> weak;                   // Scalars and wrapped numbers
  Random random;                             // of Options.default_generator
  mutable uint64_t random_count = 0;         // Philox counters the body consumes; random.h counts
  std::vector<bool> contiguous;              // of the tensor arguments in order: is_contiguous()
  const Target* target = &cpu_target();
  DType default_dtype = F32;  // torch.get_default_dtype()
  std::vector<RuntimeCheck> checks = {};
  Precision precision = Precision::HIGHEST;  // of float32 products; only with Options.products
};
const CallInfo& call();  // of the innermost call being built on this thread
inline Graph& graph() { return *call().graph; }
// Type that PyTorch says result `i` has. Throws Internal if the meta kernel gave none.
const Type& result_type(size_t i = 0);
// Whether `v` is a Python number or a wrapped number: it yields to tensors in type promotion.
bool is_weak(Value v);

// Whether values may be judged at run time: reading them must cost next to nothing, which holds for
// the CPU plugin alone. A TPU clamps indices instead, as XLA defines.
bool checks_values();
// The call raises `kind` with message(v) if `values` (integers) holds a v outside of low <= v < high.
void check_range(Value values, int64_t low, int64_t high, ErrorKind kind, std::function<std::string(int64_t)> message);
// The call raises if one of `values` (integers) is 0.
void check_no_zero(Value values, ErrorKind kind, std::string message);
// The call raises if `bad` (rank-0 PRED) is true.
void check_not(Value bad, ErrorKind kind, std::string message);

class CallScope {
 public:
  explicit CallScope(CallInfo* info);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  CallInfo* previous_;
};

// ---- The registry ------------------------------------------------------------------------------

struct Options {
  // Rank-0 CPU tensors may stand among the device's tensors, as TensorIterator allows.
  bool host_scalars = false;
  // CPU tensors of any rank are uploaded (indices).
  bool host_tensors = false;
  // Arguments that results beyond the schema's returns are written to, e.g. running statistics.
  std::vector<int> writes = {};
  // A random operator without a Generator argument: call().random has the default generator's state.
  bool default_generator = false;
  // Run at every call, with the first tensor's dtype and the numbers given for Value parameters:
  // throws for those that PyTorch refuses, which a plan's key does not tell apart.
  void (*check)(hlo::DType dtype, const std::vector<Literal>& numbers) = nullptr;
  // An operator on lists. Where their tensors are not all on one device, PyTorch's own composite
  // kernel takes over, tensor by tensor.
  bool lists = false;
  // Multiplies matrices: torch.set_float32_matmul_precision is part of the key, call().precision has it.
  bool products = false;
  // Writes the same value everywhere, so that the tensor written to may overlap itself.
  bool overlap_ok = false;
  // An element depends on others than its own: what is written to may not be an input as well.
  bool no_overlap = false;
  // The meta kernel can't judge this operator (its output size depends on data, say).
  bool no_meta = false;
  // An out= tensor must have the result's dtype; others may be cast to.
  bool exact_out = false;
  // The meta kernel's result types are those of another backend (statistics of batch_norm, say): a
  // result whose type differs from it stands as the graph gives it, contiguous.
  bool loose_meta = false;
  // Argument 1 is a list of indices for argument 0; bool and uint8 masks in it become positions first.
  bool mask_indices = false;
};

struct OpDef {
  std::string name;         // functional overload: "add.Tensor"
  std::vector<Kind> kinds;  // a parameter of the schema each
  std::function<Values(const std::vector<Argument>&)> body;
  Options options;
  const char* file;
  int line;
};

const std::vector<OpDef>& registry();
void define(OpDef def);

// ---- From a lambda's signature to kinds --------------------------------------------------------

template <class T>
struct Traits;
#define TPU_KIND(TYPE, KIND, ...)                                        \
  template <>                                                            \
  struct Traits<TYPE> {                                                  \
    static constexpr Kind kind = Kind::KIND;                             \
    static TYPE get([[maybe_unused]] const Argument& a) { __VA_ARGS__; } \
  };
TPU_KIND(Value, Value, return a.values.at(0))
TPU_KIND(std::optional<Value>, OptValue, if (!a.given) return std::nullopt; return a.values.at(0))
TPU_KIND(Values, Values, return a.values)
TPU_KIND(std::vector<std::optional<Value>>, OptValues, std::vector<std::optional<Value>> out;
         for (Value v : a.values) out.push_back(v ? std::optional<Value>(v) : std::nullopt); return out)
TPU_KIND(Scale, Scale, return {a.values.empty() ? Value() : a.values[0], a.zero, a.one})
TPU_KIND(Dim, Dim, return {a.i})
TPU_KIND(Axes, Axes, return {a.dims, !a.given})
TPU_KIND(int64_t, Int, return a.i)
TPU_KIND(std::optional<int64_t>, OptInt, if (!a.given) return std::nullopt; return a.i)
TPU_KIND(bool, Bool, return a.i != 0)
TPU_KIND(std::optional<bool>, OptBool, if (!a.given) return std::nullopt; return a.i != 0)
TPU_KIND(double, Double, return a.d)
TPU_KIND(std::optional<double>, OptDouble, if (!a.given) return std::nullopt; return a.d)
TPU_KIND(std::string, Str, return a.s)
TPU_KIND(std::optional<std::string>, OptStr, if (!a.given) return std::nullopt; return a.s)
TPU_KIND(Dims, Dims, return a.dims)
TPU_KIND(std::optional<Dims>, OptDims, if (!a.given) return std::nullopt; return a.dims)
TPU_KIND(std::vector<double>, Doubles, return a.doubles)
TPU_KIND(std::optional<std::vector<double>>, OptDoubles, if (!a.given) return std::nullopt; return a.doubles)
TPU_KIND(std::vector<bool>, Bools, return std::vector<bool>(a.dims.begin(), a.dims.end()))
TPU_KIND(DType, DType, return static_cast<DType>(a.i))
TPU_KIND(std::optional<DType>, OptDType, if (!a.given) return std::nullopt; return static_cast<DType>(a.i))
TPU_KIND(Literal, Number, return a.number)
TPU_KIND(Random, Random, return {a.values.at(0), a.values.at(1)})
TPU_KIND(Unused, Unused, return {})
#undef TPU_KIND

inline Values as_values(Value v) { return {v}; }
inline Values as_values(Values v) { return v; }
template <class... V>
Values as_values(const std::tuple<V...>& t) {
  return std::apply([](const auto&... v) { return Values{v...}; }, t);
}

template <class R, class... A, class F, size_t... I>
OpDef make_def(F body, std::index_sequence<I...>) {
  OpDef def;
  def.kinds = {Traits<std::decay_t<A>>::kind...};
  def.body = [body](const std::vector<Argument>& args) -> Values {
    return as_values(body(Traits<std::decay_t<A>>::get(args[I])...));
  };
  return def;
}
template <class F, class C, class R, class... A>
OpDef make_def_from(F body, R (C::*)(A...) const) {
  return make_def<R, A...>(std::move(body), std::index_sequence_for<A...>{});
}
template <class R, class... A>
OpDef make_def_of(R (*body)(A...)) {
  return make_def<R, A...>(body, std::index_sequence_for<A...>{});
}
template <class F>
OpDef make_def_of(F body) {
  return make_def_from(std::move(body), &F::operator());
}

struct Registrar {
  template <class F>
  Registrar(const char* file, int line, const char* name, F body, Options options = {}) {
    OpDef def = make_def_of(std::move(body));
    def.name = name;
    def.options = std::move(options);
    def.file = file;
    def.line = line;
    define(std::move(def));
  }
  // Several overloads with one body.
  template <class F>
  Registrar(const char* file, int line, std::initializer_list<const char*> names, F body, Options options = {}) {
    for (const char* name : names) Registrar(file, line, name, body, options);
  }
};

}  // namespace tpu::lowering

#define TPU_CONCAT_(a, b) a##b
#define TPU_CONCAT(a, b) TPU_CONCAT_(a, b)

// TPU_LOWER("_softmax", [](Value x, Dim dim, bool half_to_float) { ... }, {options});
// Registers the functional overload; its in-place and out= forms are found from the schemas.
#define TPU_LOWER(...) \
  static const ::tpu::lowering::Registrar TPU_CONCAT(tpu_lower_, __COUNTER__)(__FILE__, __LINE__, __VA_ARGS__)
