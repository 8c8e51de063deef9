// SPDX-License-Identifier: Apache-2.0
// The operators as they were registered, for `python -m torch_tpu op`.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "aten/register.h"
#include "lowering/op.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

// A tuple each: overload, lowering, file, line, kinds of the lowering's parameters.
py::list registered() {
  std::map<std::string, const lowering::OpDef*> defs;
  for (const lowering::OpDef& def : lowering::registry()) defs.emplace(def.name, &def);
  py::list out;
  for (const aten::Registered& entry : aten::registered()) {
    std::vector<std::string> kinds;
    for (lowering::Kind kind : defs.at(entry.lowering)->kinds) kinds.emplace_back(lowering::kind_name(kind));
    out.append(py::make_tuple(entry.overload, entry.lowering, entry.file, entry.line, kinds));
  }
  return out;
}

}  // namespace

void init_registry(py::module_& m) { m.def("registered", &registered); }

}  // namespace tpu::python
