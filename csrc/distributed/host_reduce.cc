// SPDX-License-Identifier: Apache-2.0
#include "distributed/host_reduce.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_as_real.h>

namespace tpu::distributed {
namespace {

using c10d::ReduceOp;

// The dtype to reduce in: ATen has no arithmetic for some that the device has. Sums and products of integers that wrap
// around come out the same in a wider type.
at::ScalarType carrier(at::ScalarType dtype) {
  switch (dtype) {
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64: return at::kLong;
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz: return at::kFloat;
    default: return dtype;
  }
}

void scale(at::Tensor& data, const ReduceOp& op) {
  const auto* supplement = static_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (supplement->tensor_factor.defined())
    data.mul_(supplement->tensor_factor);
  else
    data.mul_(supplement->double_factor);
}

void divide(at::Tensor& data, int64_t n) {
  if (at::isIntegralType(data.scalar_type(), false))
    data.div_(n, "trunc");
  else
    data.div_(n);
}

at::Tensor reduced(const ReduceOp& op, const at::Tensor& rows) {
  if (rows.scalar_type() == at::kBool) {
    switch (op.op_) {
      case ReduceOp::PRODUCT:
      case ReduceOp::MIN:
      case ReduceOp::BAND: return rows.all(0);
      case ReduceOp::BXOR: return rows.sum(0).remainder(2).to(at::kBool);
      default: return rows.any(0);
    }
  }
  switch (op.op_) {
    case ReduceOp::PRODUCT: return at::prod(rows, 0, false, rows.scalar_type());
    case ReduceOp::MIN: return at::amin(rows, 0);
    case ReduceOp::MAX: return at::amax(rows, 0);
    case ReduceOp::BAND:
    case ReduceOp::BOR:
    case ReduceOp::BXOR: {
      at::Tensor out = rows[0].clone();
      for (int64_t i = 1; i < rows.size(0); ++i) {
        if (op.op_ == ReduceOp::BAND) out.bitwise_and_(rows[i]);
        if (op.op_ == ReduceOp::BOR) out.bitwise_or_(rows[i]);
        if (op.op_ == ReduceOp::BXOR) out.bitwise_xor_(rows[i]);
      }
      return out;
    }
    default: return at::sum(rows, 0, false, rows.scalar_type());
  }
}

}  // namespace

bool gloo_reduces(const ReduceOp& op, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kInt:
    case at::kLong:
    case at::kChar:
    case at::kByte: return true;
    // Gloo rounds after each addition.
    case at::kHalf:
    case at::kBFloat16: return op.op_ == ReduceOp::MIN || op.op_ == ReduceOp::MAX;
    default: return false;
  }
}

void reduce_rows(const ReduceOp& op, const at::Tensor& parts, at::Tensor& out) {
  if (at::isComplexType(parts.scalar_type()) && op.op_ != ReduceOp::PREMUL_SUM) {
    at::Tensor real = at::view_as_real(out);
    reduce_rows(op, at::view_as_real(parts), real);
    return;
  }
  const at::ScalarType wide = carrier(parts.scalar_type());
  at::Tensor rows = parts.to(wide);
  // The largest of unsigned 64-bit numbers is the largest signed one with the upper bit turned.
  const bool turned = parts.scalar_type() == at::kUInt64 && (op.op_ == ReduceOp::MIN || op.op_ == ReduceOp::MAX);
  if (turned) rows = rows.bitwise_xor(INT64_MIN);
  const bool half = wide == at::kHalf || wide == at::kBFloat16;
  if (half) rows = rows.to(at::kFloat);
  if (op.op_ == ReduceOp::PREMUL_SUM) {
    if (rows.is_alias_of(parts)) rows = rows.clone();
    scale(rows, op);
  }
  at::Tensor result = reduced(op, rows);
  if (op.op_ == ReduceOp::AVG) divide(result, parts.size(0));
  if (turned) result = result.bitwise_xor(INT64_MIN);
  out.copy_(result);
}

ReduceOp plain(const ReduceOp& op) {
  return op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM ? ReduceOp(ReduceOp::SUM) : op;
}

void before_sum(const ReduceOp& op, at::Tensor& data) {
  if (op.op_ == ReduceOp::PREMUL_SUM) scale(data, op);
}

void after_sum(const ReduceOp& op, at::Tensor& data, int64_t n) {
  if (op.op_ == ReduceOp::AVG) divide(data, n);
}

}  // namespace tpu::distributed
