// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "lowering/promote.h"

// The _foreach_ operators: one program a call, each tensor by the lowering of the single operator.
namespace tpu::lowering {
namespace {

const OpDef& single(const std::string& name) {
  for (const OpDef& def : registry()) {
    if (def.name == name) return def;
  }
  fail(ErrorKind::NotImplemented, "no lowering of '", name, "' to run on the tensors of a list");
}

// A parameter of the single operator: a Value, or its default where there is none.
Argument argument(const OpDef& def, size_t i, const Values& operands) {
  Argument a;
  a.given = i < operands.size();
  if (a.given) a.values.push_back(operands[i]);
  switch (def.kinds[i]) {
    case Kind::Scale: a.one = !a.given; break;
    case Kind::Value: TPU_INTERNAL(a.given, def.name, " needs more operands than its list form gives"); break;
    default:
      TPU_INTERNAL(!a.given || def.kinds[i] == Kind::OptValue, def.name, ": parameter ", i, " is ",
                   kind_name(def.kinds[i]), ", its list form has a run-time value");
  }
  return a;
}

// Runs `body` as the call that makes element `i` of the list.
template <class Body>
Value as_element(size_t i, const Values& operands, const Body& body) {
  const CallInfo& outer = call();
  CallInfo inner;
  inner.graph = outer.graph;
  inner.target = outer.target;
  for (Value v : operands) {
    if (is_weak(v)) inner.weak.push_back(v);
  }
  if (outer.results.empty()) {  // no meta kernel: as an element by element operator
    Dims dims;
    for (Value v : operands) dims = broadcast_dims(dims, v.dims(), "foreach");
    inner.results = {Type{common_dtype(operands), dims}};
  } else {
    inner.results = {outer.results.at(i)};
  }
  CallScope scope(&inner);
  return body();
}

Value run(const char* name, size_t i, const Values& operands) {
  const OpDef& def = single(name);
  return as_element(i, operands, [&] {
    std::vector<Argument> arguments;
    for (size_t k = 0; k < def.kinds.size(); ++k) arguments.push_back(argument(def, k, operands));
    return def.body(arguments).at(0);
  });
}

// One column of operands: a list's, or one value for all.
struct Column {
  Column(Values list) : list_(std::move(list)) {}  // NOLINT
  Column(Value one) : one_(one) {}                 // NOLINT
  Value at(size_t i) const { return one_ ? one_ : list_.at(i); }

