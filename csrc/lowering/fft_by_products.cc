// SPDX-License-Identifier: Apache-2.0
#include "lowering/fft_by_products.h"

#include <numbers>

#include "lowering/matmul.h"
#include "lowering/promote.h"

// Fourier transforms as products with the matrix of the roots of unity.
namespace tpu::lowering {
namespace {

constexpr int64_t kDense = 128;  // up to this length one product; beyond, the length is split into factors

struct Parts {
  Value re, im;
};

Parts times(Parts a, Parts b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }

// w[j, k] = exp(sign 2 pi i j k / n), [rows, columns]. j k is reduced first: the angle stays exact.
Parts roots(int64_t rows, int64_t columns, int64_t n, double sign, DType t) {
  const hlo::Type type{S64, {rows, columns}};
  Value turns = remainder(iota(graph(), type, 0) * iota(graph(), type, 1), full(graph(), type, n));
  Value angle = convert(turns, t) * (sign * 2 * std::numbers::pi / static_cast<double>(n));
  return {cos(angle), sin(angle)};
}

// y[.., k] = sum_j x[.., j] w[j, k]
Parts along_last(Parts x, Parts w) {
  const int64_t last = x.re.rank() - 1;
  const auto dot = [&](Value a, Value b) { return product(a, b, {{}, {}, {last}, {0}}); };
  return {dot(x.re, w.re) - dot(x.im, w.im), dot(x.re, w.im) + dot(x.im, w.re)};
}

int64_t factor_of(int64_t n) {
  for (int64_t a = kDense; a > 1; --a) {
    if (n % a == 0) return a;
  }
  return n;
}

// Along the last dimension. With n = a b, m = m1 b + m2 and k = k1 + a k2 (Cooley and Tukey, 1965):
// X[k] = sum_m2 W_b^(m2 k2) W_n^(m2 k1) sum_m1 W_a^(m1 k1) x[m]
Parts transform(Parts x, double sign) {
  const DType t = x.re.dtype();
  const int64_t n = x.re.dims().back(), a = n <= kDense ? n : factor_of(n), b = n / a;
  if (b == 1) return along_last(x, roots(n, n, n, sign, t));
  const auto both = [](Parts p, auto&& f) { return Parts{f(p.re), f(p.im)}; };
  Dims split = x.re.dims();
  split.back() = a;
  split.push_back(b);
  const int64_t r = static_cast<int64_t>(split.size());
  const auto swapped = [r](Value v) { return swap_dims(v, r - 2, r - 1); };
  x = both(x, [&](Value v) { return swapped(reshape(v, split)); });  // [.., m2, m1]
  x = along_last(x, roots(a, a, a, sign, t));                        // [.., m2, k1]
  const Parts twiddle = roots(b, a, n, sign, t);
  x = times(x, both(twiddle, [&](Value v) { return broadcast_to(v, x.re.dims()); }));
  x = transform(both(x, swapped), sign);  // [.., k1, k2]
  Dims joined = split;
  joined.pop_back();
  joined.back() = n;
  return both(x, [&](Value v) { return reshape(swapped(v), joined); });
}

// A dimension of length n of half a spectrum of real numbers, made whole: X[n - k] is the conjugate of X[k].
Value whole_spectrum(Value half, int64_t n) {
  const int64_t last = half.rank() - 1, present = half.dim(last);
  if (n - present <= 0) return slice_dim(half, last, 0, n);
  Value mirrored = reverse(slice_dim(half, last, 1, n - present + 1), {last});
  return concat({half, complex(real(mirrored), -imag(mirrored))}, last);
}

}  // namespace

Value fft_by_products(Value x, FftType type, const Dims& length) {
  const int64_t n = static_cast<int64_t>(length.size()), r = x.rank();
  const bool inverse = type == FftType::IFFT || type == FftType::IRFFT;
  if (type == FftType::IRFFT) x = whole_spectrum(x, length.back());
  Parts parts = is_complex(x.dtype()) ? Parts{real(x), imag(x)} : Parts{x, zeros_like(x)};
  for (int64_t d = r - n; d < r; ++d) {
    const auto moved = [&](Value v) { return swap_dims(v, d, r - 1); };
    parts = transform({moved(parts.re), moved(parts.im)}, inverse ? 1 : -1);
    parts = {moved(parts.re), moved(parts.im)};
  }
  if (inverse) {
    double count = 1;
    for (int64_t l : length) count *= static_cast<double>(l);
    parts = {parts.re / count, parts.im / count};
  }
  if (type == FftType::IRFFT) return parts.re;
  Value y = complex(parts.re, parts.im);
  return type == FftType::RFFT ? slice_dim(y, r - 1, 0, length.back() / 2 + 1) : y;
}

}  // namespace tpu::lowering
