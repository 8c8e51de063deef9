// SPDX-License-Identifier: Apache-2.0
#include "lowering/view.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "hlo/math.h"
#include "hlo/ops.h"

namespace tpu::lowering {
namespace {

using namespace hlo;

// The box that a nesting view cuts out of the base: axis i has `extents[i]` places, of which
// `sizes[i]` are taken. `axes[i]` is the view's dimension; the last axis is -1 where the innermost
// stride is above 1 (one place of the gap is taken). Views without such axes have rank 0.
struct Box {
  int rank = 0;
  int64_t extents[kMaxRank + 1];
  int64_t sizes[kMaxRank + 1];
  int64_t strides[kMaxRank + 1];
  int axes[kMaxRank + 1];
};

// False when the strides don't nest.
bool make_box(int64_t numel, std::span<const int64_t> sizes, std::span<const int64_t> strides, Box& box) {
  int n = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 || strides[d] == 0) continue;
    int at = n++;
    while (at > 0 && box.strides[at - 1] < strides[d]) {  // insertion sort, largest stride first
      box.strides[at] = box.strides[at - 1];
      box.axes[at] = box.axes[at - 1];
      --at;
    }
    box.strides[at] = strides[d];
    box.axes[at] = static_cast<int>(d);
  }
  for (int i = 0; i < n; ++i) {
    box.sizes[i] = sizes[static_cast<size_t>(box.axes[i])];
    if (i == 0) {
      box.extents[0] = (numel + box.strides[0] - 1) / box.strides[0];
    } else {
      if (box.strides[i - 1] % box.strides[i] != 0) return false;
      box.extents[i] = box.strides[i - 1] / box.strides[i];
    }
    if (box.sizes[i] > box.extents[i]) return false;
  }
  const int64_t inner = n == 0 ? numel : box.strides[n - 1];
  if (inner > 1) {
    box.extents[n] = inner;
    box.sizes[n] = 1;
    box.strides[n] = 1;
    box.axes[n] = -1;
    ++n;
  }
  box.rank = n;
  return true;
}

Box box_of(const Type& base, const View& view) {
  Box box;
  TPU_INTERNAL(make_box(base.numel(), view.sizes, view.strides, box), "a sliced view whose strides don't nest");
  return box;
}

Dims extents_of(const Box& box) { return Dims(box.extents, box.extents + box.rank); }
Dims sizes_of(const Box& box) { return Dims(box.sizes, box.sizes + box.rank); }

// Flat base of view.dtype, padded up to a whole number of outermost strides, in the box's shape.
Value to_box(Value base, const Box& box) {
  const Dims extents = extents_of(box);
  const int64_t wanted = numel(extents);
  if (wanted == base.numel()) return reshape(base, extents);
  Value flat = reshape(base, {base.numel()});
  return reshape(pad_dim(flat, 0, 0, wanted - base.numel()), extents);
}

Values corner(const Box& box, const View& view, const Values& digits, Graph& graph) {
  Values starts;
  size_t next = 0;
  Value zero = scalar(graph, DType::S64, 0);
  for (int i = 0; i < box.rank; ++i) {
    const bool moves = view.access == Access::Sliced && box.sizes[i] < box.extents[i];
    starts.push_back(moves ? digits.at(next++) : zero);
  }
  return starts;
}

// Linear positions of the view's elements in the flat base.
Value positions(const View& view, const Values& digits, Graph& graph) {
  Value at = broadcast_to(digits.at(0), view.sizes);
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] == 1 || view.strides[d] == 0) continue;
    at = at + iota(graph, {DType::S64, view.sizes}, static_cast<int64_t>(d)) * view.strides[d];
  }
  return at;
}

Value apply_bits(Value v, const View& view) {
  if (view.conj && is_complex(view.dtype)) v = complex(real(v), negate(imag(v)));
  if (view.neg) v = negate(v);
  return v;
}

bool same_dims(const Type& base, const View& view) { return view.access == Access::Whole && base.dims == view.sizes; }

// As many whole elements of `dtype` as there are; bytes left over at the end are not read.
Value as_dtype(Value base, DType dtype) {
  if (base.dtype() == dtype) return base;
  const int64_t bytes = base.type().bytes(), whole = bytes / byte_size(dtype) * byte_size(dtype);
  if (whole < bytes) base = slice_dim(reinterpret_flat(base, DType::U8), 0, 0, whole);
  return reinterpret_flat(base, dtype);
}

}  // namespace

