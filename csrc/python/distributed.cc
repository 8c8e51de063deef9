// SPDX-License-Identifier: Apache-2.0
// The c10d backend, for torch_tpu.distributed.
#include <torch/csrc/utils/pybind.h>

#include "distributed/gloo.h"
#include "distributed/process_group.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace tpu::python {

void init_distributed(py::module_& m) {
  m.def(
      "gloo_process_group",
      [](c10::intrusive_ptr<c10d::Backend> gloo, c10::intrusive_ptr<c10d::Store> store, std::string group,
         std::string name, int64_t timeout_ms,
         const std::vector<uint64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
        const int rank = gloo->getRank(), size = gloo->getSize();
        auto made = c10::make_intrusive<distributed::ProcessGroup>(
            distributed::gloo_transport(std::move(gloo), std::move(store), group), std::move(name), rank, size,
            std::chrono::milliseconds(timeout_ms));
        made->getBackendOptions()->group_name = group;
        made->getBackendOptions()->global_ranks_in_group = ranks;
        return made;
      },
      py::arg("gloo"), py::arg("store"), py::arg("group"), py::arg("name"), py::arg("timeout_ms"), py::arg("ranks"));
  m.def(
      "drain_process_groups", [](int64_t limit_ms) { distributed::drain_all(std::chrono::milliseconds(limit_ms)); },
      py::arg("limit_ms"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace tpu::python
