// SPDX-License-Identifier: Apache-2.0
// Where PyTorch code in Python becomes a program: decompositions and compiled functions.
#include <ATen/core/LegacyTypeDispatch.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>
#include <vector>

#include "aten/captured.h"
#include "aten/captured_control.h"
#include "aten/captured_run.h"
#include "aten/copy.h"
#include "aten/kernel.h"
#include "aten/storage.h"
#include "python/bindings.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/program.h"

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

// Where one output of a compiled graph comes from.
struct Output {
  enum class From : uint8_t { Result, Input, View, Constant } from = From::Constant;
  size_t index = 0;  // Result: of the program; Input, View: among the tensors given
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;  // View: from where the input begins
  py::object constant;
};
using Layout = std::vector<Output>;

std::shared_ptr<const Layout> held(Layout layout) {
  return {new Layout(std::move(layout)), [](const Layout* dead) {
            py::gil_scoped_acquire gil;
            delete dead;
          }};
}

// What the thread's call in progress knows while its body is traced.
struct Pending {
  const std::vector<at::Tensor>* tensors;
  std::unique_ptr<py::error_already_set> error;
};
thread_local Pending* pending = nullptr;

// A function of a list of tensors and numbers that runs as one program for each kind of arguments.
// The numbers are part of the program.
class CompiledGraph {
 public:
  // trace(arguments): called with placeholder tensors, once for each program. `options`: XLA's. `shown`: its name in
  // torch.tpu.compile_report().
  CompiledGraph(py::object trace, runtime::OptionsScope::Options options, std::string shown)
      : op_(c10::Dispatcher::singleton().findSchemaOrThrow("tpu::compiled", "")),
        trace_(std::move(trace)),
        options_(std::move(options)),
        shown_(std::move(shown)) {}

