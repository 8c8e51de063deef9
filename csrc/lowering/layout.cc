// SPDX-License-Identifier: Apache-2.0
// Putting elements elsewhere: joining, turning, repeating, triangles.
#include <algorithm>

#include "lowering/indexing.h"

namespace tpu::lowering {

TPU_LOWER("cat",
          [](Values parts, int64_t dim) {
            const Type& out = result_type();
            // PyTorch lets a vector of no elements stand for nothing of any shape.
            std::erase_if(parts, [&](Value part) { return part.dims() == Dims{0} && out.rank() != 1; });
            if (parts.empty()) return full(graph(), out, 0);
            for (Value& part : parts) part = cast(part, out.dtype);
            return concat(parts, dim);
          },
          {.no_overlap = true});

TPU_LOWER({"stack", "_stack"}, [](Values parts, int64_t dim) {
  for (Value& part : parts) part = cast(part, result_type().dtype);
  return stack(parts, dim);
});

TPU_LOWER("flip", [](Value x, Dims dims) {
  if (x.rank() == 0) return x;
  return flip(x, dims);
});

// out[(i + shift) mod n] = x[i]
TPU_LOWER("roll", [](Value x, Dims shifts, Dims dims) {
  if (x.numel() == 0) return x;
  Value y = dims.empty() ? reshape(x, {x.numel()}) : x;
  for (size_t k = 0; k < shifts.size(); ++k) {
    const int64_t d = dims.empty() ? 0 : wrap_dim(dims[k], x.rank(), "roll");
    const int64_t n = y.dim(d), cut = ((n - shifts[k]) % n + n) % n;
    if (cut != 0) y = concat({slice_dim(y, d, cut, n), slice_dim(y, d, 0, cut)}, d);
  }
  return reshape(y, x.dims());
});

// [a, b] repeated (r, s, t) times -> [r, s*a, t*b]
TPU_LOWER("repeat", [](Value x, Dims repeats) {
  const Type& out = result_type();
  if (out.numel() == 0) return full(x.graph(), out, 0);
  Dims laid, from;
  const auto lead = static_cast<int64_t>(repeats.size()) - x.rank();
  for (int64_t d = 0; d < static_cast<int64_t>(repeats.size()); ++d) {
    laid.push_back(repeats[static_cast<size_t>(d)]);
    if (d < lead) continue;
    from.push_back(static_cast<int64_t>(laid.size()));
    laid.push_back(x.dim(d - lead));
  }
  return reshape(broadcast_in_dim(x, laid, from), out.dims);
});

namespace {

// column - row at each place of the last two dimensions.
Value diagonal_number(Value x) {
  const Dims plane{x.dim(x.rank() - 2), x.dim(x.rank() - 1)};
  Value shape = full(x.graph(), {S32, plane}, 0);
  return iota_like(shape, 1, S32) - iota_like(shape, 0, S32);
}

int64_t clamp_to_s32(int64_t v) { return std::clamp<int64_t>(v, INT32_MIN, INT32_MAX); }

}  // namespace

TPU_LOWER("tril", [](Value x, int64_t diagonal) {
  return where(broadcast_to(le(diagonal_number(x), clamp_to_s32(diagonal)), x.dims()), x, 0);
});
TPU_LOWER("triu", [](Value x, int64_t diagonal) {
  return where(broadcast_to(ge(diagonal_number(x), clamp_to_s32(diagonal)), x.dims()), x, 0);
});

TPU_LOWER("block_diag", [](Values parts) {
  const Type& out = result_type();
  Values bands;
  int64_t left = 0;
  for (Value part : parts) {
    Value m = cast(part, out.dtype);
    if (m.rank() < 2) m = reshape(m, {1, m.numel()});
    bands.push_back(pad_dim(m, 1, left, out.dims[1] - left - m.dim(1)));
    left += m.dim(1);
  }
  return concat(bands, 0);
});

TPU_LOWER("split_with_sizes_copy", [](Value x, Dims sizes, Dim dim) {
  Values parts;
  int64_t start = 0;
  for (int64_t size : sizes) {
    parts.push_back(slice_dim(x, dim, start, start + size));
    start += size;
  }
  return parts;
});

}  // namespace tpu::lowering
