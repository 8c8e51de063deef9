// SPDX-License-Identifier: Apache-2.0
// Devices, their memory, and generators, for torch_tpu.tpu.
#include "runtime/device.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "aten/generator.h"
#include "python/bindings.h"
#include "runtime/memory.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;  // opening a plugin takes a second
using runtime::Runtime;

py::dict device_info(int index) {
  Runtime* runtime;
  {
    py::gil_scoped_release unlocked;
    runtime = &Runtime::get();
    runtime::check_device(index);
  }
  const pjrt::Device& device = runtime->device(index);
  py::dict out;
  out["kind"] = device.kind;
  out["description"] = device.description;
  out["id"] = device.id;
  out["total_memory"] = runtime->memory_limit();
  out["is_virtual"] = runtime->is_cpu();
  return out;
}

py::dict plugin_info() {
  Runtime* runtime;
  {
    py::gil_scoped_release unlocked;
    runtime = &Runtime::get();
  }
  py::dict out;
  out["path"] = runtime->plugin().path();
  out["api_version"] = py::make_tuple(runtime->plugin().api_major(), runtime->plugin().api_minor());
  out["platform"] = runtime->client().platform_name();
  out["platform_version"] = runtime->client().platform_version();
  out["attributes"] = runtime->plugin().attributes();
  out["is_virtual"] = runtime->is_cpu();
  return out;
}

py::object default_generator(int index) {
  const at::Generator* generator;
  {
    py::gil_scoped_release unlocked;
    generator = &aten::default_generator(static_cast<c10::DeviceIndex>(index));
  }
  // The generator lives for the process, and remembers its one Python object.
  return py::reinterpret_steal<py::object>(THPGenerator_Wrap(*generator));
}

}  // namespace

void init_device(py::module_& m) {
  m.def("set_bundled_plugin", &runtime::set_bundled_plugin, py::arg("path"));
  m.def("set_libtpu_path", &runtime::set_libtpu_path, py::arg("path"));
  m.def("init", [] { Runtime::get(); }, Unlocked());
  m.def("is_initialized", [] { return Runtime::opened() && !runtime::in_forked_child(); });
  m.def("is_available", &Runtime::available, Unlocked());
  m.def("in_forked_child", &runtime::in_forked_child);
  m.def("plugin_info", &plugin_info);

  m.def("device_count", &runtime::device_count, Unlocked());
  m.def("check_device", &runtime::check_device, py::arg("index"), Unlocked());
  m.def("device_info", &device_info, py::arg("index"));
  m.def("current_device", &runtime::current_device);
  m.def("set_device", &runtime::set_current_device, py::arg("index"), Unlocked());

  m.def("default_generator", &default_generator, py::arg("index"));
  m.def("seed_all", &aten::seed_all, py::arg("seed"), Unlocked());
}

}  // namespace tpu::python