  // Takes the arguments out of the list, as AOTAutograd's boxed convention has it, once the program is launched.
  py::list call(const py::list& arguments) {
    std::vector<at::Tensor> tensors;
    py::list rest;
    bool all_ours = true;
    const auto count = static_cast<size_t>(PyList_GET_SIZE(arguments.ptr()));
    tensors.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      PyObject* item = PyList_GET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i));
      if (THPVariable_Check(item)) [[likely]] {
        tensors.push_back(THPVariable_Unpack(item));
        all_ours &= tensors.back().is_privateuseone();
      } else {
        rest.append(py::make_tuple(i, py::reinterpret_borrow<py::object>(item)));
      }
    }
    aten::OpKernel& kernel = kernel_for(rest, count);
    Pending here{&tensors, nullptr};
    Pending* outer = std::exchange(pending, &here);
    c10::SmallVector<at::Tensor, 4> results;
    const Layout* layout = nullptr;
    try {
      py::gil_scoped_release unlocked;
      at::AutoDispatchBelowADInplaceOrView below;
      const runtime::OptionsScope scope(options_);
      std::vector<at::Tensor> moved;
      if (!all_ours) {
        moved.reserve(tensors.size());
        for (const at::Tensor& t : tensors) moved.push_back(t.is_privateuseone() ? t : uploaded(t, tensors));
      }
      layout = static_cast<const Layout*>(kernel.call(op_, all_ours ? tensors : moved, results).note.get());
    } catch (const aten::TraceFailed& failure) {
      pending = outer;
      if (here.error) throw py::error_already_set(std::move(*here.error));
      TORCH_CHECK(false, failure.what());
    } catch (...) {
      pending = outer;
      throw;
    }
    pending = outer;
    PyList_SetSlice(arguments.ptr(), 0, static_cast<Py_ssize_t>(count), nullptr);
    return outputs(*layout, tensors, results);
  }

  size_t programs() const { return py::len(numbers_); }

  // Processor seconds that one launch of the program by itself takes of this thread, the mean of `times`.
  // `arguments`: tensors that call() has run with.
  double seconds_alone(const std::vector<at::Tensor>& arguments, int times) {
    TORCH_CHECK(plain_, "the graph has not been called yet with tensors alone");
    c10::SmallVector<at::Tensor, 4> results;
    py::gil_scoped_release unlocked;
    at::AutoDispatchBelowADInplaceOrView below;
    const runtime::OptionsScope scope(options_);
    const aten::OpPlan& plan = plain_->call(op_, arguments, results);
    std::vector<runtime::Operand> operands;
    for (int i : plan.operands) {
      operands.push_back({aten::value_of(aten::slot_of(
          *arguments[static_cast<size_t>(i)].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()))});
    }
    return runtime::seconds_alone(const_cast<runtime::Plan&>(plan.plan), arguments.at(0).device().index(), operands,
                                  times);
  }

 private:
  static const lowering::OpDef& definition() {
    static const lowering::OpDef& def =
        aten::captured_definition(c10::Dispatcher::singleton().findSchemaOrThrow("tpu::compiled", "").schema());
    return def;
  }

  // A number on the CPU among the device's tensors.
  static at::Tensor uploaded(const at::Tensor& t, const std::vector<at::Tensor>& tensors) {
    int device = runtime::current_device();
    for (const at::Tensor& other : tensors) {
      if (other.is_privateuseone()) device = other.device().index();
    }
    return aten::to_device(t, device);
  }

  // The kernel for these (position, number) pairs: each has programs of its own.
  aten::OpKernel& kernel_for(const py::list& rest, size_t count) {
    if (py::len(rest) == 0 && plain_) [[likely]]
      return *plain_;
    py::tuple key(rest);
    if (numbers_.contains(key)) return *kernels_[numbers_[key].cast<size_t>()];
    kernels_.push_back(std::make_unique<aten::OpKernel>(
        definition(), op_.schema(), true,
        [this, key, count](const c10::OperatorHandle&, torch::jit::Stack* stack) { trace(key, count, stack); }));
    std::vector<aten::ArgumentNote> fixed;
    for (py::handle pair : key) {
      const auto position = pair[py::int_(0)].cast<int>();
      aten::ArgumentNote& note = fixed.emplace_back();
      note.what = aten::ArgumentNote::What::Setting;
      note.argument = 1 + position;
      note.text = py::str(pair[py::int_(1)]);
      note.name = "number " + std::to_string(position);
    }
    kernels_.back()->describe(shown_, history_, std::move(fixed));
    numbers_[key] = kernels_.size() - 1;
    if (py::len(rest) == 0) plain_ = kernels_.back().get();
    return *kernels_.back();
  }

  void trace(const py::tuple& numbers, size_t count, torch::jit::Stack* stack) {
    py::gil_scoped_acquire gil;
    const std::vector<at::Tensor> placeholders = torch::jit::pop(*stack).toTensorVector();
    py::list arguments;
    size_t next_number = 0, next_tensor = 0;
    for (size_t i = 0; i < count; ++i) {
      if (next_number < numbers.size()) {
        py::tuple number = numbers[next_number];
        if (number[0].cast<size_t>() == i) {
          arguments.append(number[1]);
          ++next_number;
          continue;
        }
      }
      arguments.append(placeholders[next_tensor++]);
    }
    try {
      py::sequence results = trace_(arguments);
      c10::List<at::Tensor> fresh;
      Layout layout;
      for (py::handle r : results) layout.push_back(place(r, placeholders, fresh));
      aten::attach_to_plan(held(std::move(layout)));
      stack->push_back(fresh);
    } catch (py::error_already_set& error) {
      if (pending) pending->error = std::make_unique<py::error_already_set>(error);
      throw;
    }
  }

  // An output that is an input, or a view of one, needs no copy out of the program.
  static Output place(py::handle result, const std::vector<at::Tensor>& placeholders, c10::List<at::Tensor>& fresh) {
    Output out;
    if (!THPVariable_Check(result.ptr())) {
      out.constant = py::reinterpret_borrow<py::object>(result);
      return out;
    }
    const at::Tensor& t = THPVariable_Unpack(result.ptr());
    for (size_t i = 0; i < placeholders.size() && t.is_privateuseone(); ++i) {
      const at::Tensor& made = placeholders[i];
      if (!made.defined() || !made.storage().is_alias_of(t.storage())) continue;
      out.index = i;
      if (made.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) {
        out.from = Output::From::Input;
        return out;
      }
      const at::Tensor& given = (*pending->tensors)[i];
      const bool same = given.is_privateuseone() && made.strides() == given.strides() &&
                        made.scalar_type() == t.scalar_type() && !given.is_conj() && !given.is_neg() && !t.is_conj() &&
                        !t.is_neg();
      if (!same) break;
      out.from = Output::From::View;
      out.sizes = t.sizes().vec();
      out.strides = t.strides().vec();
      out.offset = t.storage_offset();
      return out;
    }
    out.from = Output::From::Result;
    out.index = fresh.size();
    fresh.push_back(t);
    return out;
  }

  static py::list outputs(const Layout& layout, const std::vector<at::Tensor>& tensors,
                          c10::ArrayRef<at::Tensor> results) {
    py::list list(layout.size());
    for (size_t i = 0; i < layout.size(); ++i) {
      const Output& out = layout[i];
      PyObject* object = nullptr;
      switch (out.from) {
        case Output::From::Result: object = THPVariable_Wrap(results[out.index]); break;
        case Output::From::Input: object = THPVariable_Wrap(tensors[out.index]); break;
        case Output::From::View: {
          const at::Tensor& base = tensors[out.index];
          object = THPVariable_Wrap(aten::make_tensor(base.storage(), out.sizes, out.strides,
                                                      base.storage_offset() + out.offset, base.scalar_type()));
          break;
        }
        case Output::From::Constant: object = py::object(out.constant).release().ptr(); break;
      }
      PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), object);
    }
    return list;
  }

  c10::OperatorHandle op_;
  py::object trace_;
  runtime::OptionsScope::Options options_;
  std::string shown_;
  py::dict numbers_;  // the pairs to a position among the kernels
  std::vector<std::unique_ptr<aten::OpKernel>> kernels_;
  aten::OpKernel* plain_ = nullptr;  // for no numbers at all
  std::shared_ptr<aten::CallHistory> history_ = std::make_shared<aten::CallHistory>();
};

