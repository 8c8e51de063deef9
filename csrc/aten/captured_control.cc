// SPDX-License-Identifier: Apache-2.0
#include "aten/captured_control.h"

#include <c10/util/strides.h>

#include <utility>

#include "aten/captured_run.h"
#include "aten/kernel.h"
#include "aten/storage.h"
#include "hlo/math.h"

namespace tpu::aten {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

thread_local CaptureScope* innermost = nullptr;

CaptureScope& scope() {
  if (!captures_control()) throw TraceFailed("control flow on the device outside of a compiled program");
  return *innermost;
}

at::Tensor tensor_of(CaptureScope& in, Value v) {
  return make_tensor(make_storage(in.device, in.capture.placeholder(v)), v.dims(), c10::contiguous_strides(v.dims()), 0,
                     scalar_type_of(v.dtype()));
}

Tensors tensors_of(CaptureScope& in, const Values& values) {
  Tensors out;
  for (const Value& v : values) out.push_back(tensor_of(in, v));
  return out;
}

Values values_of(CaptureScope& in, const Tensors& tensors) {
  Values out;
  for (const at::Tensor& t : tensors) {
    if (!t.defined()) throw TraceFailed("a region of control flow gives no tensor");
    out.push_back(captured_value(in.graph, t, in.capture));
  }
  return out;
}

// A region runs many times with one set of random numbers, or not at all: refused rather than wrong.
Values without_random(CaptureScope& in, const char* what, const std::function<Values()>& build) {
  const uint64_t before = in.capture.reserved();
  Values results = build();
  if (in.capture.reserved() != before)
    throw TraceFailed(std::string("random numbers inside of ") + what + " can't be part of a compiled program");
  return results;
}

// What a body gives for arguments of these types, found on a graph that is thrown away.
std::vector<Type> types_of(CaptureScope& in, const std::vector<Type>& arguments, const TensorFunction& body) {
  hlo::Graph graph;
  const Value seed = graph.parameter({DType::U64, {}}), offset = graph.parameter({DType::U64, {}});
  runtime::Capture capture(graph, in.device, seed, offset);
  CaptureScope scratch(capture, graph, in.device, seed, offset);
  Values values;
  for (const Type& type : arguments) values.push_back(graph.parameter(type));
  std::vector<Type> out;
  for (const Value& v : values_of(scratch, body(tensors_of(scratch, values)))) out.push_back(v.type());
  return out;
}

}  // namespace

bool captures_control() { return innermost && runtime::Capture::current() == &innermost->capture; }

CaptureScope::CaptureScope(runtime::Capture& of, hlo::Graph& into, int on, hlo::Value first, hlo::Value start)
    : capture(of), graph(into), device(on), seed(first), offset(start), outer_(std::exchange(innermost, this)) {}

CaptureScope::~CaptureScope() { innermost = outer_; }

void add_captured_check(lowering::RuntimeCheck check) {
  // The call's info is the plan builder's own; lowerings only read it.
  auto& to =
      innermost && innermost->checks ? *innermost->checks : const_cast<lowering::CallInfo&>(lowering::call()).checks;
  to.push_back(std::move(check));
}

void captured_checks(const runtime::ValueRef& offenders, const std::vector<lowering::RuntimeCheck>& checks) {
  runtime::Capture* capture = runtime::Capture::current();
  const Value all = capture->value_of(offenders);
  if (&all.region() != &all.graph().body()) return;
  for (size_t i = 0; i < checks.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    Value one = hlo::reshape(hlo::slice(all, {at}, {at + 1}, {1}), {});
    lowering::RuntimeCheck check = checks[i];
    check.offender = one;
    add_captured_check(std::move(check));
  }
}

CaptureScope& capture_scope() { return scope(); }

Tensors captured_if(const at::Tensor& condition, const TensorFunction& then, const TensorFunction& otherwise,
                    const Tensors& operands) {
  CaptureScope& in = scope();
  Value p = captured_value(in.graph, condition, in.capture);
  p = hlo::convert(hlo::reshape(p, {}), DType::PRED);
  // Each branch may draw: the counters of both are reserved, and only one is used.
  return tensors_of(
      in,
      hlo::if_(p, [&] { return values_of(in, then(operands)); }, [&] { return values_of(in, otherwise(operands)); }));
}

