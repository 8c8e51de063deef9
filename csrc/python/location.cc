// SPDX-License-Identifier: Apache-2.0
// The line of the user's Python that is being run.
#include "base/location.h"

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "python/bindings.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

std::string* library_folders() {
  static std::string folders[2];  // of torch and of torch_tpu
  return folders;
}

// The innermost frame from `frame` outwards that is no library's. Takes over the reference.
std::string user_line(PyFrameObject* frame) {
  std::string innermost;
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(code->co_filename, &size);
    const std::string_view file = text ? std::string_view(text, static_cast<size_t>(size)) : std::string_view();
    if (!text) PyErr_Clear();
    const auto line = [&] { return std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame)); };
    bool library = file.empty() || file.front() == '<';
    for (int i = 0; i < 2; ++i) {
      const std::string& folder = library_folders()[i];
      library = library || (!folder.empty() && file.starts_with(folder));
    }
    if (innermost.empty() && !file.empty()) innermost = line();
    std::string found = library ? std::string() : line();
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
    if (!found.empty()) {
      Py_XDECREF(frame);
      return found;
    }
  }
  return innermost;
}

std::string location() {
  if (!Py_IsInitialized()) return {};
  py::gil_scoped_acquire gil;
  if (PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get())) return user_line(frame);
  // A thread of autograd: whoever waits for it is in backward(). The main thread, most likely.
  for (PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); state != nullptr;
       state = PyThreadState_Next(state)) {
    if (PyThreadState_Next(state) != nullptr) continue;  // the oldest comes last
    if (PyFrameObject* frame = PyThreadState_GetFrame(state)) return user_line(frame);
  }
  return {};
}

}  // namespace

void init_location(py::module_& m) {
  m.def(
      "set_library_folders",
      [](const std::string& torch, const std::string& own) {
        library_folders()[0] = torch;
        library_folders()[1] = own;
        set_location_source(&location);
      },
      py::arg("torch"), py::arg("own"));
  m.def("user_location", &user_location);
}

}  // namespace tpu::python
