// SPDX-License-Identifier: Apache-2.0
// Sparse tensors are a few dense ones, which lie on the device. What makes them and takes them apart is PyTorch's own
// code; products with a dense matrix go through the dense form, as a TPU has no other; what else there is runs on the
// CPU, counted.
#include "aten/sparse.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_to_sparse_csr_native.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "aten/fallback.h"

namespace tpu::aten {
namespace {

using at::Tensor;

// Elements that stand at one place add up.
Tensor dense_of_coo(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<bool>) {
  const Tensor values = self._values().to(dtype.value_or(self.scalar_type()));
  const Tensor dense = at::zeros(self.sizes(), values.options());
  if (self._nnz() == 0) return dense;
  if (self.sparse_dim() == 0) return values.sum(0);
  c10::List<std::optional<Tensor>> places;
  for (const Tensor& along : self._indices().unbind(0)) places.push_back(along);
  return dense.index_put(places, values, /*accumulate=*/true);
}

// Of a plain matrix: the rows of CSR and the columns of CSC written out. Blocks, batches and dense dimensions: the
// CPU's.
void dense_of_compressed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Tensor self = torch::jit::peek(*stack, 0, 3).toTensor();
  const bool csr = self.layout() == at::kSparseCsr;
  if ((!csr && self.layout() != at::kSparseCsc) || self.dim() != 2 || self.values().dim() != 1) {
    return fall_back(op, stack, c10::DispatchKey::SparseCsrCPU);
  }
  const c10::IValue dtype = torch::jit::peek(*stack, 1, 3);
  const Tensor values = dtype.isNone() ? self.values() : self.values().to(dtype.toScalarType());
  const Tensor starts = (csr ? self.crow_indices() : self.ccol_indices()).to(at::kLong);
  const Tensor plain = (csr ? self.col_indices() : self.row_indices()).to(at::kLong);
  const Tensor written = at::searchsorted(starts.slice(0, 1), at::arange(values.numel(), starts.options()),
                                          /*out_int32=*/false, /*right=*/true);
  c10::List<std::optional<Tensor>> places;
  places.push_back(csr ? written : plain);
  places.push_back(csr ? plain : written);
  const Tensor zeros = at::zeros(self.sizes(), values.options());
  torch::jit::drop(*stack, 3);
  stack->emplace_back(values.numel() ? zeros.index_put(places, values, /*accumulate=*/true) : zeros);
}

template <c10::DispatchKey kernel>
void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  fall_back(op, stack, kernel);
}

// By name, all that the CPU has a sparse kernel for: a kernel for dense tensors of any backend would come before the
// fallback.
template <c10::DispatchKey kernel>
void send_to_the_cpu(torch::Library& m, c10::DispatchKey key) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || !name.name.starts_with("aten::") || !handle->hasKernelForDispatchKey(kernel)) continue;
    if (handle->hasKernelForDispatchKey(key)) continue;
    m.impl(c10::toString(name).substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_the_cpu<kernel>>());
  }
}

// mm, addmm and the like: (what is added,) two factors, numbers. One sparse factor becomes dense. Of two the product is
// sparse: the CPU's.
template <c10::DispatchKey kernel>
void product(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t n = op.schema().arguments().size();
  int sparse = 0;
  bool added_to = false;
  size_t tensors = 0;
  for (size_t i = 0; i < n && torch::jit::peek(*stack, i, n).isTensor(); ++i, ++tensors) {
    if (torch::jit::peek(*stack, i, n).toTensor().layout() == at::kStrided) continue;
    ++sparse;
    added_to = added_to || i == 0;
  }
  if (sparse != 1 || (added_to && tensors == 3)) return fall_back(op, stack, kernel);
  for (size_t i = 0; i < tensors; ++i) {
    c10::IValue& argument = torch::jit::peek(*stack, i, n);
    if (argument.toTensor().layout() != at::kStrided) argument = argument.toTensor().to_dense();
  }
  op.callBoxed(*stack);
}

// The CPU keeps what the gradient of amax and amin reads only if a factor wants a gradient, which its copy has to say.
void mm_reduce(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Tensor self = torch::jit::peek(*stack, 0, 3).toTensor(), other = torch::jit::peek(*stack, 1, 3).toTensor();
  if (self.requires_grad() || other.requires_grad()) {
    Tensor host = other.detach().cpu();
    host.unsafeGetTensorImpl()->set_requires_grad(true);
    torch::jit::peek(*stack, 1, 3) = host;
  }
  fall_back(op, stack, c10::DispatchKey::SparseCsrCPU);
}