Access classify(int64_t numel, std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset,
                Digits& digits) {
  digits.count = 0;
  int64_t end = offset + 1;
  for (size_t d = 0; d < sizes.size(); ++d) end = sizes[d] > 0 ? end + (sizes[d] - 1) * strides[d] : INT64_MIN;
  if (end > numel) [[unlikely]] {
    fail(ErrorKind::Runtime, "a tensor reaches ", end, " elements into a storage of ", numel,
         ": the storage was resized");
  }
  Box box;
  if (sizes.size() > kMaxRank || !make_box(numel, sizes, strides, box)) {
    digits.count = 1;
    digits.values[0] = offset;
    return Access::Gathered;
  }
  if (offset == 0) return Access::SlicedAtZero;
  int64_t rest = offset;
  for (int i = 0; i < box.rank; ++i) {
    const int64_t digit = rest / box.strides[i];
    rest %= box.strides[i];
    if (digit + box.sizes[i] > box.extents[i]) {
      digits.count = 1;
      digits.values[0] = offset;
      return Access::Gathered;
    }
    if (box.sizes[i] < box.extents[i]) digits.values[digits.count++] = digit;
  }
  return Access::Sliced;
}

Value reinterpret_flat(Value base, DType dtype) {
  const int64_t count = base.numel();
  Value flat = reshape(base, {count});
  if (flat.dtype() == dtype) return flat;
  // PRED has no bitcast: its byte is 0 or 1.
  if (flat.dtype() == DType::PRED) flat = convert(flat, DType::U8);
  if (is_complex(flat.dtype())) {
    flat = reshape(stack({real(flat), imag(flat)}, 1), {2 * count});
  }
  if (is_complex(dtype)) {
    Value parts = reinterpret_flat(flat, real_of(dtype));
    const int64_t pairs = parts.numel() / 2;
    TPU_CHECK(parts.numel() % 2 == 0, "view(dtype): an odd number of reals can't be read as complex");
    Value pair = reshape(parts, {pairs, 2});
    return complex(select_dim(pair, 1, 0), select_dim(pair, 1, 1));
  }
  const DType target = dtype == DType::PRED ? DType::U8 : dtype;
  const int64_t from = byte_size(flat.dtype()), to = byte_size(target);
  if (flat.dtype() != target) {
    if (from == to) {
      flat = bitcast_convert(flat, target);
    } else if (from > to) {
      flat = bitcast_convert(flat, target);
      flat = reshape(flat, {flat.numel()});
    } else {
      TPU_CHECK(flat.numel() * from % to == 0, "view(dtype): ", flat.numel() * from, " bytes don't divide into ",
                short_name(target));
      flat = bitcast_convert(reshape(flat, {flat.numel() * from / to, to / from}), target);
    }
  }
  return dtype == DType::PRED ? convert(flat, DType::PRED) : flat;
}

bool covers(const Type& base, const View& view) {
  if (view.access == Access::Whole) return true;
  if (view.access != Access::SlicedAtZero) return false;
  const int64_t bytes = base.bytes();
  if (numel(view.sizes) * byte_size(view.dtype) != bytes) return false;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.strides[d] == 0 && view.sizes[d] > 1) return false;
  }
  return true;
}

