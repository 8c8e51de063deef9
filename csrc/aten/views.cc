// SPDX-License-Identifier: Apache-2.0
#include "aten/views.h"

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/as_strided_scatter_compositeexplicitautogradnonfunctional_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "aten/attention.h"
#include "aten/composed.h"
#include "aten/copy.h"
#include "aten/error.h"
#include "aten/grouped.h"
#include "aten/kernel.h"
#include "aten/observed.h"
#include "aten/sized.h"
#include "aten/storage.h"
#include "runtime/device.h"

namespace tpu::aten {

namespace {

int device_index(std::optional<c10::Device> device) {
  if (!device || !device->has_index()) return runtime::current_device();
  const int index = device->index();
  TORCH_CHECK(index < runtime::device_count(), "invalid device tpu:", index, ": there ",
              runtime::device_count() == 1 ? "is " : "are ", runtime::device_count(),
              runtime::device_count() == 1 ? " device" : " devices");
  return index;
}

at::Tensor empty_with(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype_opt,
                      std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  return guarded([&] {
    TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
    runtime::Runtime::get();
    const at::ScalarType dtype = dtype_opt.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
    const hlo::DType type = dtype_of(dtype);
    const auto itemsize = static_cast<size_t>(hlo::byte_size(type));
    const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, itemsize);
    hlo::Dims dims{static_cast<int64_t>(nbytes / itemsize)};
    const int64_t count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    if (dims[0] == count) dims = physical_dims(sizes, strides);  // dense
    return make_tensor(make_storage(nbytes, device_index(device), runtime::intern({type, dims})), sizes, strides, 0,
                       dtype);
  });
}

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided, "the tpu device has no tensors of layout ", *layout);
  const at::MemoryFormat chosen = format.value_or(at::MemoryFormat::Contiguous);
  TORCH_CHECK(chosen != at::MemoryFormat::Preserve, "empty: memory format option 'preserve' is not supported");
  std::vector<int64_t> strides(sizes.size(), 1);
  if (chosen == at::MemoryFormat::ChannelsLast) {
    TORCH_CHECK(sizes.size() == 4, "required rank 4 tensor to use channels_last format");
    const auto cl = c10::get_channels_last_strides_2d(sizes);
    strides.assign(cl.begin(), cl.end());
  } else if (chosen == at::MemoryFormat::ChannelsLast3d) {
    TORCH_CHECK(sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
    const auto cl = c10::get_channels_last_strides_3d(sizes);
    strides.assign(cl.begin(), cl.end());
  } else {
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      strides[d] = stride;
      stride *= std::max<int64_t>(sizes[d], 1);
    }
  }
  return empty_with(sizes, strides, dtype, device, pin_memory);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == at::kStrided, "the tpu device has no tensors of layout ", *layout);
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  return empty_with(sizes, strides, dtype, device, pin_memory);
}

at::Tensor new_empty_strided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                             std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  const c10::Device where = device.value_or(self.device());
  TORCH_CHECK(where.is_privateuseone(), "new_empty_strided: expected a tpu device, got ", where);
  return empty_strided(sizes, strides, dtype.value_or(self.scalar_type()), layout, where, pin_memory);
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage storage, int64_t offset, c10::IntArrayRef sizes,
                        c10::IntArrayRef strides) {
  at::detail::check_size_nonnegative(sizes);
  for (int64_t stride : strides) TORCH_CHECK(stride >= 0, "set_: strides may not be negative, got ", strides);
  at::native::checkSetStorage(self, storage, offset, sizes, strides);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  std::optional<c10::IntArrayRef> given = strides.data() != nullptr ? std::make_optional(strides) : std::nullopt;
  if (given) {
    impl->set_sizes_and_strides(sizes, *given, offset);
  } else {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  }
  const size_t needed =
      sizes.empty() || self.numel() > 0
          ? at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(offset))
          : 0;
  if (needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const hlo::DType type = dtype_of(self.scalar_type());
  return set_storage(self, make_storage(0, self.device().index(), runtime::intern({type, {0}})), 0, {0}, {});
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  return guarded([&]() -> const at::Tensor& {
    at::detail::check_size_nonnegative(sizes);
    c10::TensorImpl* impl = self.unsafeGetTensorImpl();
    if (self.sizes() != sizes) {
      impl->set_sizes_contiguous(sizes);
      const size_t needed = at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(),
                                                                       static_cast<size_t>(self.storage_offset()));
      if (self.numel() > 0 && needed > self.storage().nbytes()) {
        runtime::Slot& slot = slot_of(*self.storage().unsafeGetStorageImpl());
        if (!slot.written() && self.storage_offset() == 0) {
          // Nothing to keep: take on the new shape, not its bytes.
          c10::Storage fresh =
              make_storage(needed, slot.device(), runtime::intern({dtype_of(self.scalar_type()), sizes.vec()}));
          c10::StorageImpl* old = self.storage().unsafeGetStorageImpl();
          old->set_data_ptr_noswap(std::move(fresh.unsafeGetStorageImpl()->mutable_data_ptr()));
          old->set_nbytes(needed);
        } else {
          resize_storage(self.storage(), needed);
        }
      }
    }
    if (format) {
      TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
      impl->empty_tensor_restride(*format);
    }
    return self;
  });
}

// Zeros that fill memory: what knows of ZeroTensors only saves work with them.
at::Tensor efficient_zeros(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory) {
  return empty_memory_format(sizes, dtype, layout, device, pin_memory, std::nullopt).zero_();
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  host.copy_(self.numel() == 1 && self.dim() == 0 ? self : self.reshape({}));
  return host.item();
}

}  // namespace

void define_own_operators() {
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "tpu", std::nullopt, __FILE__, __LINE__);
  library->def("copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)");
  library->def("compiled(Tensor(a!)[] inputs) -> Tensor[]");
  library->def("ragged_dot(Tensor lhs, Tensor rhs, Tensor group_sizes) -> Tensor");
  library->def("ragged_dot_weight_grad(Tensor lhs, Tensor grad_out, Tensor group_sizes) -> Tensor");
  library->def("optimization_barrier(Tensor[] tensors) -> Tensor[]");
  define_sized(*library);
  // These two read and write such views themselves; the fallback would clone, so call them again.
  for (const c10::DispatchKey key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    for (const char* name : {"tpu::copy_", "aten::_copy_from"}) {
      const std::string_view full = name;
      const size_t colons = full.find("::");
      auto* falls =
          new torch::Library(torch::Library::IMPL, std::string(full.substr(0, colons)), key, __FILE__, __LINE__);
      falls->impl(name + colons + 2, torch::CppFunction::makeFallthrough());
    }
  }
  define_attention(*library);
}

void register_views() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  torch::Library& m = *library;
  m.impl("empty.memory_format", TORCH_FN(empty_memory_format));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("new_empty_strided", TORCH_FN(new_empty_strided));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zeros));
  m.impl("as_strided", TORCH_FN(as_strided));
  // Its kernel stands for backends with dense storages, but is not registered for this one.
  m.impl("as_strided_scatter", TORCH_FN(at::compositeexplicitautogradnonfunctional::as_strided_scatter));
  m.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(&at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_source_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  register_copies(m);
  register_sized(m);
  register_attention(m);
  register_grouped(m);
  register_observed(m);
  register_composed(m);
}

}  // namespace tpu::aten
