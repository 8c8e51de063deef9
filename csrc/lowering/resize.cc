// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "lowering/promote.h"
#include "lowering/resample.h"

// Interpolation: one sparse matrix a dimension, whose transpose is the gradient.
namespace tpu::lowering {
namespace {

enum class Mode { Nearest, NearestExact, Linear, Cubic, LinearAa, CubicAa, LanczosAa };
using Scale1 = std::optional<double>;

// Source positions are computed in T, the dtype CPU PyTorch computes them in: rounding picks places.
template <class T>
struct Positions {
  int64_t in, out;
  bool align;
  Scale1 given;

  T scale() const {
    if (align) return out > 1 ? static_cast<T>(in - 1) / static_cast<T>(out - 1) : T(0);
    return given && *given > 0 ? static_cast<T>(1.0 / *given) : static_cast<T>(in) / static_cast<T>(out);
  }
  T source(int64_t o) const {
    return align ? scale() * static_cast<T>(o) : scale() * (static_cast<T>(o) + T(0.5)) - T(0.5);
  }
};

// Cubic convolution with a = -0.75: weights of the places -1, 0, 1, 2.
template <class T>
std::vector<T> cubic_weights(T t) {
  const T a = T(-0.75);
  const auto near = [&](T x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [&](T x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  return {far(t + 1), near(t), near(1 - t), far(2 - t)};
}

template <class T>
T filter(Mode mode, T x) {
  x = std::abs(x);
  if (mode == Mode::LinearAa) return x < 1 ? 1 - x : T(0);
  if (mode == Mode::CubicAa) {
    const T a = T(-0.5);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : T(0);
  }
  const auto sinc = [](T v) { return v == 0 ? T(1) : std::sin(T(M_PI) * v) / (T(M_PI) * v); };
  return x < 3 ? sinc(x) * sinc(x / 3) : T(0);
}

// Antialiased: the filter is stretched over the places that shrink into one.
template <class T>
std::vector<std::pair<int64_t, double>> stretched(Mode mode, const Positions<T>& p, int64_t o) {
  const T reach = mode == Mode::LinearAa ? 1 : mode == Mode::CubicAa ? 2 : 3, scale = p.scale();
  const T support = scale >= 1 ? reach * scale : reach, inverse = scale >= 1 ? 1 / scale : T(1);
  const T centre = scale * (static_cast<T>(o) + T(0.5));
  const int64_t low = std::max<int64_t>(static_cast<int64_t>(centre - support + T(0.5)), 0);
  const int64_t high = std::min<int64_t>(static_cast<int64_t>(centre + support + T(0.5)), p.in);
  std::vector<T> weights;
  T total = 0;
  for (int64_t i = low; i < high; ++i) {
    weights.push_back(filter(mode, (static_cast<T>(i) - centre + T(0.5)) * inverse));
    total += weights.back();
  }
  std::vector<std::pair<int64_t, double>> row;
  for (size_t j = 0; j < weights.size(); ++j) {
    row.emplace_back(low + static_cast<int64_t>(j), static_cast<double>(total != 0 ? weights[j] / total : weights[j]));
  }
  return row;
}

template <class T>
std::vector<std::pair<int64_t, double>> taps_of(Mode mode, const Positions<T>& p, int64_t o) {
  const int64_t last = p.in - 1;
  switch (mode) {
    case Mode::Nearest: return {{std::min(static_cast<int64_t>(std::floor(p.scale() * static_cast<T>(o))), last), 1.0}};
    case Mode::NearestExact: {
      const auto i = static_cast<int64_t>(std::floor((static_cast<T>(o) + T(0.5)) * p.scale()));
      return {{std::min(i, last), 1.0}};
    }
    case Mode::Linear: {
      if (p.in == p.out) return {{o, 1.0}};
      const T source = std::max(p.source(o), T(0));
      const int64_t i = std::min(static_cast<int64_t>(source), last);
      const T t = std::clamp(source - static_cast<T>(i), T(0), T(1));
      return {{i, static_cast<double>(1 - t)}, {std::min(i + 1, last), static_cast<double>(t)}};
    }
    case Mode::Cubic: {
      const T source = p.source(o), floor = std::floor(source);
      const std::vector<T> weights = cubic_weights(source - floor);
      std::vector<std::pair<int64_t, double>> row;
      for (int64_t j = 0; j < 4; ++j) {
        row.emplace_back(std::clamp<int64_t>(static_cast<int64_t>(floor) + j - 1, 0, last),
                         static_cast<double>(weights[at(j)]));
      }
      return row;
    }
    default: return stretched(mode, p, o);
  }
}

template <class T>
Taps taps_for(Mode mode, const Positions<T>& p) {
  Taps taps{p.in, {}};
  for (int64_t o = 0; o < p.out; ++o) taps.rows.push_back(taps_of(mode, p, o));
  return taps;
}

Taps interpolation(Mode mode, DType t, int64_t in, int64_t out, bool align, Scale1 scale) {
  if (t == F64) return taps_for(mode, Positions<double>{in, out, align, scale});
  return taps_for(mode, Positions<float>{in, out, align, scale});
}

// Bytes are mixed in fixed point, as CPU PyTorch does: weights of at most 16 bits, rounded.
Taps fixed_point(Taps taps) {
  double largest = 0;
  for (auto& row : taps.rows) {
    std::vector<std::pair<int64_t, double>> merged;  // clamped places meet at the border
    for (const auto& [index, weight] : row) {
      if (!merged.empty() && merged.back().first == index)
        merged.back().second += weight;
      else
        merged.emplace_back(index, weight);
      largest = std::max(largest, merged.back().second);
    }
    row = std::move(merged);
  }
  int bits = 0;
  while (bits < 22 && static_cast<int64_t>(0.5 + largest * std::exp2(bits + 1)) < (1 << 15)) ++bits;
  for (auto& row : taps.rows) {
    for (auto& [index, weight] : row) {
      weight = std::trunc(weight * std::exp2(bits) + (weight < 0 ? -0.5 : 0.5)) / std::exp2(bits);
    }
  }
  return taps;
}

bool copies(Mode mode) { return mode == Mode::Nearest || mode == Mode::NearestExact; }

// x [N, C, ...] to spatial sizes `size`.
Value resize(Value x, const Dims& size, Mode mode, bool align, const std::vector<Scale1>& scales) {
  const DType t = x.dtype();
  const bool whole = !is_floating(t) && !copies(mode);
  Value v = copies(mode) ? x : whole ? convert(x, F32) : accumulate(x);
  for (size_t i = size.size(); i-- > 0;) {
    const auto d = static_cast<int64_t>(i) + 2;
    const Taps taps = interpolation(mode, t, x.dim(d), size[i], align, scales[i]);
    v = apply(whole ? fixed_point(taps) : taps, v, d);
    if (whole) v = clip(floor(v + 0.5), 0, 255);
  }
  return convert(v, t);
}

Value resize_backward(Value dy, const Dims& in, Mode mode, bool align, const std::vector<Scale1>& scales) {
  Value g = accumulate(dy);
  for (size_t i = 0; i + 2 < in.size(); ++i) {
    const auto d = static_cast<int64_t>(i) + 2;
    g = apply(transposed(interpolation(mode, dy.dtype(), in[i + 2], dy.dim(d), align, scales[i])), g, d);
  }
  return convert(g, dy.dtype());
}

auto plain1(Mode m) {
  return [m](Value x, Dims size, Scale1 w) { return resize(x, size, m, false, {w}); };
}
auto plain2(Mode m) {
  return [m](Value x, Dims size, Scale1 h, Scale1 w) { return resize(x, size, m, false, {h, w}); };
}
auto plain3(Mode m) {
  return [m](Value x, Dims size, Scale1 d, Scale1 h, Scale1 w) { return resize(x, size, m, false, {d, h, w}); };
}
auto plain1_backward(Mode m) {
  return [m](Value dy, Unused, Dims in, Scale1 w) { return resize_backward(dy, in, m, false, {w}); };
}
auto plain2_backward(Mode m) {
  return [m](Value dy, Unused, Dims in, Scale1 h, Scale1 w) { return resize_backward(dy, in, m, false, {h, w}); };
}
auto plain3_backward(Mode m) {
  return [m](Value dy, Unused, Dims in, Scale1 d, Scale1 h, Scale1 w) {
    return resize_backward(dy, in, m, false, {d, h, w});
  };
}
auto aligned2(Mode m) {
  return [m](Value x, Dims size, bool align, Scale1 h, Scale1 w) { return resize(x, size, m, align, {h, w}); };
}
auto aligned2_backward(Mode m) {
  return [m](Value dy, Unused, Dims in, bool align, Scale1 h, Scale1 w) {
    return resize_backward(dy, in, m, align, {h, w});
  };
}

TPU_LOWER("upsample_nearest1d", plain1(Mode::Nearest));
TPU_LOWER("upsample_nearest2d", plain2(Mode::Nearest));
TPU_LOWER("upsample_nearest3d", plain3(Mode::Nearest));
TPU_LOWER("upsample_nearest1d_backward", plain1_backward(Mode::Nearest));
TPU_LOWER("upsample_nearest2d_backward", plain2_backward(Mode::Nearest));
TPU_LOWER("upsample_nearest3d_backward", plain3_backward(Mode::Nearest));
TPU_LOWER("_upsample_nearest_exact1d", plain1(Mode::NearestExact));
TPU_LOWER("_upsample_nearest_exact2d", plain2(Mode::NearestExact));
TPU_LOWER("_upsample_nearest_exact3d", plain3(Mode::NearestExact));
TPU_LOWER("_upsample_nearest_exact1d_backward", plain1_backward(Mode::NearestExact));
TPU_LOWER("_upsample_nearest_exact2d_backward", plain2_backward(Mode::NearestExact));
TPU_LOWER("_upsample_nearest_exact3d_backward", plain3_backward(Mode::NearestExact));
TPU_LOWER("upsample_linear1d",
          [](Value x, Dims size, bool align, Scale1 w) { return resize(x, size, Mode::Linear, align, {w}); });
TPU_LOWER("upsample_linear1d_backward", [](Value dy, Unused, Dims in, bool align, Scale1 w) {
  return resize_backward(dy, in, Mode::Linear, align, {w});
});
TPU_LOWER("upsample_trilinear3d", [](Value x, Dims size, bool align, Scale1 d, Scale1 h, Scale1 w) {
  return resize(x, size, Mode::Linear, align, {d, h, w});
});
TPU_LOWER("upsample_trilinear3d_backward", [](Value dy, Unused, Dims in, bool align, Scale1 d, Scale1 h, Scale1 w) {
  return resize_backward(dy, in, Mode::Linear, align, {d, h, w});
});
TPU_LOWER("upsample_bilinear2d", aligned2(Mode::Linear));
TPU_LOWER("upsample_bilinear2d_backward", aligned2_backward(Mode::Linear));
TPU_LOWER("upsample_bicubic2d", aligned2(Mode::Cubic));
TPU_LOWER("upsample_bicubic2d_backward", aligned2_backward(Mode::Cubic));
TPU_LOWER("_upsample_bilinear2d_aa", aligned2(Mode::LinearAa));
TPU_LOWER("_upsample_bilinear2d_aa_backward", aligned2_backward(Mode::LinearAa));
TPU_LOWER("_upsample_bicubic2d_aa", aligned2(Mode::CubicAa));
TPU_LOWER("_upsample_bicubic2d_aa_backward", aligned2_backward(Mode::CubicAa));
TPU_LOWER("_upsample_lanczos2d_aa", aligned2(Mode::LanczosAa));
TPU_LOWER("_upsample_lanczos2d_aa_backward", aligned2_backward(Mode::LanczosAa));

// ---- Channels to places and back -----------------------------------------------------------------

// [.., C r r, H, W] -> [.., C, H r, W r]
TPU_LOWER("pixel_shuffle", [](Value x, int64_t r) {
  const Dims& out = result_type().dims;
  const int64_t n = numel(Dims(x.dims().begin(), x.dims().end() - 3)), k = x.rank();
  const int64_t c = out[at(k - 3)], h = x.dim(k - 2), w = x.dim(k - 1);
  return reshape(transpose(reshape(x, {n, c, r, r, h, w}), {0, 1, 4, 2, 5, 3}), out);
});
TPU_LOWER("pixel_unshuffle", [](Value x, int64_t r) {
  const Dims& out = result_type().dims;
  const int64_t n = numel(Dims(x.dims().begin(), x.dims().end() - 3)), k = x.rank();
  const int64_t c = x.dim(k - 3), h = out[at(k - 2)], w = out[at(k - 1)];
  return reshape(transpose(reshape(x, {n, c, h, r, w, r}), {0, 1, 3, 5, 2, 4}), out);
});

TPU_LOWER({"channel_shuffle", "native_channel_shuffle"}, [](Value x, int64_t groups) {
  const Dims rest = sizes_from(x, 2);
  Dims split{x.dim(0), groups, x.dim(1) / groups};
  split.insert(split.end(), rest.begin(), rest.end());
  return reshape(swap_dims(reshape(x, split), 1, 2), x.dims());
});

}  // namespace
}  // namespace tpu::lowering
