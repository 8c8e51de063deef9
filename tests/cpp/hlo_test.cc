// SPDX-License-Identifier: Apache-2.0
// Shape rules, messages, hashing and printing of csrc/hlo; no plugin needed.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>  // brings std::reduce into overload resolution, as in a lowering file

#include "base/error.h"
#include "hlo/loops.h"
#include "hlo/math.h"

using namespace tpu;
using namespace tpu::hlo;

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                                   \
    }                                                                               \
  } while (false)

namespace {

int failures = 0;

bool contains(const std::string& s, const std::string& part) { return s.find(part) != std::string::npos; }

// The message that `f` throws; empty when it does not.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

size_t count_nodes(const Graph& g) { return g.body().nodes().size() - g.body().arguments().size(); }

void types() {
  CHECK(to_string(Type{DType::F32, {2, 3}}) == "f32[2,3]");
  CHECK(mlir_type({DType::U8, {}}) == "tensor<ui8>");
  CHECK(mlir_type({DType::C64, {0, 2}}) == "tensor<0x2xcomplex<f32>>");
  CHECK((Type{DType::F64, {2, 0}}.numel()) == 0);
  CHECK(complex_of(DType::F64) == DType::C128 && real_of(DType::C64) == DType::F32);
  CHECK(contains(error_of([] { complex_of(DType::BF16); }), "BF16"));
  CHECK(is_integer(DType::U4) && !is_signed_integer(DType::U4) && !is_integer(DType::PRED));
}

void literals() {
  CHECK(Literal(0.5).text(DType::F32) == "0.5");
  CHECK(Literal(1).text(DType::F16) == "1.0");
  CHECK(Literal(1e30).text(DType::F64) == "1.0e+30");
  CHECK(Literal(-0.0).text(DType::F32) == "-0.0");
  CHECK(Literal(std::nan("")).text(DType::BF16) == "0x7FC0");
  CHECK(Literal(-std::numeric_limits<double>::infinity()).text(DType::F32) == "0xFF800000");
  CHECK(Literal(std::numeric_limits<int64_t>::min()).text(DType::S64) == "-9223372036854775808");
  CHECK(Literal(std::numeric_limits<uint64_t>::max()).text(DType::U64) == "18446744073709551615");
  CHECK(Literal(-1).text(DType::U8) == "255" && Literal(0xF0).text(DType::S8) == "-16");
  CHECK(Literal(2.0).text(DType::S32) == "2" && Literal(true).text(DType::F32) == "1.0");
  CHECK(Literal(3).text(DType::PRED) == "true");
  CHECK(Literal(std::complex<double>(1, -2)).text(DType::C64) == "(1.0, -2.0)");
  CHECK(contains(error_of([] { (void)Literal(300).text(DType::U8); }), "300 does not fit U8"));
  CHECK(contains(error_of([] { (void)Literal(0.5).text(DType::S8); }), "0.5"));
  CHECK(contains(error_of([] { (void)Literal(std::complex<double>(0, 1)).text(DType::F32); }), "F32"));
}

void broadcasting() {
  Graph g;
  Value x = g.parameter({DType::F32, {2, 1}}), y = g.parameter({DType::F32, {3}});
  CHECK((x + y).dims() == (Dims{2, 3}));
  CHECK(eq(x, y).type() == (Type{DType::PRED, {2, 3}}));
  CHECK(where(gt(x, 0), y, 0).dims() == (Dims{2, 3}));
  const size_t before = count_nodes(g);
  Value z = 1 - x;  // a splat of x's shape and the subtraction, no broadcast
  CHECK(count_nodes(g) == before + 2 && z.dims() == x.dims());
  CHECK(broadcast_to(x, {2, 1}).same(x) && reshape(x, {2, 1}).same(x) && convert(x, DType::F32).same(x));
  CHECK(transpose(x, {0, 1}).same(x) && slice_dim(x, 0, 0, 2).same(x) && sum(x, Dims{}).same(x));
  CHECK(reshape(reshape(x, {2}), {2, 1}).same(x));
  Value wide = broadcast_to(scalar(g, DType::F32, 2), {4, 5});
  CHECK(is_splat(wide) && wide.dims() == (Dims{4, 5}));
  CHECK(broadcast_to(scalar(g, DType::F32, 2), {0}).numel() == 0);
  Value half = g.parameter({DType::BF16, {3}});
  const std::string mixed = error_of([&] { half - y; });
  CHECK(contains(mixed, "bf16[3]") && contains(mixed, "f32[3]"));
  CHECK(contains(error_of([&] { y + g.parameter({DType::F32, {2}}); }), "[3] and [2]"));
  CHECK(contains(error_of([&] { where(eq(x, x), 1, 2); }), "two numbers"));
  CHECK(contains(error_of([&] { !x; }), "needs PRED, got f32[2,1]"));
}

void shapes() {
  Graph g;
  Value x = g.parameter({DType::F32, {2, 3, 4}}), i = g.parameter({DType::S64, {5, 6}});
  CHECK(sum(x, {0, 2}).dims() == Dims{3} && sum(x, -1, keep).dims() == (Dims{2, 3, 1}));
  CHECK(max(x, 1).dims() == (Dims{2, 4}) && any(x, all_dims(x)).type() == (Type{DType::PRED, {}}));
  CHECK(argmax(x, 1).index.type() == (Type{DType::S64, {2, 4}}));
  CHECK(take(x, i, 1).dims() == (Dims{2, 5, 6, 4}));
  CHECK(take_along(x, g.parameter({DType::S32, {2, 7, 4}}), 1).dims() == (Dims{2, 7, 4}));
  CHECK(swap_dims(x, 0, -1).dims() == (Dims{4, 3, 2}) && move_dim(x, 0, 2).dims() == (Dims{3, 4, 2}));
  CHECK(stack({x, x}, -1).dims() == (Dims{2, 3, 4, 2}) && concat({x, x}, 1).dims() == (Dims{2, 6, 4}));
  CHECK(pad_dim(x, 2, -1, 2, 0, 1).dims() == (Dims{2, 3, 8}));
  CHECK(slice_dim(x, 2, 1, 4, 2).dims() == (Dims{2, 3, 2}) && select_dim(x, 1, 2).dims() == (Dims{2, 4}));
  CHECK(batch_matmul(x, g.parameter({DType::F32, {2, 4, 9}}), DType::F64).type() == (Type{DType::F64, {2, 3, 9}}));
  CHECK(fft(x, FftType::RFFT, {3, 4}).type() == (Type{DType::C64, {2, 3, 3}}));
  CHECK(bitcast_convert(x, DType::U16).dims() == (Dims{2, 3, 4, 2}));
  CHECK(reduce(x, scalar(g, DType::F32, 0), {1}, [](Value a, Value b) { return a + b; }).dims() == (Dims{2, 4}));
  CHECK(cumulative(x, 1, Scan::Sum).dims() == x.dims());
  Value image = g.parameter({DType::F32, {2, 4, 8, 8}}), kernel = g.parameter({DType::F32, {6, 2, 3, 3}});
  CHECK(convolution(image, kernel, conv_nchw(2), {.strides = {2, 1}, .padding = {{1, 1}, {0, 2}}, .feature_groups = 2})
            .dims() == (Dims{2, 6, 4, 8}));
  CHECK(contains(error_of([&] { convolution(image, kernel, conv_nchw(2)); }), "4 features"));
}

void errors() {
  Graph g, other;
  Value x = g.parameter({DType::F32, {2, 3}}), n = g.parameter({DType::S32, {}});
  CHECK(contains(error_of([&] { add(x, g.parameter({DType::F32, {3}})); }), "f32[2,3] and f32[3]"));
  CHECK(contains(error_of([&] { sine(n); }), "sine: needs float or complex, got i32[]"));
  CHECK(contains(error_of([&] { reshape(x, {7}); }), "6 elements, [7] has 7"));
  CHECK(contains(error_of([&] { sum(x, 2); }), "dimension 2 is out of range for rank 2"));
  CHECK(contains(error_of([&] { sum(x, {0, -2}); }), "repeat"));
  CHECK(contains(error_of([&] { squeeze(x, 0); }), "squeeze"));
  CHECK(contains(error_of([&] { matmul2(x, x); }), "dimension 1 of f32[2,3]"));
  CHECK(contains(error_of([&] { x + other.parameter({DType::F32, {2, 3}}); }), "another graph"));
  CHECK(contains(error_of([&] { exp(Value()); }), "empty value"));
  CHECK(contains(error_of([&] { lt(complex(x, x), 0); }), "no order"));
  CHECK(contains(error_of([&] { slice_dim(x, 1, 0, 4); }), "slice"));
  CHECK(contains(error_of([&] {
                   while_({n}, [](const Values& s) { return lt(s[0], 1); }, [&](const Values&) { return Values{x}; });
                 }),
                 "the body returns f32[2,3]"));
  CHECK(contains(
      error_of([&] { reduce(x, scalar(g, DType::F32, 0), {0}, [&](Value a, Value) { return a * sum(x, {0, 1}); }); }),
      "from outside"));
  CHECK(&g.current() == &g.body());  // restored though the functions threw
}

std::string sample(int64_t size, double factor, Hash128* hash, bool dead) {
  Graph g;
  Value x = g.parameter({DType::F32, {2, size}}), n = g.parameter({DType::S32, {}});
  if (dead) exp(sum(x, 0));
  Values loop = while_(
      {n, x}, [](const Values& s) { return lt(s[0], 10); },
      [&](const Values& s) { return Values{s[0] + 1, s[1] * factor + sum(x, 1, keep)}; });
  g.set_results({loop[1]});
  g.alias(0, 0);
  *hash = g.hash();
  return print_mlir(g, "sample");
}

void hashing() {
  Hash128 a, b, c, d;
  const std::string one = sample(3, 2, &a, false), same = sample(3, 2, &b, true);
  sample(4, 2, &c, false);
  sample(3, 2.5, &d, false);
  CHECK(one == same && a == b);  // dead nodes do not count
  CHECK(!(a == c) && !(a == d));
  Graph g, h;
  Value x = g.parameter({DType::F32, {}}), y = g.parameter({DType::F32, {}});
  Value p = h.parameter({DType::F32, {}}), q = h.parameter({DType::F32, {}});
  g.set_results({x - y});
  h.set_results({q - p});
  CHECK(!(g.hash() == h.hash()));
}

void loops() {
  Graph g;
  Value x = g.parameter({DType::F32, {4, 4}});
  const auto count = [&](int64_t first, int64_t by, const std::function<Value(Value)>& goes_on) {
    Value w = g.parameter({DType::F32, {4, 4}});
    return while_(
        {scalar(g, DType::S32, int64_t{first}), x}, [&](const Values& s) { return goes_on(s[0]); },
        [&](const Values& s) {
          return Values{s[0] + like(s[0], by),
                        dot_general(s[1], w, {{}, {}, {1}, {0}}, Precision::DEFAULT, DType::F32)};
        });
  };
  Values results = {
      count(0, 3, [](Value i) { return lt(i, 10); })[1],                         // 0 3 6 9
      count(10, -2, [](Value i) { return ge(i, 0); })[1],                        // 10 8 6 4 2 0
      count(1, 1, [&](Value i) { return ge(scalar(g, DType::S32, 5), i); })[1],  // 1 to 5
      count(5, 1, [](Value i) { return lt(i, 5); })[1],                          // none
      count(0, -1, [](Value i) { return lt(i, 5); })[1],                         // until the number wraps: not known
  };
  g.set_results(results);
  const std::vector<Loop> found = find_loops(g, "f");
  CHECK(found.size() == 5);
  CHECK(found[0].trips == 4 && found[1].trips == 6 && found[2].trips == 5 && found[3].trips == 0 &&
        found[4].trips == 0);
  CHECK(contains(found[0].body, "%arg2: tensor<4x4xf32>") && contains(found[0].body, "stablehlo.dot_general"));
  CHECK(found[4].body.empty());
}

void printing() {
  Graph g;
  Value x = g.parameter({DType::F32, {2, 3}});
  Value unused = exp(x);
  (void)unused;
  g.set_results({sum(x * 0.5, 1), sort({x, x}, 0, true, [](const Values& a) { return lt(a[0], a[1]); })[1]});
  g.alias(0, 1);
  const std::string expected = R"(module @test {
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 1 : i32}) -> (tensor<2xf32>, tensor<2x3xf32>) {
    %0 = "stablehlo.constant"() <{value = dense<0.5> : tensor<2x3xf32>}> : () -> tensor<2x3xf32>
    %1 = "stablehlo.multiply"(%arg0, %0) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = "stablehlo.constant"() <{value = dense<0.0> : tensor<f32>}> : () -> tensor<f32>
    %3 = "stablehlo.reduce"(%1, %2) <{dimensions = array<i64: 1>}> ({
    ^bb0(%4: tensor<f32>, %5: tensor<f32>):
      %6 = "stablehlo.add"(%4, %5) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%6) : (tensor<f32>) -> ()
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %7:2 = "stablehlo.sort"(%arg0, %arg0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%8: tensor<f32>, %9: tensor<f32>, %10: tensor<f32>, %11: tensor<f32>):
      %12 = "stablehlo.compare"(%8, %9) <{comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type FLOAT>}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
      "stablehlo.return"(%12) : (tensor<i1>) -> ()
    }) : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    "func.return"(%3, %7#1) : (tensor<2xf32>, tensor<2x3xf32>) -> ()
  }
}
)";
  const std::string got = print_mlir(g, "test");
  if (got != expected) std::fprintf(stderr, "%s", got.c_str());
  CHECK(got == expected);
  const std::string brief = print_short(g);
  CHECK(contains(brief, "%1: f32[2,3] = multiply %arg0, %0\n") && !contains(brief, "exponential"));

  Graph call;
  custom_call(call, "Target", {}, {}, {.backend_config = "a\"b\n", .has_side_effect = true});
  Value m = constant(call, {DType::S32, {2, 2}}, std::vector<int64_t>{1, 2, 3, 4});
  call.set_results({m});
  const std::string text = print_mlir(call, "m");
  CHECK(contains(text, R"(    "stablehlo.custom_call"() <{call_target_name = "Target")"));  // kept: side effect
  CHECK(contains(text, R"(backend_config = "a\22b\0A")") && contains(text, "dense<[[1, 2], [3, 4]]>"));
}

}  // namespace

int main() {
  types();
  literals();
  broadcasting();
  shapes();
  errors();
  hashing();
  loops();
  loops();
  printing();
  if (failures == 0) std::puts("hlo_test: ok");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