Value read(Value base, const View& view, const Values& digits) {
  Graph& graph = base.graph();
  if (numel(view.sizes) == 0) return full(graph, {view.dtype, view.sizes}, 0);
  if (same_dims(base.type(), view) && base.dtype() == view.dtype) return apply_bits(base, view);
  base = as_dtype(base, view.dtype);
  if (view.access == Access::Whole) return apply_bits(reshape(base, view.sizes), view);
  if (view.access == Access::Gathered) {
    Value flat = reshape(base, {base.numel()});
    Value at = reshape(positions(view, digits, graph), {numel(view.sizes)});
    return apply_bits(reshape(take(flat, at, 0), view.sizes), view);
  }
  const Box box = box_of(base.type(), view);
  Value boxed = to_box(base, box);
  const Dims sizes = sizes_of(box);
  if (view.access == Access::SlicedAtZero) {
    boxed = slice(boxed, Dims(sizes.size(), 0), sizes, Dims(sizes.size(), 1));
  } else {
    boxed = dynamic_slice(boxed, corner(box, view, digits, graph), sizes);
  }
  // Drop the inner gap, put the axes in the view's order, then add those of size 1 and stride 0.
  std::vector<int> axes(box.axes, box.axes + box.rank);
  Dims kept;
  for (int i = 0; i < box.rank; ++i) {
    if (box.axes[i] >= 0) kept.push_back(box.sizes[i]);
  }
  axes.erase(std::remove(axes.begin(), axes.end(), -1), axes.end());
  Value v = reshape(boxed, kept);
  Dims permutation(axes.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::sort(permutation.begin(), permutation.end(),
            [&](int64_t a, int64_t b) { return axes[static_cast<size_t>(a)] < axes[static_cast<size_t>(b)]; });
  v = transpose(v, permutation);
  std::sort(axes.begin(), axes.end());
  Dims placed(axes.begin(), axes.end());
  if (v.dims() != view.sizes) {
    Dims with_ones(view.sizes.size(), 1);
    bool broadcasts = false;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      const bool is_axis = std::find(axes.begin(), axes.end(), static_cast<int>(d)) != axes.end();
      if (is_axis)
        with_ones[d] = view.sizes[d];
      else if (view.sizes[d] != 1)
        broadcasts = true;
    }
    v = broadcasts ? broadcast_in_dim(v, view.sizes, placed) : reshape(v, with_ones);
  }
  return apply_bits(v, view);
}

Value write(Value base, const View& view, const Values& digits, Value update) {
  Graph& graph = base.graph();
  const Type type = base.type();
  update = apply_bits(update, view);
  if (numel(view.sizes) == 0) return base;
  const auto restore = [&, old = base](Value v) {
    if (const int64_t written = v.type().bytes(); written < type.bytes()) {
      Value rest = slice_dim(reinterpret_flat(old, DType::U8), 0, written, type.bytes());
      v = concat({reinterpret_flat(v, DType::U8), rest}, 0);
    }
    v = as_dtype(v, type.dtype);
    return reshape(v, type.dims);
  };
  if (view.access == Access::Whole) return restore(update);
  const bool reinterpreted = base.dtype() != view.dtype;
  base = as_dtype(base, view.dtype);
  const int64_t count = base.numel();
  if (view.access == Access::Gathered) {
    Value flat = reshape(base, {count});
    const int64_t updates = numel(view.sizes);
    Value at = reshape(positions(view, digits, graph), {updates, 1});
    Value result = scatter(flat, at, reshape(update, {updates}),
                           {.inserted_window_dims = {0}, .scatter_dims_to_operand_dims = {0}, .index_vector_dim = 1},
                           [](Value, Value after) { return after; });
    return restore(result);
  }
  const Box box = box_of(base.type(), view);
  // The update in the box's order: broadcast dimensions take their first element.
  Value v = update;
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.strides[d] == 0 && view.sizes[d] > 1) v = slice_dim(v, static_cast<int64_t>(d), 0, 1);
  }
  std::vector<int> axes;
  for (int i = 0; i < box.rank; ++i) {
    if (box.axes[i] >= 0) axes.push_back(box.axes[i]);
  }
  Dims permutation;
  for (int axis : axes) permutation.push_back(axis);
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (std::find(axes.begin(), axes.end(), static_cast<int>(d)) == axes.end()) {
      permutation.push_back(static_cast<int64_t>(d));
    }
  }
  const Dims sizes = sizes_of(box);
  v = reshape(transpose(v, permutation), sizes);
  if (sizes == extents_of(box) && numel(sizes) == count) return restore(v);
  Value boxed = to_box(base, box);
  const Values at = corner(box, view, digits, graph);
  if (reinterpreted) {
    // Not in place: where the update comes from `base` too, XLA's CPU programs overwrite what they still read.
    boxed = hlo::update_by_select(boxed, v, at);
  } else {
    boxed = dynamic_update_slice(boxed, v, at);
  }
  Value flat = reshape(boxed, {boxed.numel()});
  if (flat.numel() != count) flat = slice_dim(flat, 0, 0, count);
  return restore(flat);
}

}  // namespace tpu::lowering