template <c10::DispatchKey kernel>
void register_products(torch::Library& m) {
  for (const char* name : {"mm", "bmm", "mv", "addmm", "addmv"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&product<kernel>>());
  }
}

// How a fallback hands back what it wrote on the CPU.
Tensor copy_back(const Tensor& from, const Tensor& to) { return Tensor(to).copy_(from); }

void register_coo(torch::Library& m) {
  namespace native = at::native;
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(native::new_with_dims_sparse));
  m.impl("empty.memory_format", TORCH_FN(native::empty_sparse_symint));
  m.impl("_nnz", TORCH_FN(native::_nnz_sparse));
  m.impl("_indices", TORCH_FN(native::_indices_sparse));
  m.impl("_values", TORCH_FN(native::_values_sparse));
  m.impl("indices", TORCH_FN(native::indices_sparse));
  m.impl("values", TORCH_FN(native::values_sparse));
  m.impl("is_coalesced", TORCH_FN(native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(native::_coalesced_sparse_));
  m.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(native::dense_dim_sparse));
  m.impl("sparse_resize_", TORCH_FN(native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(native::sparse_resize_and_clear_));
  m.impl("resize_as_sparse_", TORCH_FN(native::resize_as_sparse_));
  m.impl("copy_", TORCH_FN(native::copy_sparse_wrapper_));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(native::copy_sparse_));
  m.impl("clone", TORCH_FN(native::clone_sparse));
  m.impl("_to_dense", TORCH_FN(dense_of_coo));
  register_products<c10::DispatchKey::SparseCPU>(m);
  m.impl("_copy_from_and_resize", TORCH_FN(copy_back));
}

void register_compressed(torch::Library& m) {
  namespace native = at::native;
  m.impl("empty.memory_format", TORCH_FN(native::empty_sparse_compressed_symint));
  m.impl("_nnz", TORCH_FN(native::_nnz_sparse_csr));
  m.impl("values", TORCH_FN(native::values_sparse_csr));
  m.impl("crow_indices", TORCH_FN(native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(native::row_indices_sparse_csr));
  m.impl("sparse_dim", TORCH_FN(native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(native::dense_dim_sparse_csr));
  m.impl("resize_as_sparse_", TORCH_FN(native::resize_as_sparse_compressed_));
  m.impl("copy_", TORCH_FN(native::copy_sparse_compressed_));
  m.impl("clone", TORCH_FN(native::clone_sparse_compressed));
  m.impl("_to_dense", torch::CppFunction::makeFromBoxedFunction<&dense_of_compressed>());
  m.impl("_sparse_mm_reduce_impl", torch::CppFunction::makeFromBoxedFunction<&mm_reduce>());
  register_products<c10::DispatchKey::SparseCsrCPU>(m);
  m.impl("_copy_from_and_resize", TORCH_FN(copy_back));
}

}  // namespace

void register_sparse() {
  using c10::DispatchKey;
  const auto library = [](const char* name, DispatchKey key) {
    return new torch::Library(torch::Library::IMPL, name, key, __FILE__, __LINE__);
  };
  static auto* coo = library("aten", DispatchKey::SparsePrivateUse1);
  static auto* compressed = library("aten", DispatchKey::SparseCsrPrivateUse1);
  static auto* dense = library("aten", DispatchKey::PrivateUse1);
  static auto* coo_rest = library("_", DispatchKey::SparsePrivateUse1);
  static auto* compressed_rest = library("_", DispatchKey::SparseCsrPrivateUse1);
  register_coo(*coo);
  register_compressed(*compressed);
  using FromDense = Tensor(const Tensor&, std::optional<at::Layout>, at::OptionalIntArrayRef, std::optional<int64_t>);
  dense->impl("_to_sparse", static_cast<FromDense*>(&at::native::dense_to_sparse));
  dense->impl("_to_sparse.sparse_dim", static_cast<Tensor (*)(const Tensor&, int64_t)>(&at::native::dense_to_sparse));
  dense->impl("_to_sparse_csr", TORCH_FN(at::native::dense_to_sparse_csr));
  send_to_the_cpu<DispatchKey::SparseCPU>(*coo, DispatchKey::SparsePrivateUse1);
  send_to_the_cpu<DispatchKey::SparseCsrCPU>(*compressed, DispatchKey::SparseCsrPrivateUse1);
  coo_rest->fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu<DispatchKey::SparseCPU>>());
  compressed_rest->fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu<DispatchKey::SparseCsrCPU>>());
}

}  // namespace tpu::aten
