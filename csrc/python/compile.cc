// SPDX-License-Identifier: Apache-2.0
// Where PyTorch code in Python becomes a program: decompositions and compiled functions.
#include <ATen/core/LegacyTypeDispatch.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "aten/captured.h"
#include "aten/kernel.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace tpu::python {
namespace {

// Calls `function(name, overload, *arguments)` and pushes its results as the schema's returns.
void run_python(const py::object& function, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  py::gil_scoped_acquire gil;
  const c10::FunctionSchema& schema = op.schema();
  const size_t n = schema.arguments().size();
  py::tuple arguments(n + 2);
  arguments[0] = schema.name();
  arguments[1] = schema.overload_name();
  for (size_t i = 0; i < n; ++i) {
    const c10::IValue& value = (*stack)[stack->size() - n + i];
    py::object object = torch::jit::toPyObject(value);
    // The schema alone tells a dtype from an int.
    if (value.isInt() && schema.arguments()[i].real_type()->str().starts_with("ScalarType")) {
      object = py::cast(static_cast<at::ScalarType>(value.toInt()));
    }
    arguments[i + 2] = object;
  }
  torch::jit::drop(*stack, n);
  py::object result = function(*arguments);
  const auto& returns = schema.returns();
  if (returns.size() == 1) {
    stack->push_back(torch::jit::toIValue(result, returns[0].type()));
    return;
  }
  py::sequence results = result;
  for (size_t i = 0; i < returns.size(); ++i) {
    py::object item = results[i];
    stack->push_back(item.is_none() ? c10::IValue(at::Tensor()) : torch::jit::toIValue(item, returns[i].type()));
  }
}

// A Python function of tensors that runs as one program for each kind of arguments.
class CompiledFunction {
 public:
  CompiledFunction(const py::object& function)
      : op_(c10::Dispatcher::singleton().findSchemaOrThrow("tpu::compiled", "")),
        kernel_(definition(), op_.schema(), true, [function](const c10::OperatorHandle&, torch::jit::Stack* stack) {
          py::gil_scoped_acquire gil;
          c10::IValue inputs = torch::jit::pop(*stack);
          py::list list;
          for (const at::Tensor& t : inputs.toTensorVector()) list.append(t);
          py::sequence results = function(list);
          c10::List<at::Tensor> out;
          for (py::handle r : results) out.push_back(r.cast<at::Tensor>());
          stack->push_back(out);
        }) {}

  std::vector<at::Tensor> call(const std::vector<at::Tensor>& inputs) {
    py::gil_scoped_release unlocked;
    at::AutoDispatchBelowADInplaceOrView below;
    torch::jit::Stack stack;
    c10::List<at::Tensor> list;
    list.reserve(inputs.size());
    for (const at::Tensor& t : inputs) list.push_back(t);
    stack.push_back(std::move(list));
    try {
      kernel_(op_, {}, &stack);
    } catch (const aten::TraceFailed& failure) {
      TORCH_CHECK(false, failure.what());
    }
    return stack.back().toTensorVector();
  }

 private:
  static const lowering::OpDef& definition() {
    static const lowering::OpDef& def =
        aten::captured_definition(c10::Dispatcher::singleton().findSchemaOrThrow("tpu::compiled", "").schema());
    return def;
  }
  c10::OperatorHandle op_;
  aten::OpKernel kernel_;
};

}  // namespace

void init_compile(py::module_& m) {
  m.def(
      "_register_decompositions",
      [](const std::vector<std::string>& operators, py::object function) {
        // Never freed: the dispatcher may call it until the interpreter is gone.
        auto* held = new py::object(std::move(function));
        aten::register_decompositions(operators, [held](const c10::OperatorHandle& op, torch::jit::Stack* stack) {
          run_python(*held, op, stack);
        });
      },
      py::arg("operators"), py::arg("function"));
  py::class_<CompiledFunction>(m, "CompiledFunction", "A function of tensors that runs as one program.")
      .def(py::init<py::object>(), py::arg("function"))
      .def("__call__", &CompiledFunction::call, py::arg("inputs"));
}

}  // namespace tpu::python
