// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lowering/promote.h"

// Shared by the lowerings that read and write at indices.
namespace tpu::lowering {

using OptValues = std::vector<std::optional<Value>>;

// Texts of CPU PyTorch.
std::function<std::string(int64_t)> out_of_bounds(int64_t dim, int64_t size);  // "index 9 is out of bounds for ..."
inline std::string out_of_range(int64_t) { return "index out of range in self"; }

std::string shape_text(const Dims& dims);  // "[2, 3]"

// A tensor without dimensions counts as one of one element.
inline Value at_least_1d(Value x) { return x.rank() == 0 ? reshape(x, {1}) : x; }

// The narrowest index type that counts to `limit`: a TPU has no native 64-bit integers.
DType index_dtype(int64_t limit);
// Negative indices count from the end; as index_dtype(size).
Value wrap_index(Value index, int64_t size);
// Without wrapping: what is out of range becomes `size`, which gather clamps and scatter skips.
Value plain_index(Value index, int64_t size);

// What x[i, :, j] selects, NumPy's rules: indices broadcast together to `batch`; its dimensions
// stand at `where` of the result, before or between those of x that have no index.
struct Selection {
  Value indices;  // [batch..., k]; null when a mask selects
  Dims batch;
  Dims indexed;  // dimensions of x, k of them
  Dims result;
  int64_t where = 0;
};
enum class Checked { AtRunTime, Already };  // Already: in range by construction
Selection select_indices(Value x, const OptValues& indices, Checked checked = Checked::AtRunTime);
Value gather_selection(Value x, const Selection& s);
Value scatter_selection(Value x, const Selection& s, Value update, const Combine& combine);

// x[index, :, ...] along dim and its inverse; `index` has rank 1, indices out of range are skipped.
Value scatter_rows(Value x, Value index, Value rows, int64_t dim, const Combine& combine);

// sum / count; integers are floored.
Value floor_mean(Value sum, Value count);

// How often each of 0 .. size-1 is in `index`, whatever its rank.
Value count_indices(Value index, int64_t size, DType dtype);

// For each of 0 .. count-1: how many elements of the ascending rank-1 `sorted` are <= it. `sorted`
// is an integer vector; the result has its dtype.
Value count_below(Value sorted, int64_t count);
// Positions in a rank-1 mask of its first `count` true elements; its size where there are fewer.
Value true_positions(Value mask, int64_t count);
// Inclusive running count of the true elements of a rank-1 mask.
Value running_count(Value mask);

inline Value keep_old(Value old, Value) { return old; }
inline Value take_new(Value, Value fresh) { return fresh; }
// The reduction's name of scatter_reduce and index_reduce. "mean" combines as a sum.
struct Reduction {
  Combine combine;
  Literal neutral;
};
Reduction reduction_of(const std::string& name, DType dtype);

}  // namespace tpu::lowering
