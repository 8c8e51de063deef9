// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include "aten/engine.h"
#include "aten/register.h"
#include "base/error.h"
#include "python/bindings.h"

namespace tpu::python {
namespace {

void set_error(PyObject* type, const char* text) { PyErr_SetString(type, text); }

PyObject* out_of_memory_type() {
  static PyObject* type = pybind11::object(pybind11::module_::import("torch").attr("OutOfMemoryError")).release().ptr();
  return type;
}

void translate(std::exception_ptr pending) {
  try {
    if (pending) std::rethrow_exception(pending);
  } catch (const tpu::Error& error) {
    switch (error.kind()) {
      case ErrorKind::Value: return set_error(PyExc_ValueError, error.what());
      case ErrorKind::Type: return set_error(PyExc_TypeError, error.what());
      case ErrorKind::Index: return set_error(PyExc_IndexError, error.what());
      case ErrorKind::NotImplemented: return set_error(PyExc_NotImplementedError, error.what());
      case ErrorKind::OutOfMemory: return set_error(out_of_memory_type(), error.what());
      case ErrorKind::Linalg:
      case ErrorKind::Runtime:
      case ErrorKind::Internal: return set_error(PyExc_RuntimeError, error.what());
    }
  } catch (const c10::OutOfMemoryError& error) {
    set_error(out_of_memory_type(), error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    set_error(PyExc_IndexError, error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    set_error(PyExc_ValueError, error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    set_error(PyExc_TypeError, error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    set_error(PyExc_NotImplementedError, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    set_error(PyExc_RuntimeError, error.what_without_backtrace());
  }
}

}  // namespace
}  // namespace tpu::python

PYBIND11_MODULE(_C, m) {
  pybind11::register_local_exception_translator(tpu::python::translate);
  // Not at import: a bad entry must be a Python error that names its file and line.
  m.def("_add_autograd_workers", &tpu::aten::add_autograd_workers,
        pybind11::call_guard<pybind11::gil_scoped_release>());
  m.def("_register", [] { tpu::aten::register_all(); }, "Registers the kernels of the tpu device with PyTorch.");
  tpu::python::init_device(m);
  tpu::python::init_runtime(m);
  tpu::python::init_testing(m);
  tpu::python::init_compile(m);
  tpu::python::init_padded(m);
  tpu::python::init_registry(m);
  tpu::python::init_trace(m);
  tpu::python::init_location(m);
  tpu::python::init_distributed(m);
}
