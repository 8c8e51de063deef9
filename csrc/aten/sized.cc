// SPDX-License-Identifier: Apache-2.0
#include "aten/sized.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/range.h>
#include <torch/library.h>

#include <bit>

#include "aten/error.h"

namespace tpu::aten {
namespace {

using at::Tensor;

int64_t bucket(int64_t count) { return count == 0 ? 0 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))); }

Tensor first(const Tensor& padded, int64_t count) { return padded.narrow(0, 0, count); }

Tensor& into(const Tensor& result, Tensor& out, const char* name) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), name, "(): Expected out tensor to have dtype ", result.scalar_type(),
              " but got ", out.scalar_type());
  if (out.sizes() != result.sizes()) out.resize_(result.sizes());
  return out.copy_(result);
}

// The one host read.
int64_t count_true(const Tensor& x) {
  if (x.numel() == 0) return 0;
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tpu::count_true", "").typed<Tensor(const Tensor&)>();
  return op.call(x).item().toLong();
}

Tensor nonzero_of(const Tensor& x) {
  return guarded([&] {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tpu::nonzero_padded", "").typed<Tensor(const Tensor&, int64_t)>();
    const int64_t count = count_true(x);
    return first(op.call(x, bucket(count)), count);
  });
}

Tensor& nonzero_out(const Tensor& x, Tensor& out) { return into(nonzero_of(x), out, "nonzero"); }

std::vector<Tensor> mask_positions(const Tensor& mask, int64_t size) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tpu::mask_positions", "").typed<std::vector<Tensor>(const Tensor&, int64_t)>();
  return op.call(mask, size);
}

Tensor masked_select_of(const Tensor& x, const Tensor& mask) {
  return guarded([&] {
    TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
    TORCH_CHECK(mask.device() == x.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
                x.device(), " and ", mask.device(), "!");
    const auto sizes = at::infer_size(x.sizes(), mask.sizes());
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tpu::masked_select_padded", "")
                               .typed<Tensor(const Tensor&, const Tensor&, int64_t)>();
    const int64_t count = count_true(mask.expand(sizes));
    return first(op.call(x, mask, bucket(count)), count);
  });
}

Tensor& masked_select_out(const Tensor& x, const Tensor& mask, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == x.scalar_type(), "masked_select(): self and result must have the same scalar type");
  return into(masked_select_of(x, mask), out, "masked_select");
}

// The sizes of arange and range depend on numbers that a lowering takes at run time.
template <Tensor& (*Sized)(const at::Scalar&, const at::Scalar&, const at::Scalar&, Tensor&)>
Tensor& sequence(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  return guarded([&]() -> Tensor& {
    Tensor meta = at::empty({0}, out.options().device(at::kMeta));
    Sized(start, end, step, meta);
    if (out.numel() != meta.numel()) out.resize_(meta.sizes());
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tpu::sequence_", "")
                               .typed<Tensor&(Tensor&, const at::Scalar&, const at::Scalar&)>();
    if (out.numel() > 0) op.call(out, start, step);
    return out;
  });
}

Tensor& size_arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  return at::arange_outf(start, end, step, out);
}
Tensor& size_range(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  return at::range_outf(start, end, step, out);
}

bool is_mask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined()) return false;
  const at::ScalarType t = index.toTensor().scalar_type();
  return t == at::kBool || t == at::kByte;
}

// Whether `values` has one value for all places of the mask: no more dimensions than there are after
// the mask, or size 1 where the mask's places stand.
bool one_value(const Tensor& self, const Tensor& mask, int64_t dim, const Tensor& values) {
  const int64_t after = self.dim() - dim - mask.dim();
  if (mask.dim() == 0 || values.dim() > after + 1 + dim) return false;
  return values.dim() <= after || values.size(values.dim() - 1 - after) == 1;
}

}  // namespace

Tensor narrow_result(const Tensor& padded, const Narrowed& to) {
  Tensor result = padded.narrow(to.dim, 0, to.size);
  return to.dim == 0 ? result : result.contiguous();
}

std::optional<Narrowed> expand_masks(std::span<c10::IValue> args, bool may_pad) {
  const auto list = args[1].toListRef();
  size_t given = 0, masks = 0;
  for (const c10::IValue& index : list) {
    if (!index.isTensor() || !index.toTensor().defined()) continue;
    const Tensor& t = index.toTensor();
    const at::ScalarType dtype = t.scalar_type();
    const bool mask = is_mask(index);
    TORCH_CHECK_INDEX(mask || dtype == at::kLong || dtype == at::kInt, "tensors used as indices must be long, int, byte or bool tensors");
    ++given;
    masks += mask;
  }
  if (masks == 0) return std::nullopt;
  const Tensor& self = args[0].toTensor();
  c10::List<std::optional<Tensor>> expanded;
  std::optional<Narrowed> narrowed;
  for (const c10::IValue& index : list) {
    if (!is_mask(index)) {
      expanded.push_back(index.isTensor() ? std::optional<Tensor>(index.toTensor()) : std::nullopt);
      continue;
    }
    const Tensor& mask = index.toTensor();
    const auto dim = static_cast<int64_t>(expanded.size());
    for (int64_t d = 0; d < mask.dim(); ++d) {
      TORCH_CHECK_INDEX(dim + d < self.dim(), "too many indices for tensor of dimension ", self.dim());
      TORCH_CHECK_INDEX(mask.size(d) == self.size(dim + d), "The shape of the mask ", mask.sizes(), " at index ", d,
                        " does not match the shape of the indexed tensor ", self.sizes(), " at index ", dim + d);
    }
    const bool alone = given == 1 && mask.dim() > 0;
    if (args.size() > 2 && alone && mask.device() == self.device() && one_value(self, mask, dim, args[2].toTensor())) {
      return std::nullopt;
    }
    if (!mask.device().is_cpu() && mask.dim() > 0) {
      const int64_t count = count_true(mask);
      const int64_t size = alone && may_pad ? bucket(count) : count;
      if (alone && may_pad && size != count) narrowed = Narrowed{dim, count};
      if (size == count) {
        const int64_t padded = bucket(count);
        for (const Tensor& column : mask_positions(mask, padded)) expanded.push_back(first(column, count));
      } else {
        for (const Tensor& column : mask_positions(mask, size)) expanded.push_back(column);
      }
    } else {
      for (const Tensor& column : mask.nonzero().unbind(1)) expanded.push_back(column);
      if (mask.dim() == 0) {   // a rank-0 mask adds a dimension of size 0 or 1
        TORCH_CHECK_NOT_IMPLEMENTED(false, "a bool tensor without dimensions as an index");
      }
    }
  }
  args[1] = std::move(expanded);
  return narrowed;
}

void define_sized(torch::Library& library) {
  library.def("count_true(Tensor self) -> Tensor");
  library.def("nonzero_padded(Tensor self, int size) -> Tensor");
  library.def("mask_positions(Tensor mask, int size) -> Tensor[]");
  library.def("sequence_(Tensor(a!) self, Scalar start, Scalar step) -> Tensor(a!)");
  library.def("masked_select_padded(Tensor self, Tensor mask, int size) -> Tensor");
}

void register_sized(torch::Library& library) {
  library.impl("arange.start_out", TORCH_FN(sequence<size_arange>));
  library.impl("range.out", TORCH_FN(sequence<size_range>));
  library.impl("nonzero", TORCH_FN(nonzero_of));
  library.impl("nonzero.out", TORCH_FN(nonzero_out));
  library.impl("masked_select", TORCH_FN(masked_select_of));
  library.impl("masked_select.out", TORCH_FN(masked_select_out));
}

}  // namespace tpu::aten
