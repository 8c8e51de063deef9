// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"
#include "hlo/ops.h"

// Only for the ops_*.cc files: making nodes, writing attributes, and the checks they share.
namespace tpu::hlo::build {

// Element families, as bits of a set.
enum Family : unsigned { kPred = 1, kSigned = 2, kUnsigned = 4, kFloat = 8, kComplex = 16 };
inline constexpr unsigned kInteger = kSigned | kUnsigned;
inline constexpr unsigned kNumber = kInteger | kFloat | kComplex;
inline constexpr unsigned kAny = kNumber | kPred;

// `op` is the name without dialect for StableHLO, "chlo.x" for CHLO.
Node* emit_node(Graph& graph, std::string_view op, Values operands, std::vector<Type> results,
                std::string attributes = {}, std::vector<Region*> regions = {});
Value emit(std::string_view op, Values operands, Type result, std::string attributes = {},
           std::vector<Region*> regions = {});
Values emit_many(std::string_view op, Values operands, std::vector<Type> results, std::string attributes = {},
                 std::vector<Region*> regions = {});

void require(std::string_view op, Value x, unsigned families);
void require_same_dtype(std::string_view op, Value x, Value y);
void require_same_type(std::string_view op, Value x, Value y);
void require_dim(std::string_view op, int64_t dim, int64_t rank);
void require_scalar(std::string_view op, Value x, std::string_view what);
// Sorted, in range, without repeats.
void require_dims(std::string_view op, std::string_view what, const Dims& dims, int64_t rank, bool sorted = true);
void require_size(std::string_view op, std::string_view what, size_t size, int64_t wanted);

std::string list(const Dims& dims);                 // "[0, 1]"
std::string array(const Dims& dims);                // "array<i64: 0, 1>"
std::string array(const std::vector<bool>& flags);  // "array<i1: true>"
std::string pairs(const Padding& padding);          // "dense<[[0, 1]]> : tensor<1x2xi64>"
std::string flag(bool v);
std::string quote(std::string_view s);
std::string precision_config(Precision p);
Dims ones_if_empty(const Dims& dims, int64_t rank);
Padding zeros_if_empty(const Padding& padding, int64_t rank);

// Size of a dimension after base dilation, padding, and a strided, dilated window.
int64_t window_output(int64_t size, int64_t base_dilation, std::pair<int64_t, int64_t> padding, int64_t window,
                      int64_t window_dilation, int64_t stride);

Region* combine_region(std::string_view op, Graph& graph, const std::vector<Type>& scalars, const CombineMany& combine);
Region* combine_region(std::string_view op, Graph& graph, DType t, const Combine& combine, DType result);
CombineMany as_many(const Combine& combine);
std::vector<Type> types_of(const Values& values);

}  // namespace tpu::hlo::build
