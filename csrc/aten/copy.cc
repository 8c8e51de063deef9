// SPDX-License-Identifier: Apache-2.0
#include "aten/copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_copy_from_and_resize_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <map>
#include <mutex>

#include "aten/error.h"
#include "aten/kernel.h"
#include "aten/storage.h"
#include "aten/trace.h"
#include "hlo/math.h"
#include "lowering/view.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/stream.h"

namespace tpu::aten {
namespace {

using runtime::Slot;
using runtime::ValueRef;

// A small program of ours outside of any operator, built once for each key.
ValueRef run_small(const std::string& name, const hlo::Type* input, int64_t extra, int device, const ValueRef* operand,
                   const std::function<hlo::Value(hlo::Graph&, hlo::Value)>& build) {
  static auto* mutex = new std::mutex;
  static auto* plans = new std::map<std::tuple<std::string, const hlo::Type*, int64_t>, std::unique_ptr<runtime::Plan>>;
  runtime::Plan* plan = nullptr;
  {
    std::lock_guard lock(*mutex);
    auto& slot = (*plans)[{name, input, extra}];
    if (!slot) {
      auto fresh = std::make_unique<runtime::Plan>();
      fresh->name = name;
      fresh->graph = std::make_unique<hlo::Graph>();
      hlo::Value argument;
      if (operand) {
        argument = fresh->graph->parameter(*input);
        fresh->params.push_back({runtime::Param::From::Operand, 0, input});
      }
      const hlo::Value result = build(*fresh->graph, argument);
      fresh->graph->set_results({result});
      fresh->results = {runtime::intern(result.type())};
      fresh->result_bytes = result.type().bytes();
      slot = std::move(fresh);
    }
    plan = slot.get();
  }
  runtime::Operand operands[1];
  if (operand) operands[0].value = *operand;
  ValueRef result[1];
  runtime::launch(*plan, device, {operands, operand ? 1u : 0u}, {}, result);
  return result[0];
}

bool is_dense(const at::Tensor& t) { return t.unsafeGetTensorImpl()->is_non_overlapping_and_dense(); }

// Whether the tensor is all of its storage, in some order of dimensions.
bool fills_storage(const at::Tensor& t) {
  return t.storage_offset() == 0 && is_dense(t) &&
         t.numel() * static_cast<int64_t>(t.itemsize()) == static_cast<int64_t>(t.storage().nbytes());
}

at::Tensor device_copy(at::Tensor& dst, const at::Tensor& src) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tpu::copy_", "")
                             .typed<at::Tensor&(at::Tensor&, const at::Tensor&)>();
  return op.call(dst, src);
}

void host_to_device(const at::Tensor& src, at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return;
  at::Tensor source = src.sizes() == dst.sizes() ? src : src.expand(dst.sizes());
  Slot& slot = slot_of(*dst.storage().unsafeGetStorageImpl());
  if (!fills_storage(dst) || dst.is_conj() || dst.is_neg()) {
    at::Tensor staged = to_device(source.to(dst.scalar_type()), dst.device().index());
    device_copy(dst, staged);
    return;
  }
  const bool as_is = source.scalar_type() == dst.scalar_type() && source.strides() == dst.strides() &&
                     !source.is_conj() && !source.is_neg();
  if (!as_is) {
    at::Tensor staged = at::empty_strided(dst.sizes(), dst.strides(), dst.options().device(c10::kCPU));
    staged.copy_(source);
    source = staged;
  }
  const hlo::Type* type = runtime::intern({dtype_of(dst.scalar_type()), physical_dims(dst.sizes(), dst.strides())});
  if (non_blocking && as_is && source.is_pinned()) {
    pjrt::Event done;
    set_value(dst.storage(), slot, runtime::upload(source.const_data_ptr(), type, slot.device(), &done));
    auto* keep_alive = new at::Tensor(source);  // until the transfer has read it
    done.on_ready([keep_alive](const std::string*) { delete keep_alive; });
    runtime::after_launch(slot.device(), std::move(done));
    return;
  }
  set_value(dst.storage(), slot, runtime::upload(source.const_data_ptr(), type, slot.device()));
}

void device_to_host(const at::Tensor& src, at::Tensor& dst) {
  if (dst.numel() == 0) return;
  runtime::Runtime::get();  // throws in a forked child, where a pending value would never come
  const size_t needed = at::detail::computeStorageNbytes(src.sizes(), src.strides(), src.itemsize(),
                                                         static_cast<size_t>(src.storage_offset()));
  TORCH_CHECK(needed <= src.storage().nbytes(), "a tensor reaches ", needed, " bytes into a storage of ",
              src.storage().nbytes(), ": the storage was resized");
  Slot& slot = slot_of(*src.storage().unsafeGetStorageImpl());
  const ValueRef value = slot.value();
  if (!value) {
    dst.zero_();
    return;
  }
  const int64_t stored = value->type()->bytes();
  const int64_t wanted = src.numel() * static_cast<int64_t>(src.itemsize());
  if (stored > 65536 && stored > 2 * wanted) {
    device_to_host(src.clone(at::MemoryFormat::Contiguous), dst);
    return;
  }
  const bool direct = fills_storage(src) && !src.is_conj() && !src.is_neg() && src.scalar_type() == dst.scalar_type() &&
                      src.sizes() == dst.sizes() && src.strides() == dst.strides() && !dst.is_conj() && !dst.is_neg();
  if (direct) {
    runtime::download(value, dst.mutable_data_ptr());
    return;
  }
  at::Tensor bytes = at::empty({stored}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  runtime::download(value, bytes.mutable_data_ptr());
  at::Tensor view = at::empty({0}, src.options().device(c10::kCPU));
  view.set_(bytes.storage(), src.storage_offset(), src.sizes(), src.strides());
  if (src.is_conj()) view._set_conj(true);
  if (src.is_neg()) view._set_neg(true);
  dst.copy_(view);
}

at::Tensor copy_from(const at::Tensor& src, const at::Tensor& dst_arg, bool non_blocking) {
  return guarded([&] {
    at::Tensor dst = dst_arg;
    const bool from_device = src.device().type() == c10::DeviceType::PrivateUse1;
    const bool to_device_ = dst.device().type() == c10::DeviceType::PrivateUse1;
    if (!from_device) {
      TORCH_CHECK(src.device().is_cpu(), "cannot copy from ", src.device(), " to ", dst.device());
      host_to_device(src, dst, non_blocking);
    } else if (!to_device_) {
      TORCH_CHECK(dst.device().is_cpu(), "cannot copy from ", src.device(), " to ", dst.device());
      device_to_host(src.sizes() == dst.sizes() ? src : src.expand(dst.sizes()), dst);
    } else if (src.device() != dst.device()) {
      at::Tensor whole = fills_storage(src) ? src : src.clone(at::MemoryFormat::Contiguous);
      const ValueRef moved =
          runtime::transfer(value_of(slot_of(*whole.storage().unsafeGetStorageImpl())), dst.device().index());
      at::Tensor there = make_tensor(make_storage(dst.device().index(), moved), whole.sizes(), whole.strides(), 0,
                                     whole.scalar_type());
      if (whole.is_conj()) there._set_conj(true);
      if (whole.is_neg()) there._set_neg(true);
      at::Tensor target = dst;
      copy_from(there, target, non_blocking);
    } else if (src.scalar_type() == dst.scalar_type() && src.sizes() == dst.sizes() && src.strides() == dst.strides() &&
               fills_storage(src) && fills_storage(dst) && src.is_conj() == dst.is_conj() &&
               src.is_neg() == dst.is_neg()) {
      // Values are immutable: two storages may share one until either is written.
      set_value(dst.storage(), slot_of(*dst.storage().unsafeGetStorageImpl()),
                value_of(slot_of(*src.storage().unsafeGetStorageImpl())));
    } else {
      device_copy(dst, src);
    }
    return dst_arg;
  });
}

at::Tensor copy_from_and_resize(const at::Tensor& src, const at::Tensor& dst) {
  dst.resize_(src.sizes());
  return copy_from(src, dst, false);
}

// Whether `x.data = y` may be. PyTorch's own list of dense tensors doesn't have the device, so that a parameter could
// not go there in place.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && (t.is_cpu() || t.device().type() == c10::DeviceType::PrivateUse1);
  };
  return self.key_set() == from.key_set() || (dense(self) && dense(from));
}

}  // namespace

