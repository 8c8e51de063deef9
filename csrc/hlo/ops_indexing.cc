// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hlo/build.h"

namespace tpu::hlo {
using namespace build;
namespace {

bool contains(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }

void require_starts(std::string_view op, Value x, const Values& starts) {
  require(op, x, kAny);
  require_size(op, "starts", starts.size(), x.rank());
  for (Value s : starts) {
    require(op, s, kInteger);
    require_scalar(op, s, "a start");
    require_same_dtype(op, starts[0], s);
  }
}

// Gather and scatter are each other's mirror: `window` are the offset dimensions of the gathered
// (or scattered) side, `gone` and `batching` the operand's dimensions that have no offset.
void require_index_dims(std::string_view op, Value x, Value indices, const Dims& gone, const Dims& batching,
                        const Dims& indices_batching, const Dims& index_map, int64_t index_vector_dim) {
  require(op, x, kAny);
  require(op, indices, kInteger);
  TPU_CHECK(index_vector_dim >= 0 && index_vector_dim <= indices.rank(), op, ": index_vector_dim ", index_vector_dim,
            " for indices ", to_string(indices.type()));
  const int64_t width = index_vector_dim == indices.rank() ? 1 : indices.dim(index_vector_dim);
  require_size(op, "the index map", index_map.size(), width);
  require_dims(op, "the collapsed dimensions", gone, x.rank());
  require_dims(op, "the operand's batching dimensions", batching, x.rank());
  require_dims(op, "the indices' batching dimensions", indices_batching, indices.rank(), false);
  require_dims(op, "the index map", index_map, x.rank(), false);
  require_size(op, "the indices' batching dimensions", indices_batching.size(), static_cast<int64_t>(batching.size()));
  for (int64_t d : batching) {
    TPU_CHECK(!contains(gone, d) && !contains(index_map, d), op, ": dimension ", d, " is batching and indexed");
  }
  for (size_t i = 0; i < batching.size(); ++i) {
    TPU_CHECK(indices_batching[i] != index_vector_dim && x.dim(batching[i]) == indices.dim(indices_batching[i]), op,
              ": batching dimension ", batching[i], " of ", to_string(x.type()), " does not fit dimension ",
              indices_batching[i], " of ", to_string(indices.type()));
  }
}

// The dims of the gathered side: the indices' with `sizes` set in at `window`.
Dims interleave(std::string_view op, Value indices, int64_t index_vector_dim, const Dims& window, const Dims& sizes) {
  Dims batch = indices.dims();
  if (index_vector_dim < indices.rank()) batch.erase(batch.begin() + index_vector_dim);
  require_size(op, "the window dimensions", window.size(), static_cast<int64_t>(sizes.size()));
  const size_t rank = batch.size() + sizes.size();
  require_dims(op, "the window dimensions", window, static_cast<int64_t>(rank));
  Dims out;
  size_t from_batch = 0, from_window = 0;
  for (size_t i = 0; i < rank; ++i) {
    const bool inner = from_window < window.size() && window[from_window] == static_cast<int64_t>(i);
    out.push_back(inner ? sizes[from_window++] : batch[from_batch++]);
  }
  return out;
}

}  // namespace

Value dynamic_slice(Value x, const Values& starts, const Dims& sizes) {
  require_starts("dynamic_slice", x, starts);
  require_size("dynamic_slice", "sizes", sizes.size(), x.rank());
  for (size_t i = 0; i < sizes.size(); ++i) {
    TPU_CHECK(sizes[i] >= 0 && sizes[i] <= x.dims()[i], "dynamic_slice: sizes ", list(sizes), " of ",
              to_string(x.type()));
  }
  if (sizes == x.dims()) return x;  // starts are clamped to zero
  Values operands{x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return emit("dynamic_slice", std::move(operands), {x.dtype(), sizes}, "slice_sizes = " + array(sizes));
}

Value dynamic_update_slice(Value x, Value update, const Values& starts) {
  require_starts("dynamic_update_slice", x, starts);
  require_same_dtype("dynamic_update_slice", x, update);
  bool fits = update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dim(i) <= x.dim(i);
  TPU_CHECK(fits, "dynamic_update_slice: ", to_string(update.type()), " does not fit into ", to_string(x.type()));
  Values operands{x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return emit("dynamic_update_slice", std::move(operands), x.type());
}

Value gather(Value x, Value indices, const GatherDims& d, const Dims& slice_sizes, bool sorted) {
  constexpr std::string_view op = "gather";
  require_index_dims(op, x, indices, d.collapsed_slice_dims, d.operand_batching_dims, d.start_indices_batching_dims,
                     d.start_index_map, d.index_vector_dim);
  require_size(op, "slice_sizes", slice_sizes.size(), x.rank());
  Dims offsets;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const int64_t size = slice_sizes[static_cast<size_t>(i)];
    TPU_CHECK(size >= 0 && size <= x.dim(i), op, ": slice sizes ", list(slice_sizes), " of ", to_string(x.type()));
    if (contains(d.collapsed_slice_dims, i) || contains(d.operand_batching_dims, i)) {
      TPU_CHECK(size <= 1, op, ": dimension ", i, " goes, but its slice size is ", size);
    } else {
      offsets.push_back(size);
    }
  }
  Dims dims = interleave(op, indices, d.index_vector_dim, d.offset_dims, offsets);
  return emit(op, {x, indices}, {x.dtype(), std::move(dims)},
              "dimension_numbers = #stablehlo.gather<offset_dims = " + list(d.offset_dims) +
                  ", collapsed_slice_dims = " + list(d.collapsed_slice_dims) +
                  ", operand_batching_dims = " + list(d.operand_batching_dims) + ", start_indices_batching_dims = " +
                  list(d.start_indices_batching_dims) + ", start_index_map = " + list(d.start_index_map) +
                  text(", index_vector_dim = ", d.index_vector_dim, ">, slice_sizes = ") + array(slice_sizes) +
                  ", indices_are_sorted = " + flag(sorted));
}

Values scatter(const Values& xs, Value indices, const Values& updates, const ScatterDims& d, const CombineMany& combine,
               bool sorted, bool unique) {
  constexpr std::string_view op = "scatter";
  TPU_CHECK(!xs.empty(), op, ": no operands");
  require_size(op, "updates", updates.size(), static_cast<int64_t>(xs.size()));
  require_index_dims(op, xs[0], indices, d.inserted_window_dims, d.input_batching_dims, d.scatter_indices_batching_dims,
                     d.scatter_dims_to_operand_dims, d.index_vector_dim);
  const Value x = xs[0], update = updates[0];
  Dims windows, limits;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (!contains(d.inserted_window_dims, i) && !contains(d.input_batching_dims, i)) limits.push_back(x.dim(i));
  }
  require_size(op, "update_window_dims", d.update_window_dims.size(), static_cast<int64_t>(limits.size()));
  require_dims(op, "update_window_dims", d.update_window_dims, update.rank());
  for (size_t i = 0; i < limits.size(); ++i) {
    windows.push_back(update.dim(d.update_window_dims[i]));
    TPU_CHECK(windows[i] <= limits[i], op, ": the window ", to_string(update.type()), " is larger than ",
              to_string(x.type()));
  }
  const Dims expected = interleave(op, indices, d.index_vector_dim, d.update_window_dims, windows);
  std::vector<Type> scalars;
  Values operands = xs;
  operands.push_back(indices);
  for (size_t i = 0; i < xs.size(); ++i) {
    require_same_dtype(op, xs[i], updates[i]);
    TPU_CHECK(xs[i].dims() == x.dims(), op, ": shapes differ: ", to_string(x.type()), " and ", to_string(xs[i].type()));
    TPU_CHECK(updates[i].dims() == expected, op, ": the update is ", to_string(updates[i].type()), ", indices ",
              to_string(indices.type()), " need ", list(expected));
    operands.push_back(updates[i]);
    scalars.push_back({xs[i].dtype(), {}});
  }
  Region* body = combine_region(op, x.graph(), scalars, combine);
  return emit_many(op, std::move(operands), types_of(xs),
                   "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = " + list(d.update_window_dims) +
                       ", inserted_window_dims = " + list(d.inserted_window_dims) +
                       ", input_batching_dims = " + list(d.input_batching_dims) +
                       ", scatter_indices_batching_dims = " + list(d.scatter_indices_batching_dims) +
                       ", scatter_dims_to_operand_dims = " + list(d.scatter_dims_to_operand_dims) +
                       text(", index_vector_dim = ", d.index_vector_dim, ">, indices_are_sorted = ", flag(sorted),
                            ", unique_indices = ", flag(unique)),
                   {body});
}

Value scatter(Value x, Value indices, Value update, const ScatterDims& dims, const Combine& combine, bool sorted,
              bool unique) {
  return scatter(Values{x}, indices, Values{update}, dims, as_many(combine), sorted, unique)[0];
}

}  // namespace tpu::hlo
