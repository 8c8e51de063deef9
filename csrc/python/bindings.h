// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace tpu::python {

// Each adds the functions of one file to the module torch_tpu._C.
void init_device(pybind11::module_& m);
void init_runtime(pybind11::module_& m);
void init_testing(pybind11::module_& m);
void init_compile(pybind11::module_& m);
void init_padded(pybind11::module_& m);
void init_registry(pybind11::module_& m);
void init_trace(pybind11::module_& m);
void init_location(pybind11::module_& m);
void init_distributed(pybind11::module_& m);

}  // namespace tpu::python