 private:
  Values list_;
  Value one_;
};

Values each(const char* name, const Values& self, const std::vector<Column>& others) {
  Values out;
  for (size_t i = 0; i < self.size(); ++i) {
    Values operands{self[i]};
    for (const Column& column : others) operands.push_back(column.at(i));
    out.push_back(run(name, i, operands));
  }
  return out;
}

template <class F>
void list_form(int line, const char* overload, F body, Options options = {}) {
  options.lists = true;
  Registrar(__FILE__, line, overload, std::move(body), std::move(options));
}

// ---- One tensor --------------------------------------------------------------------------------

constexpr const char* kUnary[] = {"abs",   "acos", "asin",  "atan",       "ceil",  "cos",    "cosh",    "erf",
                                  "erfc",  "exp",  "expm1", "floor",      "frac",  "lgamma", "log",     "log10",
                                  "log1p", "log2", "neg",   "reciprocal", "round", "rsqrt",  "sigmoid", "sign",
                                  "sin",   "sinh", "sqrt",  "tan",        "tanh",  "trunc"};

// ---- Two tensors, a number, or a number each ---------------------------------------------------

struct Binary {
  const char* list;  // _foreach_<list>
  const char* single;
};
constexpr Binary kBinary[] = {{"mul", "mul.Tensor"},       {"div", "div.Tensor"},  {"clamp_max", "minimum"},
                              {"clamp_min", "maximum"},    {"maximum", "maximum"}, {"minimum", "minimum"},
                              {"pow", "pow.Tensor_Tensor"}};
constexpr Binary kSum[] = {{"add", "add.Tensor"}, {"sub", "sub.Tensor"}};
constexpr Binary kTernary[] = {{"addcmul", "addcmul"}, {"addcdiv", "addcdiv"}};

// The number of element i of a 1-D tensor, as if it were a Python number.
Values numbers_of(Value scalars, size_t count) {
  TPU_CHECK(scalars.rank() == 1, "Expected packed scalar Tensor to be of dimension 1. Got ", scalars.rank(),
            " instead.");
  TPU_CHECK(scalars.dim(0) >= static_cast<int64_t>(count), "Expected length of scalars to match input of length ",
            count, " but got ", scalars.dim(0), " instead.");
  Values out;
  for (size_t i = 0; i < count; ++i) out.push_back(select_dim(scalars, 0, static_cast<int64_t>(i)));
  return out;
}

const bool registered = [] {
  const auto name = [](const char* op, const char* overload) { return "_foreach_" + std::string(op) + overload; };
  for (const char* op : kUnary) {
    list_form(__LINE__, name(op, "").c_str(), [op](Values self) { return each(op, self, {}); });
  }
  for (const Binary& op : kBinary) {
    list_form(__LINE__, name(op.list, ".List").c_str(),
              [op](Values self, Values other) { return each(op.single, self, {other}); });
    list_form(__LINE__, name(op.list, ".Scalar").c_str(),
              [op](Values self, Value s) { return each(op.single, self, {s}); });
    list_form(__LINE__, name(op.list, ".ScalarList").c_str(),
              [op](Values self, Values s) { return each(op.single, self, {s}); });
  }
  for (const Binary& op : kSum) {
    list_form(__LINE__, name(op.list, ".List").c_str(), [op](Values self, Values other, Scale alpha) {
      if (alpha.one) return each(op.single, self, {other});
      Value factor = alpha.zero ? scalar(graph(), S64, 0) : alpha.value;
      return each(op.single, self, {other, factor});
    });
    list_form(__LINE__, name(op.list, ".Scalar").c_str(),
              [op](Values self, Value s) { return each(op.single, self, {s}); });
    list_form(__LINE__, name(op.list, ".ScalarList").c_str(),
              [op](Values self, Values s) { return each(op.single, self, {s}); });
  }
  for (const Binary& op : kTernary) {
    list_form(__LINE__, name(op.list, ".Scalar").c_str(),
              [op](Values self, Values a, Values b, Value s) { return each(op.single, self, {a, b, s}); });
    list_form(__LINE__, name(op.list, ".ScalarList").c_str(),
              [op](Values self, Values a, Values b, Values s) { return each(op.single, self, {a, b, s}); });
    list_form(__LINE__, name(op.list, ".Tensor").c_str(),
              [op](Values self, Values a, Values b, Value s) {
                return each(op.single, self, {a, b, numbers_of(s, self.size())});
              },
              {.host_tensors = true, .no_meta = true});
  }
  list_form(__LINE__, "_foreach_add.Tensor",
            [](Values self, Value other, Scale alpha) {
              if (alpha.one) return each("add.Tensor", self, {other});
              return each("add.Tensor", self, {other, alpha.zero ? scalar(graph(), S64, 0) : alpha.value});
            },
            {.host_scalars = true});
  list_form(__LINE__, "_foreach_mul.Tensor", [](Values self, Value other) { return each("mul.Tensor", self, {other}); },
            {.host_scalars = true});
  list_form(__LINE__, "_foreach_div.Tensor", [](Values self, Value other) { return each("div.Tensor", self, {other}); },
            {.host_scalars = true});
  list_form(__LINE__, "_foreach_pow.ScalarAndTensor", [](Value self, Values exponent) {
    Values out;
    for (size_t i = 0; i < exponent.size(); ++i) out.push_back(run("pow.Tensor_Tensor", i, {self, exponent[i]}));
    return out;
  });
  list_form(__LINE__, "_foreach_lerp.List",
            [](Values self, Values end, Values w) { return each("lerp.Tensor", self, {end, w}); });
  list_form(__LINE__, "_foreach_lerp.Scalar",
            [](Values self, Values end, Value w) { return each("lerp.Scalar", self, {end, w}); });
  list_form(__LINE__, "_foreach_lerp.ScalarList",
            [](Values self, Values end, Values w) { return each("lerp.Scalar", self, {end, w}); });
  list_form(__LINE__, "_foreach_mm", [](Values self, Values other) { return each("mm", self, {other}); });

  // ---- Copies ----------------------------------------------------------------------------------
  list_form(__LINE__, "_foreach_clone", [](Values self, Unused) { return self; });
  list_form(__LINE__, "_foreach_zero", [](Values self) {
    for (Value& v : self) v = zeros_like(v);
    return self;
  });
  list_form(__LINE__, "_foreach_copy", [](Values self, Values src, Unused) {
    for (size_t i = 0; i < self.size(); ++i) self[i] = cast(broadcast_to(src.at(i), self[i].dims()), self[i].dtype());
    return self;
  });

  // ---- Reductions of whole tensors ---------------------------------------------------------------
  list_form(__LINE__, "_foreach_max", [](Values self) {
    for (Value& v : self) v = max(v, all_dims(v));
    return self;
  });
  return true;
}();

// (sum |x|^p)^(1/p) of all elements, in the result's dtype; `root` or not.
Values norms(const Values& self, double p, std::optional<DType> dtype, bool root) {
  Values out;
  for (size_t i = 0; i < self.size(); ++i) {
    Value x = self[i];
    TPU_CHECK(is_floating(x.dtype()) || is_complex(x.dtype()),
              "linalg.vector_norm: Expected a floating point or complex tensor as input. Got ", torch_name(x.dtype()));
    if (dtype) x = cast(x, *dtype);
    const DType to = real_of(x.dtype());
    Value a = accumulate(is_complex(x.dtype()) ? abs(x) : x);
    const hlo::Axes dims = all_dims(a);
    Value r;
    if (p == 2)
      r = sum(a * a, dims);
    else if (p == 1)
      r = sum(abs(a), dims);
    else if (p == 0)
      r = sum(convert(ne(a, 0), a.dtype()), dims);
    else if (p == std::numeric_limits<double>::infinity())
      r = a.numel() == 0 ? scalar(graph(), a.dtype(), 0) : max(abs(a), dims);
    else if (p == -std::numeric_limits<double>::infinity())
      r = min(abs(a), dims);
    else
      r = sum(pow(abs(a), p), dims);
    if (root && p == 2)
      r = sqrt(r);
    else if (root && p != 1 && p != 0 && std::abs(p) != std::numeric_limits<double>::infinity())
      r = pow(r, 1 / p);
    out.push_back(convert(r, to));
  }
  return out;
}
TPU_LOWER("_foreach_norm.Scalar",
          [](Values self, double p, std::optional<DType> dtype) { return norms(self, p, dtype, true); },
          {.lists = true});
TPU_LOWER("_foreach_powsum.Scalar",
          [](Values self, double p, std::optional<DType> dtype) { return norms(self, p, dtype, false); },
          {.lists = true});

}  // namespace
}  // namespace tpu::lowering
