// SPDX-License-Identifier: Apache-2.0
// Programs that are traced and not run, for torch_tpu.aot.
#include "aten/trace.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "python/bindings.h"
#include "runtime/program.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

py::dict describe(const aten::TracedProgram& program) {
  const auto types = [](const std::vector<hlo::Type>& list) {
    py::list out;
    for (const hlo::Type& t : list) out.append(hlo::to_string(t));
    return out;
  };
  py::dict out;
  out["text"] = program.text;
  out["inputs"] = types(program.inputs);
  out["outputs"] = types(program.outputs);
  out["input_of"] = program.input_of;
  out["donated"] = program.donated;
  out["product_flops"] = program.products.flops;
  out["wide_flops"] = program.products.wide_flops;
  py::list loops;
  for (const hlo::Loop& loop : program.loops) loops.append(py::make_tuple(loop.around, loop.trips, loop.body));
  out["loops"] = loops;
  return out;
}

// A context manager: with Trace("v6e", 0) as trace.
class PyTrace {
 public:
  PyTrace(std::string generation, int device) : generation_(std::move(generation)), device_(device) {}
  void enter() { trace_ = std::make_unique<aten::Trace>(lowering::tpu_target(generation_), device_); }
  void exit() { trace_.reset(); }
  at::Tensor input(const at::Tensor& like) { return get().input(like.sizes(), like.strides(), like.scalar_type()); }
  py::dict finish(const std::vector<at::Tensor>& outputs, const std::string& name) {
    return describe(get().finish(outputs, name));
  }

 private:
  aten::Trace& get() {
    TPU_CHECK(trace_ != nullptr, "the trace is over");
    return *trace_;
  }
  std::string generation_;
  int device_;
  std::unique_ptr<aten::Trace> trace_;
};

// A context manager: operators are lowered for a generation of TPUs, and run where they are.
class PyTarget {
 public:
  explicit PyTarget(std::string generation) : generation_(std::move(generation)) {}
  void enter() { scope_ = std::make_unique<aten::TargetScope>(lowering::tpu_target(generation_)); }
  void exit() { scope_.reset(); }

 private:
  std::string generation_;
  std::unique_ptr<aten::TargetScope> scope_;
};

py::list choices(const std::string& generation) {
  py::list out;
  for (const lowering::Choice& c : lowering::choices(lowering::tpu_target(generation)))
    out.append(py::make_tuple(c.what, c.form, c.why));
  return out;
}

}  // namespace

void init_trace(py::module_& m) {
  py::class_<PyTrace>(m, "Trace", "While entered, launches of all threads go into one program and don't run.")
      .def(py::init<std::string, int>(), py::arg("generation"), py::arg("device") = 0)
      .def(
          "__enter__",
          [](PyTrace& self) -> PyTrace& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](PyTrace& self, const py::object&, const py::object&, const py::object&) { self.exit(); })
      .def("input", &PyTrace::input, py::arg("like"),
           "A tensor without data, of the size, strides and dtype of `like`.")
      .def("finish", &PyTrace::finish, py::arg("outputs"), py::arg("name"));
  py::class_<PyTarget>(m, "Target", "While entered, operators take the forms for a TPU, and run where they are.")
      .def(py::init<std::string>(), py::arg("generation"))
      .def("__enter__", &PyTarget::enter)
      .def("__exit__", [](PyTarget& self, const py::object&, const py::object&, const py::object&) { self.exit(); });
  m.def("start_watching", &runtime::start_watching);
  m.def("next_seen", [](double seconds) -> py::object {
    std::optional<runtime::SeenProgram> program;
    {
      py::gil_scoped_release unlocked;
      program = runtime::next_seen(seconds);
    }
    if (!program) return py::none();
    return py::make_tuple(program->name, program->line, program->mlir);
  });
  m.def("target_choices", &choices, py::arg("generation"));
}

}  // namespace tpu::python
