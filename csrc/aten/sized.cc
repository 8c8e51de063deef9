// SPDX-License-Identifier: Apache-2.0
#include "aten/sized.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/range.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/repeat_interleave_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

#include <bit>

#include "aten/error.h"

namespace tpu::aten {
namespace {

using at::Tensor;

int64_t bucket(int64_t count) {
  return count == 0 ? 0 : static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
}

Tensor first(const Tensor& padded, int64_t count) { return padded.narrow(0, 0, count); }

Tensor& into(const Tensor& result, Tensor& out, const char* name) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), name, "(): Expected out tensor to have dtype ",
              result.scalar_type(), " but got ", out.scalar_type());
  if (out.sizes() != result.sizes()) out.resize_(result.sizes());
  return out.copy_(result);
}

// The one host read.
int64_t count_true(const Tensor& x) {
  if (x.numel() == 0) return 0;
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tpu::count_true", "").typed<Tensor(const Tensor&)>();
  return op.call(x).item().toLong();
}

Tensor nonzero_of(const Tensor& x) {
  return guarded([&] {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tpu::nonzero_padded", "")
                               .typed<Tensor(const Tensor&, int64_t)>();
    const int64_t count = count_true(x);
    return first(op.call(x, bucket(count)), count);
  });
}

Tensor& nonzero_out(const Tensor& x, Tensor& out) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, x);
  return into(nonzero_of(x), out, "nonzero");
}

std::vector<Tensor> mask_positions(const Tensor& mask, int64_t size) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tpu::mask_positions", "")
                             .typed<std::vector<Tensor>(const Tensor&, int64_t)>();
  return op.call(mask, size);
}

Tensor masked_select_of(const Tensor& x, const Tensor& mask) {
  return guarded([&] {
    TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
    TORCH_CHECK(mask.device() == x.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ", x.device(), " and ",
                mask.device(), "!");
    const auto sizes = at::infer_size(x.sizes(), mask.sizes());
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tpu::masked_select_padded", "")
                               .typed<Tensor(const Tensor&, const Tensor&, int64_t)>();
    const int64_t count = count_true(mask.expand(sizes));
    return first(op.call(x, mask, bucket(count)), count);
  });
}

Tensor& masked_select_out(const Tensor& x, const Tensor& mask, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == x.scalar_type(), "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, x);
  at::assert_no_overlap(out, mask);
  return into(masked_select_of(x, mask), out, "masked_select");
}

using Three = std::tuple<Tensor, Tensor, Tensor>;

// Rows along dim, or the elements of the flattened x, without repeats.
Three unique(const Tensor& x, std::optional<int64_t> dim, bool consecutive, bool inverse, bool counts) {
  static const auto groups =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tpu::unique_groups", "")
          .typed<std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, std::optional<int64_t>, bool)>();
  static const auto values =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("tpu::unique_values", "")
          .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, std::optional<int64_t>, int64_t)>();
  const auto none = [&] { return at::empty({0}, x.options().dtype(at::kLong)); };
  const int64_t rows = dim ? x.size(*dim) : x.numel();
  if (rows == 0 || x.numel() == 0) {
    TORCH_CHECK(!dim || rows == 0,
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    Tensor out = dim ? at::empty(x.sizes(), x.options()) : at::empty({0}, x.options());
    return {out, inverse ? at::empty(dim ? c10::IntArrayRef(rows) : x.sizes(), none().options()) : none(), none()};
  }
  auto [sorted, group, back, total] = groups.call(x, dim, consecutive);
  const int64_t count = total.item().toLong();
  auto [found, sizes] = values.call(sorted, group, dim, bucket(count));
  return {narrow_result(found, {dim.value_or(0), count}), inverse ? back : none(),
          counts ? first(sizes, count) : none()};
}

Three unique2(const Tensor& x, bool, bool inverse, bool counts) {
  return guarded([&] { return unique(x, std::nullopt, false, inverse, counts); });
}

std::tuple<Tensor, Tensor> unique1(const Tensor& x, bool, bool inverse) {
  return guarded([&]() -> std::tuple<Tensor, Tensor> {
    auto [values, back, counts] = unique(x, std::nullopt, false, inverse, false);
    return {values, back};
  });
}

