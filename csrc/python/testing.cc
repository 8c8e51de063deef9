// SPDX-License-Identifier: Apache-2.0
// What tests reach into: `torch_tpu._C.testing`. No other Python uses it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/hash.h"
#include "python/bindings.h"
#include "runtime/disk_cache.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

Hash128 key_of(const std::string& name) {
  Hash128 key;
  key.add(name);
  return key;
}

}  // namespace

void init_testing(py::module_& parent) {
  py::module_ m = parent.def_submodule("testing");
  m.def("cache_name", [](const std::string& name) { return key_of(name).hex(); });
  m.def("cache_store", [](const std::string& name, const std::string& content) {
    py::gil_scoped_release unlocked;
    runtime::disk_cache::store(key_of(name), content);
  });
  m.def("cache_load", [](const std::string& name) -> std::optional<py::bytes> {
    std::optional<std::string> content;
    {
      py::gil_scoped_release unlocked;
      content = runtime::disk_cache::load(key_of(name));
    }
    return content ? std::optional<py::bytes>(*content) : std::nullopt;
  });
  m.def("cache_discard", [](const std::string& name) { runtime::disk_cache::discard(key_of(name)); });
}

}  // namespace tpu::python
