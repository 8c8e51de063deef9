// SPDX-License-Identifier: Apache-2.0
// Compiled functions of sizes that vary: graphs traced at several sizes, and one of them as a program for all.
#include "hlo/padded.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "aten/captured_control.h"
#include "aten/captured_run.h"
#include "aten/copy.h"
#include "aten/kernel.h"
#include "aten/storage.h"
#include "aten/target.h"
#include "hlo/math.h"
#include "python/bindings.h"
#include "runtime/device.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

using Sizes = std::vector<int64_t>;

// Contiguous strides for these sizes, in the order of dimensions that `like` has.
Sizes strides_like(const Sizes& sizes, const at::Tensor& like) {
  Sizes strides = like.strides().vec();
  const hlo::Dims own = like.sizes().vec();
  hlo::Dims order = aten::storage_order(own, strides);
  if (order.empty()) {
    for (size_t d = 0; d < sizes.size(); ++d) order.push_back(static_cast<int64_t>(d));
  }
  int64_t step = 1;
  for (size_t k = sizes.size(); k-- > 0;) {
    const auto d = static_cast<size_t>(order[k]);
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

// One run of a function on placeholders of some sizes, as a graph of its own.
class TracedGraph {
 public:
  // `arguments`: numbers, tensors, and pairs of a tensor and the sizes it is to have.
  TracedGraph(const py::function& trace, const py::list& arguments) : graph_(std::make_shared<hlo::Graph>()) {
    const hlo::Value seed = graph_->parameter({hlo::DType::U64, {}}), offset = graph_->parameter({hlo::DType::U64, {}});
    const int device = runtime::current_device();
    runtime::Capture capture(*graph_, device, seed, offset);
    aten::CaptureScope scope(capture, *graph_, device, seed, offset);
    scope.checks = &checks_;
    const aten::AnySizeScope any_size;
    at::AutoDispatchBelowADInplaceOrView below;
    py::list given;
    std::vector<at::Tensor> placeholders;
    std::vector<runtime::ValueRef> before;
    for (py::handle argument : arguments) {
      const bool pair = py::isinstance<py::tuple>(argument);
      py::object tensor = pair ? py::object(py::reinterpret_borrow<py::tuple>(argument)[0])
                               : py::reinterpret_borrow<py::object>(argument);
      if (!THPVariable_Check(tensor.ptr())) {
        given.append(tensor);
        continue;
      }
      const at::Tensor& like = THPVariable_Unpack(tensor.ptr());
      const Sizes sizes = pair ? py::reinterpret_borrow<py::tuple>(argument)[1].cast<Sizes>() : like.sizes().vec();
      const Sizes strides = strides_like(sizes, like);
      const hlo::Value v = graph_->parameter({aten::dtype_of(like.scalar_type()), aten::physical_dims(sizes, strides)});
      // Views of what is padded can be taken of the tensor itself only if it lies as the placeholder does.
      plain_.push_back(strides_like(like.sizes().vec(), like) == like.strides().vec());
      before.push_back(capture.placeholder(v));
      placeholders.push_back(
          aten::make_tensor(aten::make_storage(device, before.back()), sizes, strides, 0, like.scalar_type()));
      given.append(placeholders.back());
    }
    py::sequence results = trace(given);
    hlo::Values fresh;
    for (py::handle r : results) outputs_.append(output(r, placeholders, capture, fresh));
    for (size_t i = 0; i < placeholders.size(); ++i) {
      const at::Tensor& t = placeholders[i];
      if (aten::slot_of(*t.storage().unsafeGetStorageImpl()).value().get() == before[i].get()) continue;
      written_.push_back(i);
      fresh.push_back(aten::captured_value(*graph_, t, capture));
    }
    results_ = fresh.size();
    for (const lowering::RuntimeCheck& check : checks_) fresh.push_back(check.offender);
    graph_->set_results(fresh);
    for (const auto& [value, constant] : capture.constants()) constants_.push_back(constant);
    random_ = capture.reserved() != 0;
  }

  const std::shared_ptr<hlo::Graph>& graph() const { return graph_; }
  const std::vector<lowering::RuntimeCheck>& checks() const { return checks_; }
  const std::vector<runtime::ValueRef>& constants() const { return constants_; }
  size_t results() const { return results_; }
  const std::vector<size_t>& written() const { return written_; }
  bool random() const { return random_; }
  // For each output: a result's (position, sizes, strides, dtype), the place of the input that it is, or what it is.
  const py::list& outputs() const { return outputs_; }

 private:
  py::object output(py::handle result, const std::vector<at::Tensor>& placeholders, runtime::Capture& capture,
                    hlo::Values& fresh) {
    if (!THPVariable_Check(result.ptr())) return py::make_tuple("constant", py::reinterpret_borrow<py::object>(result));
    const at::Tensor& t = THPVariable_Unpack(result.ptr());
    for (size_t i = 0; i < placeholders.size(); ++i) {
      if (!placeholders[i].storage().is_alias_of(t.storage())) continue;
      if (placeholders[i].unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return py::make_tuple("input", i);
      const bool plain = !t.is_conj() && !t.is_neg() && t.scalar_type() == placeholders[i].scalar_type();
      if (plain && plain_[i]) return py::make_tuple("view", i, t.sizes().vec(), t.strides().vec(), t.storage_offset());
    }
    hlo::Value v = aten::captured_value(*graph_, t, capture);
    Sizes strides = t.strides().vec();
    v = aten::to_storage_order(v, strides);
    fresh.push_back(v);
    return py::make_tuple("result", fresh.size() - 1, t.sizes().vec(), strides);
  }
  std::shared_ptr<hlo::Graph> graph_;
  std::vector<lowering::RuntimeCheck> checks_;
  std::vector<runtime::ValueRef> constants_;
  std::vector<bool> plain_;  // of the tensors: dense
  std::vector<size_t> written_;
  py::list outputs_;
  size_t results_ = 0;
  bool random_ = false;
};

// A graph traced at a large size as part of a program for smaller ones.
class PaddedProgram {
 public:
  PaddedProgram(const TracedGraph& large, const std::vector<const TracedGraph*>& samples)
      : graph_(large.graph(), graphs_of(samples)),
        parameters_(large.graph()->body().arguments()),
        results_(large.graph()->body().results()),
        checks_(large.checks()),
        constants_(large.constants()) {
    for (const TracedGraph* sample : samples) {
      if (!same_constants(*sample)) throw hlo::NotPadded("tensors from outside that depend on a size");
    }
    for (size_t i = 0; i < large.results(); ++i) packed_.push_back(graph_.varies(results_[i]));
    for (size_t i : large.written()) {
      if (graph_.varies(parameters_[i + 2])) throw hlo::NotPadded("an input whose size varies is written to");
    }
  }

  py::tuple numbers(const TracedGraph& exact) const {
    if (!same_constants(exact)) throw hlo::NotPadded("tensors from outside that depend on a size");
    const hlo::Slots slots = graph_.numbers(*exact.graph());
    return py::make_tuple(slots.integers, slots.reals);
  }

  // Inside of a capture: results for the padded form of the arguments. Packed ones are vectors.
  std::vector<at::Tensor> emit(const std::vector<at::Tensor>& tensors, const at::Tensor& integers,
                               const at::Tensor& reals) const {
    aten::CaptureScope& in = aten::capture_scope();
    const auto value = [&](const at::Tensor& t) { return aten::captured_value(in.graph, t, in.capture); };
    hlo::Values arguments{in.seed, in.offset};
    for (const at::Tensor& t : tensors) {
      Sizes strides = t.strides().vec();
      arguments.push_back(aten::to_storage_order(value(t), strides));
    }
    for (const runtime::ValueRef& constant : constants_) arguments.push_back(in.capture.value_of(constant));
    const hlo::Values all = graph_.emit(in.graph, arguments, value(integers), value(reals));
    std::vector<at::Tensor> out;
    for (size_t i = 0; i < packed_.size(); ++i) {
      const hlo::Dims& dims = all[i].dims();
      out.push_back(aten::make_tensor(aten::make_storage(in.device, in.capture.placeholder(all[i])), dims,
                                      c10::contiguous_strides(dims), 0, aten::scalar_type_of(all[i].dtype())));
    }
    for (size_t i = 0; i < checks_.size(); ++i)
      aten::add_captured_check({all[packed_.size() + i], checks_[i].kind, checks_[i].message});
    return out;
  }

  const std::vector<bool>& packed() const { return packed_; }
  // The elements that the vector of a tensor argument has; -1 if its size does not vary.
  int64_t room(size_t tensor) const {
    const hlo::Value& v = parameters_.at(tensor + 2);
    return graph_.varies(v) ? v.numel() : -1;
  }

 private:
  bool same_constants(const TracedGraph& other) const {
    return std::equal(constants_.begin(), constants_.end(), other.constants().begin(), other.constants().end(),
                      [](const auto& a, const auto& b) { return a.get() == b.get(); });
  }
  static std::vector<const hlo::Graph*> graphs_of(const std::vector<const TracedGraph*>& samples) {
    std::vector<const hlo::Graph*> out;
    for (const TracedGraph* sample : samples) out.push_back(sample->graph().get());
    return out;
  }
  hlo::PaddedGraph graph_;
  hlo::Values parameters_, results_;
  std::vector<lowering::RuntimeCheck> checks_;
  std::vector<runtime::ValueRef> constants_;
  std::vector<bool> packed_;  // results
};

// The tensor's elements in the order of its strides, at the beginning of a vector of `room`. Free for what a padded
// program gave; else by way of the host, as a program would be one for each size.
at::Tensor packed(const at::Tensor& t, int64_t room) {
  at::AutoDispatchBelowADInplaceOrView below;
  const hlo::DType dtype = aten::dtype_of(t.scalar_type());
  if (t.is_privateuseone() && t.storage_offset() == 0 && t.is_non_overlapping_and_dense() && !t.is_conj() &&
      !t.is_neg()) {
    const runtime::ValueRef value = aten::slot_of(*t.storage().unsafeGetStorageImpl()).value();
    if (value && *value->type() == hlo::Type{dtype, {room}})  // else it would be another program
      return aten::make_tensor(t.storage(), {room}, {1}, 0, t.scalar_type());
  }
  const Sizes sizes = t.sizes().vec(), strides = strides_like(sizes, t);
  at::Tensor host = at::empty_strided(sizes, strides, t.options().device(c10::kCPU));
  host.copy_(t);  // of what was never written: zeros, without a program
  at::Tensor longer = at::zeros({room}, host.options());
  std::memcpy(longer.mutable_data_ptr(), host.const_data_ptr(), static_cast<size_t>(host.nbytes()));
  return aten::to_device(longer, t.is_privateuseone() ? t.device().index() : runtime::current_device());
}

// A view that autograd knows nothing of, from where the tensor begins.
at::Tensor viewed(const at::Tensor& t, const Sizes& sizes, const Sizes& strides, int64_t offset) {
  return aten::make_tensor(t.storage(), sizes, strides, t.storage_offset() + offset, t.scalar_type());
}

}  // namespace

void init_padded(py::module_& m) {
  static py::exception<hlo::NotPadded> not_padded(m, "NotPadded");
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const hlo::NotPadded& error) {
      py::set_error(not_padded, error.what());
    }
  });
  py::class_<TracedGraph>(m, "TracedGraph", "One run of a function on placeholders of some sizes.")
      .def(py::init<py::function, py::list>(), py::arg("trace"), py::arg("arguments"))
      .def("__str__", [](const TracedGraph& self) { return hlo::print_short(*self.graph()); })
      .def_property_readonly("random", &TracedGraph::random)
      .def_property_readonly("written", &TracedGraph::written)
      .def_property_readonly("results", &TracedGraph::results)
      .def_property_readonly("outputs", &TracedGraph::outputs);
  py::class_<PaddedProgram>(m, "PaddedProgram", "A graph traced at a large size, for smaller ones too.")
      .def(py::init<const TracedGraph&, const std::vector<const TracedGraph*>&>(), py::arg("large"), py::arg("samples"))
      .def("numbers", &PaddedProgram::numbers, py::arg("exact"))
      .def("emit", &PaddedProgram::emit, py::arg("tensors"), py::arg("integers"), py::arg("reals"))
      .def("room", &PaddedProgram::room, py::arg("tensor"))
      .def_property_readonly("packed", &PaddedProgram::packed);
  m.def("packed", &packed, py::arg("tensor"), py::arg("room"));
  m.def("viewed", &viewed, py::arg("tensor"), py::arg("sizes"), py::arg("strides"), py::arg("offset") = 0);
}

}  // namespace tpu::python