Tensors captured_while(const Tensors& state, const TensorFunction& condition, const TensorFunction& body) {
  CaptureScope& in = scope();
  return tensors_of(in, without_random(in, "while_loop", [&] {
                      return hlo::while_(
                          values_of(in, state),
                          [&](const Values& v) {
                            const Values p = values_of(in, condition(tensors_of(in, v)));
                            return hlo::convert(hlo::reshape(p.at(0), {}), DType::PRED);
                          },
                          [&](const Values& v) { return values_of(in, body(tensors_of(in, v))); });
                    }));
}

Tensors captured_scan(const Tensors& carry, const Tensors& xs, const TensorFunction& body) {
  CaptureScope& in = scope();
  const Values first = values_of(in, carry), rows = values_of(in, xs);
  if (rows.empty()) throw TraceFailed("scan over nothing");
  const int64_t length = rows[0].dim(0);
  const size_t carried = first.size();
  std::vector<Type> arguments;
  for (const Value& v : first) arguments.push_back(v.type());
  for (const Value& v : rows) arguments.push_back({v.dtype(), Dims(v.dims().begin() + 1, v.dims().end())});
  const std::vector<Type> types = types_of(in, arguments, body);
  if (types.size() < carried) throw TraceFailed("the function of a scan gives too little");

  Values state = {hlo::scalar(in.graph, DType::S64, int64_t{0})};
  state.insert(state.end(), first.begin(), first.end());
  for (size_t i = carried; i < types.size(); ++i) {
    Dims stacked = types[i].dims;
    stacked.insert(stacked.begin(), length);
    state.push_back(hlo::full(in.graph, {types[i].dtype, stacked}, 0));
  }
  const auto corner = [&](Value i, size_t rank) {
    Values starts(rank, hlo::scalar(in.graph, DType::S64, int64_t{0}));
    starts[0] = i;
    return starts;
  };
  Values last = without_random(in, "scan", [&] {
    return hlo::while_(
        state, [&](const Values& v) { return hlo::lt(v[0], length); },
        [&](const Values& v) {
          Values given(v.begin() + 1, v.begin() + 1 + static_cast<ptrdiff_t>(carried));
          for (const Value& x : rows) {
            Dims one = x.dims();
            one[0] = 1;
            const Dims row(x.dims().begin() + 1, x.dims().end());
            given.push_back(hlo::reshape(hlo::dynamic_slice(x, corner(v[0], one.size()), one), row));
          }
          const Values out = values_of(in, body(tensors_of(in, given)));
          Values next = {v[0] + int64_t{1}};
          next.insert(next.end(), out.begin(), out.begin() + static_cast<ptrdiff_t>(carried));
          for (size_t i = carried; i < out.size(); ++i) {
            Dims one = out[i].dims();
            one.insert(one.begin(), 1);
            next.push_back(hlo::dynamic_update_slice(v[i + 1], hlo::reshape(out[i], one), corner(v[0], one.size())));
          }
          return next;
        });
  });
  last.erase(last.begin());
  return tensors_of(in, last);
}

at::Tensor captured_random_state() {
  CaptureScope& in = scope();
  const Value offset = in.offset + static_cast<uint64_t>(in.capture.reserved());
  const Values words = {hlo::reshape(in.seed, {1}), hlo::reshape(offset, {1})};
  return tensor_of(in, hlo::convert(hlo::concat(words, 0), DType::S64));
}

Tensors captured_with_random_state(const at::Tensor& state, const TensorFunction& function, const Tensors& inputs) {
  CaptureScope& in = scope();
  const Value words = hlo::convert(captured_value(in.graph, state, in.capture), DType::U64);
  const auto word = [&](int64_t i) { return hlo::reshape(hlo::slice(words, {i}, {i + 1}, {1}), {}); };
  const Values given = values_of(in, inputs);
  Values results;
  {
    runtime::Capture capture(in.graph, in.device, word(0), word(1));
    CaptureScope inner(capture, in.graph, in.device, word(0), word(1));
    results = values_of(inner, function(tensors_of(inner, given)));
    if (!inner.capture.constants().empty()) throw TraceFailed("a random operator uses a tensor from outside");
  }
  return tensors_of(in, results);
}

}  // namespace tpu::aten