at::Tensor to_device(const at::Tensor& cpu, int device) {
  at::Tensor source = cpu.resolve_conj().resolve_neg().contiguous();
  const hlo::Type* type =
      runtime::intern({dtype_of(source.scalar_type()), hlo::Dims(source.sizes().begin(), source.sizes().end())});
  if (source.numel() == 0) {
    return make_tensor(make_storage(0, device, type), source.sizes(), source.strides(), 0, source.scalar_type());
  }
  return make_tensor(make_storage(device, runtime::upload(source.const_data_ptr(), type, device)), source.sizes(),
                     source.strides(), 0, source.scalar_type());
}

ValueRef zeros_value(const hlo::Type* type, int device) {
  return run_small("zeros", type, 0, device, nullptr,
                   [&](hlo::Graph& graph, hlo::Value) { return hlo::full(graph, *type, 0); });
}

ValueRef resized_value(Slot& slot, size_t nbytes) {
  const ValueRef value = value_of(slot);
  return run_small("resize_", value->type(), static_cast<int64_t>(nbytes), slot.device(), &value,
                   [&](hlo::Graph&, hlo::Value base) {
                     const int64_t width = hlo::byte_size(base.dtype());
                     const bool even = static_cast<int64_t>(nbytes) % width == 0;
                     hlo::Value flat = lowering::reinterpret_flat(base, even ? base.dtype() : hlo::DType::U8);
                     const int64_t count = even ? static_cast<int64_t>(nbytes) / width : static_cast<int64_t>(nbytes);
                     if (count <= flat.numel()) return hlo::slice_dim(flat, 0, 0, count);
                     return hlo::pad_dim(flat, 0, 0, count - flat.numel());
                   });
}

void register_copies(torch::Library& library) {
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

}  // namespace tpu::aten