Three unique_consecutive(const Tensor& x, bool inverse, bool counts, std::optional<int64_t> dim) {
  return guarded([&] {
    if (dim) return unique(x, c10::maybe_wrap_dim(*dim, x.dim()), true, true, true);
    return unique(x, std::nullopt, true, inverse, counts);
  });
}

Three unique_dim(const Tensor& x, int64_t dim, bool, bool, bool) {
  return guarded([&] { return unique(x, c10::maybe_wrap_dim(dim, x.dim()), false, true, true); });
}

Three unique_dim_consecutive(const Tensor& x, int64_t dim, bool, bool) {
  return guarded([&] { return unique(x, c10::maybe_wrap_dim(dim, x.dim()), true, true, true); });
}

// Two numbers read from the device at once.
std::pair<int64_t, int64_t> read_pair(const char* name, const Tensor& x) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Tensor(const Tensor&)>();
  const Tensor pair = op.call(x).cpu();
  const auto* values = pair.const_data_ptr<int64_t>();
  return {values[0], values[1]};
}

Tensor bincount(const Tensor& x, const std::optional<Tensor>& weights, int64_t minlength) {
  return guarded([&] {
    TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
    TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(x.scalar_type(), false), "\"bincount_cpu\" not implemented for '",
                                x.scalar_type(), "'");
    TORCH_CHECK(x.dim() == 1 || (x.dim() == 0 && x.numel() == 0),
                "bincount only supports 1-d non-negative integral inputs.");
    const bool weighted = weights && weights->defined();
    TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->numel() == x.numel()),
                "weights should be 1-d and have the same length as input");
    if (x.numel() == 0) return at::zeros({minlength}, x.options().dtype(at::kLong));
    const auto [low, high] = read_pair("tpu::bounds", x);
    TORCH_CHECK(low >= 0, "bincount only supports 1-d non-negative integral inputs.");
    const int64_t size = std::max(high + 1, minlength);
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tpu::bincount_sized", "")
                               .typed<Tensor(const Tensor&, const std::optional<Tensor>&, int64_t)>();
    return first(op.call(x, weights, size == minlength ? size : bucket(size)), size);
  });
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> output_size) {
  return guarded([&] {
    const at::ScalarType dtype = repeats.scalar_type();
    TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
    TORCH_CHECK_NOT_IMPLEMENTED(dtype == at::kLong || dtype == at::kInt,
                                "\"repeat_interleave_cpu\" not implemented for '", dtype, "'");
    if (repeats.numel() == 0) return at::empty({0}, repeats.options());
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tpu::repeat_interleave_sized", "")
                               .typed<Tensor(const Tensor&, int64_t)>();
    if (output_size) return op.call(repeats, *output_size);
    const auto [low, total] = read_pair("tpu::repeats_total", repeats);
    TORCH_CHECK(low >= 0, "repeats can not be negative");
    return first(op.call(repeats, bucket(total)), total);
  });
}

// Elements along dim, each as often as `repeats` says. PyTorch's own form selects by the exact number of positions,
// which would compile for each; the padded ones are selected here, and the result is narrowed. Differentiable.
Tensor repeat_elements(const Tensor& x, const Tensor& repeats, std::optional<int64_t> dim,
                       std::optional<c10::SymInt> output_size) {
  const int64_t rows = !dim ? x.numel() : x.dim() > 0 ? x.size(*dim) : 1;
  if (output_size || repeats.dim() != 1 || repeats.size(0) != rows || rows <= 1 || repeats.device() != x.device())
    return at::native::repeat_interleave_symint(x, repeats, dim, std::move(output_size));
  const Tensor exact = at::repeat_interleave(repeats);
  const int64_t total = exact.size(0), along = dim.value_or(0);
  const Tensor padded = exact.as_strided({bucket(total)}, {1}, 0);
  return (dim ? x : x.flatten()).index_select(along, padded).narrow(along, 0, total);
}

