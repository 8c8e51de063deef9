// SPDX-License-Identifier: Apache-2.0
#include "lowering/random.h"

#include <cmath>
#include <numbers>

#include "lowering/promote.h"

namespace tpu::lowering {

int mantissa_digits(DType t) {
  switch (t) {
    case F64:
    case C128: return 53;
    case F16: return 11;
    case BF16: return 8;
    default: return 24;
  }
}

Value Stream::bits(DType word, const Dims& dims) {
  Graph& graph = random_.seed.graph();
  const Type type{word, dims};
  const uint64_t high = draw_++ << 40;  // rounds of a loop count below
  if (type.numel() == 0) return full(graph, type, 0);
  Value counter = scalar(graph, U64, high);
  if (round_) counter = counter + round_;
  Value state = concatenate({reshape(random_.seed, {1}), reshape(random_.offset, {1}), reshape(counter, {1})}, 0);
  const auto per_counter = word == U64 ? 2 : 4;
  call().random_count =
      std::max<uint64_t>(call().random_count, static_cast<uint64_t>((type.numel() + per_counter - 1) / per_counter));
  return rng_bit_generator(state, type, RngAlgorithm::PHILOX).output;
}
Value Stream::bits32(const Dims& dims) { return bits(U32, dims); }
Value Stream::bits64(const Dims& dims) { return bits(U64, dims); }

Stream Stream::round(Value n) const {
  Stream inner = *this;
  inner.round_ = n;
  return inner;
}

Value Stream::uniform(DType t, const Dims& dims) {
  const int digits = mantissa_digits(t);
  if (random_dtype(t) == F64) return convert(bits64(dims) >> (64 - digits), F64) * std::ldexp(1.0, -digits);
  return convert(bits32(dims) >> (32 - digits), F32) * std::ldexp(1.0, -digits);
}

// (k + 1/2) / 2^32 for F32: 2^-33 at least, 1 where it rounds up. (k + 1) / 2^53 for F64.
Value Stream::uniform_positive(DType t, const Dims& dims) {
  if (t == F64) return (convert(bits64(dims) >> 11, F64) + 1) * 0x1p-53;
  return (convert(bits32(dims), F32) + 0.5) * 0x1p-32;
}

namespace {

// cos(2 pi x) for -1 < x < 1. float32: the series of -sin(2 pi (|x| - 1/4)) about 0 after reduction to
// |x| <= 1/2, good to 1e-7, since the CPU plugin's cosine is a scalar library call.
Value cos_of_turns(Value x) {
  if (x.dtype() == F64) return cos(x * (2 * std::numbers::pi));
  Value y = (0.25 - abs(x - round_nearest_even(x))) * (2 * std::numbers::pi), s = y * y;
  Value series = like(s, -1.0 / 39916800);
  for (double c : {1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0}) series = series * s + c;
  return y * series;
}

}  // namespace

// Pairs of uniforms give pairs of normals: r cos a, r sin a with r = sqrt(-2 ln u), a = 2 pi v. The
// sine is a cosine a quarter turn on, so that both are one elementwise expression.
Value Stream::normal(DType t, const Dims& dims) {
  const int64_t n = hlo::numel(dims), half = (n + 1) / 2;
  if (n == 0) return full(random_.seed.graph(), {t, dims}, 0);
  Value r = sqrt(log(uniform_positive(t, {half})) * -2);
  Value turn = expand_dims(uniform(t, {half}), 0) - iota(random_.seed.graph(), {t, {2, half}}, 0) * 0.25;
  Value z = expand_dims(r, 0) * cos_of_turns(turn);
  return reshape(slice_dim(reshape(z, {2 * half}), 0, 0, n), dims);
}

Value Stream::exponential(DType t, const Dims& dims, double smallest) {
  return maximum(-log(uniform_positive(t, dims)), smallest);
}

namespace {

void require_floating(Value self, const char* kernel) {
  if (!is_floating(self.dtype())) {
    fail(ErrorKind::NotImplemented, '"', kernel, "\" not implemented for '", torch_name(self.dtype()), "'");
  }
}

double real(const Literal& v) { return v.number().real(); }

// ---- uniform, normal ---------------------------------------------------------------------------

// from + (to - from) u; where rounding gives `to` itself: from. Of complex numbers both parts.
TPU_LOWER("uniform_",
          [](Value self, Value from, Value to, Random random) {
            if (!is_complex(self.dtype())) require_floating(self, "check_uniform_bounds");
            const DType part = is_complex(self.dtype()) ? real_of(self.dtype()) : self.dtype();
            const DType t = random_dtype(part);
            Value low = number(from, t), high = number(to, t);
            Stream stream(random);
            const auto draw = [&] {
              Value x = cast(low + (high - low) * stream.uniform(part, self.dims()), part);
              return where(ge(x, cast(high, part)), cast(low, part), x);
            };
            Value first = draw();
            return is_complex(self.dtype()) ? complex(first, draw()) : first;
          },
          {.check = [](DType dtype, const std::vector<Literal>& v) {
            const double from = real(v[0]), to = real(v[1]);
            if (is_complex(dtype)) dtype = real_of(dtype);
            const double top = dtype == F64    ? 1.7976931348623157e308
                               : dtype == F16  ? 65504
                               : dtype == BF16 ? 3.3895313892515355e38
                                               : 3.4028234663852886e38;
            const char* name = dtype == F64 ? "double" : dtype == F16 ? "Half" : dtype == BF16 ? "BFloat16" : "float";
            TPU_CHECK(from >= -top && from <= top, "from is out of bounds for ", name);
            TPU_CHECK(to >= -top && to <= top, "to is out of bounds for ", name);
            TPU_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
            TPU_CHECK(to - from <= top,
                      "uniform_ expects to-from <= std::numeric_limits<scalar_t>::max(), but found to=", to,
                      " and from=", from, " which result in to-from to exceed the limit");
          }});

// A complex normal has its variance shared by both parts.
Value standard_normal(Random random, DType t, const Dims& dims) {
  Stream stream(random);
  if (!is_complex(t)) return stream.normal(random_dtype(t), dims);
  Value re = stream.normal(real_of(t), dims), im = stream.normal(real_of(t), dims);
  return complex(re * std::numbers::sqrt2 / 2, im * std::numbers::sqrt2 / 2);
}

void check_std(DType, const std::vector<Literal>& v) {
  for (const Literal& std : {v.back()})
    TPU_CHECK(real(std) >= 0, "normal expects std >= 0.0, but found std ", real(std));
}

Value fill_normal(Value self, Value mean, Value std, Random random) {
  const DType t = self.dtype();
  if (!is_complex(t)) require_floating(self, "normal_kernel_cpu");
  Value z = standard_normal(random, t, self.dims());
  return cast(z * number(std, z.dtype()) + number(mean, z.dtype()), t);
}
TPU_LOWER("normal_", fill_normal, {.check = check_std, .no_meta = true});
TPU_LOWER("normal_functional", fill_normal, {.check = check_std});

// Tensors of means and deviations; the meta kernel gives shape and dtype.
Value normal_of(Value mean, Value std, Random random) {
  const Type& type = result_type();
  if (is_integer(mean.dtype()) && !is_weak(mean)) require_floating(mean, "normal_kernel_cpu");
  if (!is_floating(type.dtype) && !is_complex(type.dtype)) {
    fail(ErrorKind::NotImplemented, "\"normal_kernel_cpu\" not implemented for '", torch_name(type.dtype), "'");
  }
  Value z = standard_normal(random, type.dtype, type.dims);
  return cast(z * cast(std, z.dtype()) + cast(mean, z.dtype()), type.dtype);
}
TPU_LOWER("normal.Tensor_float", normal_of, {.check = check_std});
Value normal_of_deviations(Value mean, Value std, Random random) {
  if (is_floating(std.dtype())) {
    check_not(any(lt(std, 0), all_dims(std)), ErrorKind::Runtime, "normal expects all elements of std >= 0.0");
  }
  return normal_of(mean, std, random);
}
TPU_LOWER({"normal.float_Tensor", "normal.Tensor_Tensor"}, normal_of_deviations);

// ---- Integers ----------------------------------------------------------------------------------

// floor(a b / 2^64) of U64, by 32-bit halves.
Value multiply_high(Value a, Value b) {
  const uint64_t mask = 0xFFFFFFFF;
  Value a0 = a & mask, a1 = a >> 32, b0 = b & mask, b1 = b >> 32;
  Value low = a0 * b0;
  Value mid = a1 * b0 + (low >> 32);
  Value mid2 = a0 * b1 + (mid & mask);
  return a1 * b1 + (mid >> 32) + (mid2 >> 32);
}

// Uniform integers in [from, from + range) as S64; range: U64 scalar, 0 means 2^64. A narrow type
// has a range of at most 2^32, for which 32 random bits do.
Value integers(Random random, const Type& type, Value from, Value range) {
  Stream stream(random);
  Value offset;
  if (byte_size(type.dtype) < 4 || type.dtype == S32 || type.dtype == U32) {
    offset = (convert(stream.bits32(type.dims), U64) * range) >> 32;
  } else {
    Value bits = stream.bits64(type.dims);
    offset = where(eq(range, 0), bits, multiply_high(bits, range));
  }
  return convert(offset, S64) + from;
}

void require_random_dtype(DType t) {
  if (is_complex(t)) fail(ErrorKind::NotImplemented, "\"random_kernel_cpu\" not implemented for '", torch_name(t), "'");
}

// [0, 2^digits] of a float, [0, max] of an integer.
TPU_LOWER("random_", [](Value self, Random random) {
  const DType t = self.dtype();
  require_random_dtype(t);
  Graph& g = graph();
  if (t == PRED) return ne(Stream(random).bits32(self.dims()) & 1, 0);
  const int bits = is_floating(t) ? mantissa_digits(t) : 8 * byte_size(t) - is_signed_integer(t);
  const uint64_t range = is_floating(t) ? (uint64_t{1} << bits) + 1 : bits == 64 ? 0 : uint64_t{1} << bits;
  return cast(integers(random, self.type(), scalar(g, S64, 0), scalar(g, U64, range)), t);
});

// 2^(floor(log2 |n|) - digits + 1): the distance of floats around the integer n.
Value float_step(Value n, int digits) {
  Value log2 = 63 - count_leading_zeros(maximum(abs(n), 1));
  return where(ge(log2, digits - 1), like(n, 1) << maximum(log2 - (digits - 1), 0), 1);
}

// Bounds that a float can't hold are moved inwards, as PyTorch does.
Value round_up(Value from, DType t) {
  Value next = convert(convert(from + 1, t), S64);
  return where(lt(next, from), next + float_step(from + 1, mantissa_digits(t)), from);
}
Value round_down(Value to, DType t) {
  Value last = convert(convert(to - 1, t), S64);
  return where(ge(last, to), last - float_step(to - 1, mantissa_digits(t)), to);
}

Value random_between(Value self, Value from, Value to, Random random) {
  const DType t = self.dtype();
  require_random_dtype(t);
  Value low = convert(from, S64), high = convert(to, S64);
  if (is_floating(t)) low = round_up(low, t), high = round_down(high, t);
  return cast(integers(random, self.type(), low, bitcast_convert(high - low, U64)), t);
}

void check_in_range(DType dtype, const Literal& number, const char* name) {
  if (is_complex(dtype))
    fail(ErrorKind::Runtime, "check_random_bounds handles only integral, floating-point and boolean types");
  const int64_t v = number.bits();
  bool fits = true;
  const char* type = "";
  switch (dtype) {
    case PRED: fits = v >= 0 && v <= 1, type = "bool"; break;
    case U8: fits = v >= 0 && v <= 255, type = "unsigned char"; break;
    case S8: fits = v >= -128 && v <= 127, type = "signed char"; break;
    case S16: fits = v >= -32768 && v <= 32767, type = "short"; break;
    case U16: fits = v >= 0 && v <= 65535, type = "unsigned short"; break;
    case S32: fits = v >= INT32_MIN && v <= INT32_MAX, type = "int"; break;
    case U32: fits = v >= 0 && v <= UINT32_MAX, type = "unsigned int"; break;
    case U64: fits = v >= 0, type = "unsigned long"; break;
    case F16: fits = v >= -65504 && v <= 65504, type = "c10::Half"; break;
    default: break;
  }
  TPU_CHECK(fits, name, " is out of bounds for ", type);
}

void check_bounds(DType dtype, const Literal& from, const Literal& to) {
  TPU_CHECK(from.bits() < to.bits(), "random_ expects 'from' to be less than 'to', but got from=", from.bits(),
            " >= to=", to.bits());
  check_in_range(dtype, from, "from");
  check_in_range(dtype, Literal(to.bits() - 1), "to - 1");
}

TPU_LOWER("random_.to",
          [](Value self, Value to, Random random) { return random_between(self, scalar(graph(), S64, 0), to, random); },
          {.check = [](DType dtype, const std::vector<Literal>& v) { check_bounds(dtype, 0, v[0]); }});

// Without `to`: up to the largest number, included.
TPU_LOWER("random_.from",
          [](Value self, Value from, std::optional<Value> to, Random random) {
            if (to) return random_between(self, from, *to, random);
            const DType t = self.dtype();
            require_random_dtype(t);
            Graph& g = graph();
            Value top = is_floating(t) ? scalar(g, S64, int64_t{1} << mantissa_digits(t))
                        : t == PRED    ? scalar(g, S64, 1)
                                       : convert(highest(g, t), S64);
            Value low = is_floating(t) ? round_up(convert(from, S64), t) : convert(from, S64);
            return cast(integers(random, self.type(), low, bitcast_convert(top - low + 1, U64)), t);
          },
          {.check = [](DType dtype, const std::vector<Literal>& v) {
            if (v.size() == 2)
              check_bounds(dtype, v[0], v[1]);
            else
              check_in_range(dtype, v[0], "from");
          }});

// Every number below n must have a place in the result's dtype.
void check_permutation(int64_t n, DType t) {
  if (is_floating(t) && t != F64) {
    const int64_t most = (int64_t{1} << mantissa_digits(t)) + 1;
    TPU_CHECK(n <= most, "n cannot be greater than ", most, " for ", torch_name(t), " type.");
  } else if (is_integer(t) && byte_size(t) < 8) {
    const int bits = 8 * byte_size(t) - is_signed_integer(t);
    TPU_CHECK(n < int64_t{1} << bits, "value cannot be converted to type ", is_signed_integer(t) ? "int" : "uint",
              8 * byte_size(t), "_t without overflow");
  }
}

// The order of random keys.
TPU_LOWER("randperm.generator_out", [](int64_t n, Random random) {
  check_permutation(n, result_type().dtype);
  Value keys = Stream(random).bits64({n});
  if (n < 2) return iota(graph(), {S64, {n}}, 0);
  return sort({keys, iota(graph(), {S64, {n}}, 0)}, 0, false, [](const Values& v) { return lt(v[0], v[1]); })[1];
});

// ---- Bernoulli and other inversions ------------------------------------------------------------

TPU_LOWER("bernoulli_.float",
          [](Value self, Value p, Random random) {
            if (is_complex(self.dtype())) {
              fail(ErrorKind::NotImplemented, "\"bernoulli_scalar_cpu_\" not implemented for '",
                   torch_name(self.dtype()), "'");
            }
            const DType t = random_dtype(self.dtype());
            return cast(lt(Stream(random).uniform(t, self.dims()), number(p, t)), self.dtype());
          },
          {.check = [](DType, const std::vector<Literal>& v) {
            TPU_CHECK(real(v[0]) >= 0 && real(v[0]) <= 1,
                      "bernoulli_ expects p to be in [0, 1], but got p=", real(v[0]));
          }});

Value coins(Value p, const Dims& dims, Random random) {
  if (!is_floating(p.dtype())) {
    fail(ErrorKind::NotImplemented, "\"bernoulli_tensor_cpu_p_\" not implemented for '", torch_name(p.dtype()), "'");
  }
  const DType t = random_dtype(p.dtype());
  check_not(any(!(ge(p, 0) & le(p, 1)), all_dims(p)), ErrorKind::Runtime,
            "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  return lt(Stream(random).uniform(t, dims), broadcast_to(convert(p, t), dims));
}
TPU_LOWER("bernoulli_.Tensor",
          [](Value self, Value p, Random random) { return cast(coins(p, self.dims(), random), self.dtype()); },
          {.host_tensors = true});
TPU_LOWER("bernoulli.out",
          [](Value p, Random random, Value out) { return cast(coins(p, p.dims(), random), out.dtype()); });

void require_continuous(Value self, const char* name) {
  TPU_CHECK(is_floating(self.dtype()), name,
            " distribution is a continuous probability distribution. dtype must be a floating point but you specified ",
            torch_name(self.dtype()));
}

// -ln(u) / lambda
TPU_LOWER("exponential_",
          [](Value self, Value lambda, Random random) {
            require_continuous(self, "Exponential");
            const DType t = random_dtype(self.dtype());
            const double smallest = std::ldexp(1.0, -mantissa_digits(self.dtype()));
            return cast(Stream(random).exponential(t, self.dims(), smallest) / number(lambda, t), self.dtype());
          },
          {.check =
               [](DType, const std::vector<Literal>& v) {
                 TPU_CHECK(real(v[0]) > 0, "exponential_ expects lambda > 0.0, but found lambda=", real(v[0]));
               },
           .no_meta = true});

// ceil(ln(u) / ln(1 - p)), 1 at least
TPU_LOWER("geometric_",
          [](Value self, Value p, Random random) {
            if (self.dtype() == PRED || is_complex(self.dtype())) {
              fail(ErrorKind::NotImplemented, "\"geometric_cpu\" not implemented for '", torch_name(self.dtype()), "'");
            }
            const DType t = random_dtype(self.dtype());
            Value x = ceil(log(Stream(random).uniform_positive(t, self.dims())) / log1p(-number(p, t)));
            return cast(maximum(x, 1), self.dtype());
          },
          {.check =
               [](DType, const std::vector<Literal>& v) {
                 TPU_CHECK(real(v[0]) > 0 && real(v[0]) < 1,
                           "geometric_ expects p to be in (0, 1), but got p=", real(v[0]));
               },
           .no_meta = true});

// median + sigma tan(pi (u - 1/2)); u moves away from the pole at 0 by half a step.
TPU_LOWER("cauchy_",
          [](Value self, Value median, Value sigma, Random random) {
            require_continuous(self, "Cauchy");
            const DType t = random_dtype(self.dtype());
            const double half_step = std::ldexp(0.5, -mantissa_digits(t));
            Value u = Stream(random).uniform(t, self.dims()) - 0.5 + half_step;
            return cast(tan(u * std::numbers::pi) * number(sigma, t) + number(median, t), self.dtype());
          },
          {.check =
               [](DType, const std::vector<Literal>& v) {
                 TPU_CHECK(real(v[1]) > 0, "cauchy_ expects sigma > 0.0, but found sigma=", real(v[1]));
               },
           .no_meta = true});

TPU_LOWER("log_normal_",
          [](Value self, Value mean, Value std, Random random) {
            require_floating(self, "log_normal_cpu");
            const DType t = random_dtype(self.dtype());
            return cast(exp(Stream(random).normal(t, self.dims()) * number(std, t) + number(mean, t)), self.dtype());
          },
          {.check =
               [](DType, const std::vector<Literal>& v) {
                 TPU_CHECK(real(v[1]) > 0, "log_normal_ expects std > 0.0, but found std=", real(v[1]));
               },
           .no_meta = true});

// ---- Dropout -----------------------------------------------------------------------------------

// Keeps an element with probability `kept`, scaled by 1 / kept (0 where nothing is kept).
std::pair<Value, Value> drop(Value x, Value kept, Random random) {
  const DType t = random_dtype(x.dtype());
  Value keep_at = number(kept, t);
  Value mask = lt(Stream(random).uniform(t, x.dims()), keep_at);
  Value scale = where(eq(keep_at, 0), 0, 1 / keep_at);
  Value a = accumulate(x);
  return {convert(a * convert(mask, a.dtype()) * convert(scale, a.dtype()), x.dtype()), mask};
}

TPU_LOWER("native_dropout",
          [](Value x, Value p, std::optional<bool> train) {
            if (!train.value_or(true)) return std::tuple(x, full(graph(), {PRED, x.dims()}, true));
            auto [y, mask] = drop(x, 1 - p, call().random);
            return std::tuple(y, mask);
          },
          {.default_generator = true});

TPU_LOWER("_fused_dropout", [](Value x, Value kept, Random random) {
  auto [y, mask] = drop(x, kept, random);
  return std::tuple(y, convert(mask, U8));
});

Value scaled_mask(Value x, Value mask, Value scale) {
  Value a = accumulate(x);
  return convert(a * convert(mask, a.dtype()) * convert(scale, a.dtype()), x.dtype());
}
// Integers become what they are with a float scale.
TPU_LOWER("native_dropout_backward",
          [](Value dy, Value mask, Value scale) { return scaled_mask(convert(dy, result_type().dtype), mask, scale); });
TPU_LOWER("_masked_scale", scaled_mask);

// Slopes of the negative part are uniform in [lower, upper) in training, else their middle.
std::pair<Value, Value> rrelu(Value x, Value noise, Value lower, Value upper, bool training, Random random) {
  const DType t = random_dtype(x.dtype());
  Value a = convert(x, t), low = number(lower, t), high = number(upper, t);
  if (!training) return {convert(where(gt(a, 0), a, a * ((low + high) * 0.5)), x.dtype()), Value()};
  Value slope = low + (high - low) * Stream(random).uniform(t, x.dims());
  Value negative = le(a, 0);
  return {convert(where(negative, a * slope, a), x.dtype()), convert(where(negative, slope, 1), noise.dtype())};
}
TPU_LOWER({"rrelu_with_noise", "rrelu_with_noise_"},
          [](Value x, Value noise, Value lower, Value upper, bool training, Random random) {
            auto [y, new_noise] = rrelu(x, noise, lower, upper, training, random);
            return std::tuple(y, new_noise);
          });
TPU_LOWER("rrelu_with_noise.out", [](Value x, Value noise, Value lower, Value upper, bool training, Random random) {
  auto [y, new_noise] = rrelu(x, noise, lower, upper, training, random);
  return std::tuple(new_noise, y);  // written in the schema's order
});

}  // namespace
}  // namespace tpu::lowering