// A Python function from tensors to tensors for code that is being captured.
aten::TensorFunction function_of(const py::function& function) {
  return [function](const aten::Tensors& given) {
    py::tuple arguments = py::cast(given);
    py::object result = function(*arguments);
    if (THPVariable_Check(result.ptr())) return aten::Tensors{THPVariable_Unpack(result.ptr())};
    return result.cast<aten::Tensors>();
  };
}

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
  py::class_<CompiledGraph>(m, "CompiledGraph", "A function of tensors and numbers that runs as one program.")
      .def(py::init<py::object, runtime::OptionsScope::Options, std::string>(), py::arg("trace"),
           py::arg("options") = runtime::OptionsScope::Options{}, py::arg("shown") = "the compiled graph")
      .def("__call__", &CompiledGraph::call, py::arg("arguments"))
      .def("seconds_alone", &CompiledGraph::seconds_alone, py::arg("arguments"), py::arg("times"))
      .def_property_readonly("programs", &CompiledGraph::programs);
  m.def(
      "captured_if",
      [](const at::Tensor& condition, const py::function& then, const py::function& otherwise,
         const aten::Tensors& operands) {
        return aten::captured_if(condition, function_of(then), function_of(otherwise), operands);
      },
      py::arg("condition"), py::arg("then"), py::arg("otherwise"), py::arg("operands"));
  m.def(
      "captured_while",
      [](const aten::Tensors& state, const py::function& condition, const py::function& body) {
        return aten::captured_while(state, function_of(condition), function_of(body));
      },
      py::arg("state"), py::arg("condition"), py::arg("body"));
  m.def(
      "captured_scan",
      [](const aten::Tensors& carry, const aten::Tensors& xs, const py::function& body) {
        return aten::captured_scan(carry, xs, function_of(body));
      },
      py::arg("carry"), py::arg("xs"), py::arg("body"));
  m.def("captured_random_state", &aten::captured_random_state);
  m.def(
      "captured_with_random_state",
      [](const at::Tensor& state, const py::function& function, const aten::Tensors& inputs) {
        return aten::captured_with_random_state(state, function_of(function), inputs);
      },
      py::arg("state"), py::arg("function"), py::arg("inputs"));
  m.def("is_capturing", [] { return aten::captures_control(); });
}

}  // namespace tpu::python
