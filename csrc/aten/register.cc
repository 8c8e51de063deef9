// SPDX-License-Identifier: Apache-2.0
#include "aten/register.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "aten/fallback.h"
#include "aten/kernel.h"
#include "aten/profiler.h"
#include "aten/sparse.h"
#include "aten/storage.h"
#include "aten/views.h"
#include "base/error.h"
#include "base/log.h"
#include "lowering/op.h"

namespace tpu::aten {
namespace {

using c10::FunctionSchema;

bool same_types(const FunctionSchema& a, const FunctionSchema& b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (*a.arguments()[i].type() != *b.arguments()[i].type()) return false;
  }
  return true;
}

size_t out_arguments(const FunctionSchema& schema) {
  size_t n = 0;
  for (const auto& arg : schema.arguments()) n += arg.is_out();
  return n;
}

bool is_written(const c10::Argument& arg) { return arg.alias_info() && arg.alias_info()->isWrite(); }

bool mutates(const FunctionSchema& schema) {
  for (const auto& arg : schema.arguments()) {
    if (is_written(arg)) return true;
  }
  return false;
}

bool is_out_form(const FunctionSchema& functional, const FunctionSchema& other) {
  const size_t n = functional.arguments().size(), outs = out_arguments(other);
  return outs > 0 && other.arguments().size() == n + outs && same_types(functional, other, n);
}

bool is_in_place_form(const FunctionSchema& functional, const FunctionSchema& other) {
  const size_t n = functional.arguments().size();
  if (n == 0 || other.arguments().size() != n || !same_types(functional, other, n)) return false;
  if (!is_written(other.arguments()[0])) return false;
  for (size_t i = 1; i < n; ++i) {
    if (is_written(other.arguments()[i])) return false;
  }
  return true;
}

// All overloads by qualified name without overload: "aten::add".
using Index = std::unordered_map<std::string, std::vector<c10::OperatorName>>;

Index make_index() {
  Index index;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) index[name.name].push_back(name);
  return index;
}

std::vector<Registered>& mutable_registered() {
  static auto* list = new std::vector<Registered>;
  return *list;
}

class Registration {
 public:
  Registration() : index_(make_index()) {}

  void add(const lowering::OpDef& def) {
    const size_t colons = def.name.find("::");
    const std::string qualified = colons == std::string::npos ? "aten::" + def.name : def.name;
    const size_t dot = qualified.find('.', qualified.find("::"));
    const std::string base = qualified.substr(0, dot);
    const std::string overload = dot == std::string::npos ? "" : qualified.substr(dot + 1);
    auto handle = c10::Dispatcher::singleton().findSchema({base, overload});
    if (!handle) fail(ErrorKind::Internal, def.file, ":", def.line, ": PyTorch has no operator '", def.name, "'");
    const FunctionSchema& schema = handle->schema();
    bind(def, schema, true);
    if (mutates(schema) || !def.options.writes.empty()) return;
    for (const c10::OperatorName& name : index_[base]) try_form(def, schema, name, is_out_form);
    for (const c10::OperatorName& name : index_[base + "_"]) try_form(def, schema, name, is_in_place_form);
  }

 private:
  template <class Matches>
  void try_form(const lowering::OpDef& def, const FunctionSchema& functional, const c10::OperatorName& name,
                Matches matches) {
    auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (handle && matches(functional, handle->schema())) bind(def, handle->schema(), false);
  }

  void bind(const lowering::OpDef& def, const FunctionSchema& schema, bool named) {
    const std::string full = c10::toString(schema.operator_name());
    if (!bound_.insert(full).second) {
      // A lowering of its own for a form comes first or second: the first stands, two by name clash.
      if (named && named_.contains(full)) {
        fail(ErrorKind::Internal, def.file, ":", def.line, ": '", def.name, "' is lowered twice");
      }
      return;
    }
    if (named) named_.insert(full);
    library(schema.operator_name().name.substr(0, schema.operator_name().name.find("::")))
        .impl(full.substr(full.find("::") + 2).c_str(),
              torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OpKernel>(def, schema, named)));
    mutable_registered().push_back({full, def.name, def.file, def.line});
  }

  torch::Library& library(const std::string& ns) {
    static auto* libraries = new std::unordered_map<std::string, std::unique_ptr<torch::Library>>;
    auto& library = (*libraries)[ns];
    if (!library) {
      library =
          std::make_unique<torch::Library>(torch::Library::IMPL, ns, c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    }
    return *library;
  }

  Index index_;
  std::unordered_set<std::string> bound_, named_;
};

}  // namespace

const std::vector<Registered>& registered() { return mutable_registered(); }

void register_all() {
  static bool done = false;
  if (done) return;
  c10::SetAllocator(c10::DeviceType::PrivateUse1, allocator());
  log::set_warning_sink([](const std::string& text) { TORCH_WARN(text); });
  define_own_operators();
  Registration registration;
  // Lowerings of single forms first, so that they win over the derived ones.
  for (const auto& def : lowering::registry()) registration.add(def);
  register_views();
  register_sparse();
  register_fallback();
  register_profiler();
  done = true;
}

}  // namespace tpu::aten