// The sizes of arange and range depend on numbers that a lowering takes at run time.
template <Tensor& (*Sized)(const at::Scalar&, const at::Scalar&, const at::Scalar&, Tensor&)>
Tensor& sequence(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, Tensor& out) {
  using Last = std::optional<at::Scalar>;
  return guarded([&]() -> Tensor& {
    Tensor meta = at::empty({0}, out.options().device(at::kMeta));
    Sized(start, end, step, meta);
    if (out.numel() != meta.numel()) out.resize_(meta.sizes());
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("tpu::sequence_", "")
                               .typed<Tensor&(Tensor&, const at::Scalar&, const at::Scalar&, const Last&)>();
    if (out.numel() == 0) return out;
    Last last;
    if (at::isIntegralType(out.scalar_type(), false) && start.isIntegral(false) && step.isIntegral(false))
      last = start.toLong() + (out.numel() - 1) * step.toLong();
    op.call(out, start, step, last);
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

// Indices broadcast together.
void check_broadcast(const std::vector<Tensor>& indices) {
  for (size_t i = 1; i < indices.size(); ++i) {
    const c10::IntArrayRef a = indices[i - 1].sizes(), b = indices[i].sizes();
    for (size_t d = 1; d <= std::min(a.size(), b.size()); ++d) {
      const int64_t m = a[a.size() - d], n = b[b.size() - d];
      if (m == n || m == 1 || n == 1) continue;
      std::ostringstream shapes;
      for (size_t k = 0; k < indices.size(); ++k) shapes << (k ? ", " : "") << indices[k].sizes();
      TORCH_CHECK_INDEX(false, "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                        shapes.str());
    }
  }
}

}  // namespace

Tensor narrow_result(const Tensor& padded, const Narrowed& to) {
  Tensor result = padded.narrow(to.dim, 0, to.size);
  return to.dim == 0 ? result : result.contiguous();
}

std::optional<Narrowed> expand_masks(std::span<c10::IValue> args, bool may_pad) {
  const auto list = args[1].toListRef();
  size_t given = 0, masks = 0;
  std::vector<Tensor> defined;
  for (const c10::IValue& index : list) {
    if (!index.isTensor() || !index.toTensor().defined()) continue;
    const Tensor& t = index.toTensor();
    const at::ScalarType dtype = t.scalar_type();
    const bool mask = is_mask(index);
    TORCH_CHECK_INDEX(mask || dtype == at::kLong || dtype == at::kInt,
                      "tensors used as indices must be long, int, byte or bool tensors");
    ++given;
    masks += mask;
    if (list.size() > 1) defined.push_back(t);  // one alone broadcasts with nothing
  }
  if (masks == 0) {
    check_broadcast(defined);
    return std::nullopt;
  }
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
      if (mask.dim() == 0) {  // a rank-0 mask adds a dimension of size 0 or 1
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
  library.def("unique_groups(Tensor self, int? dim, bool consecutive) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def("unique_values(Tensor rows, Tensor group, int? dim, int size) -> (Tensor, Tensor)");
  library.def("bounds(Tensor self) -> Tensor");
  library.def("bincount_sized(Tensor self, Tensor? weights, int size) -> Tensor");
  library.def("repeat_interleave_sized(Tensor repeats, int size) -> Tensor");
  library.def("repeats_total(Tensor repeats) -> Tensor");
  library.def("sequence_(Tensor(a!) self, Scalar start, Scalar step, Scalar? last) -> Tensor(a!)");
  library.def("masked_select_padded(Tensor self, Tensor mask, int size) -> Tensor");
}

void register_sized(torch::Library& library) {
  library.impl("_unique2", TORCH_FN(unique2));
  library.impl("_unique", TORCH_FN(unique1));
  library.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  library.impl("unique_dim", TORCH_FN(unique_dim));
  library.impl("unique_dim_consecutive", TORCH_FN(unique_dim_consecutive));
  library.impl("bincount", TORCH_FN(bincount));
  library.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  library.impl("repeat_interleave.self_Tensor", TORCH_FN(repeat_elements));
  static auto* autograd =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("repeat_interleave.self_Tensor", TORCH_FN(repeat_elements));
  library.impl("arange.start_out", TORCH_FN(sequence<size_arange>));
  library.impl("range.out", TORCH_FN(sequence<size_range>));
  library.impl("nonzero", TORCH_FN(nonzero_of));
  library.impl("nonzero.out", TORCH_FN(nonzero_out));
  library.impl("masked_select", TORCH_FN(masked_select_of));
  library.impl("masked_select.out", TORCH_FN(masked_select_out));
}

}  // namespace tpu::aten
