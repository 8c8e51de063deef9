// SPDX-License-Identifier: Apache-2.0
// The compiler alone: programs for a TPU topology that need not be present. The module
// torch_tpu._compiler needs no PyTorch: the worker process of torch_tpu.aot loads just it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "pjrt/topology.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

// Python's bool is an int to pybind11 as well: asked for first.
pjrt::Option option(py::handle value) {
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<float>();
  return value.cast<std::string>();
}

// A compiled program of a topology.
class AotProgram {
 public:
  explicit AotProgram(pjrt::Compiled compiled) : compiled_(std::move(compiled)) {}

  std::map<std::string, double> cost() const { return compiled_.cost_analysis(); }
  py::dict memory() const {
    const pjrt::MemoryStats m = compiled_.memory();
    py::dict out;
    out["code"] = m.code;
    out["arguments"] = m.arguments;
    out["outputs"] = m.outputs;
    out["aliased"] = m.aliased;
    out["temporaries"] = m.temporaries;
    out["peak"] = m.peak;
    return out;
  }
  py::bytes serialized() const { return compiled_.serialize(); }
  py::tuple optimized() const {
    const pjrt::OptimizedProgram program = compiled_.optimized();
    return py::make_tuple(program.format, py::bytes(program.code));
  }

 private:
  pjrt::Compiled compiled_;
};

class AotTopology {
 public:
  AotTopology(const std::string& library, const std::string& name)
      : topology_(pjrt::Topology::create(pjrt::Plugin::load(library), name)) {}

  std::vector<std::string> device_kinds() const { return topology_->device_kinds(); }
  std::map<std::string, std::string> attributes() const { return topology_->attributes(); }
  std::unique_ptr<AotProgram> compile(const std::string& text, const py::dict& flags) const {
    pjrt::CompileOptions options;
    for (const auto& [name, value] : flags) options.env_overrides.emplace_back(name.cast<std::string>(), option(value));
    py::gil_scoped_release unlocked;
    return std::make_unique<AotProgram>(topology_->compile(text, pjrt::serialize(options)));
  }

 private:
  std::unique_ptr<pjrt::Topology> topology_;
};

}  // namespace
}  // namespace tpu::python

PYBIND11_MODULE(_compiler, m) {
  using tpu::python::AotProgram;
  using tpu::python::AotTopology;
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const tpu::Error& error) {
      const bool memory = error.kind() == tpu::ErrorKind::OutOfMemory;
      PyErr_SetString(memory ? PyExc_MemoryError : PyExc_RuntimeError, error.what());
    }
  });
  py::class_<AotProgram>(m, "AotProgram", "A program compiled for a topology.")
      .def("cost", &AotProgram::cost)
      .def("memory", &AotProgram::memory)
      .def("serialized", &AotProgram::serialized)
      .def("optimized", &AotProgram::optimized, "Format and bytes of the program after XLA's passes.");
  py::class_<AotTopology>(m, "AotTopology", "The compiler of a PJRT plugin, for devices that need not be here.")
      .def(py::init<const std::string&, const std::string&>(), py::arg("library"), py::arg("name"))
      .def("device_kinds", &AotTopology::device_kinds)
      .def("attributes", &AotTopology::attributes)
      .def("compile", &AotTopology::compile, py::arg("text"), py::arg("flags"));
}
