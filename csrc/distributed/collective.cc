// SPDX-License-Identifier: Apache-2.0
#include "distributed/collective.h"

#include <c10/core/ScalarType.h>

#include <string_view>

#include "base/error.h"

namespace tpu::distributed {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::AllReduce: return "all_reduce";
    case Kind::Reduce: return "reduce";
    case Kind::Broadcast: return "broadcast";
    case Kind::AllGather: return "all_gather";
    case Kind::Gather: return "gather";
    case Kind::Scatter: return "scatter";
    case Kind::ReduceScatter: return "reduce_scatter";
    case Kind::AllToAll: return "all_to_all";
    case Kind::Send: return "send";
    case Kind::Receive:
    case Kind::ReceiveAny: return "recv";
    case Kind::Barrier: return "barrier";
  }
  return "";
}

const char* name_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM: return "SUM";
    case c10d::ReduceOp::AVG: return "AVG";
    case c10d::ReduceOp::PRODUCT: return "PRODUCT";
    case c10d::ReduceOp::MIN: return "MIN";
    case c10d::ReduceOp::MAX: return "MAX";
    case c10d::ReduceOp::BAND: return "BAND";
    case c10d::ReduceOp::BOR: return "BOR";
    case c10d::ReduceOp::BXOR: return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM: return "PREMUL_SUM";
    case c10d::ReduceOp::UNUSED: break;
  }
  return "unknown";
}

}  // namespace

int64_t Array::numel() const {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

int64_t Array::bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

std::string Array::text() const {
  std::string out{c10::getDtypeNames(dtype).first};
  out += '[';
  for (size_t i = 0; i < sizes.size(); ++i) out += (i ? ", " : "") + std::to_string(sizes[i]);
  return out + ']';
}

std::string Collective::text() const {
  std::string out = name_of(kind);
  if (kind == Kind::AllReduce || kind == Kind::Reduce || kind == Kind::ReduceScatter)
    out += tpu::text('(', name_of(op), ')');
  const std::vector<Array>& arrays = inputs.empty() ? outputs : inputs;
  if (!arrays.empty()) {
    out += " of " + arrays[0].text();
    if (arrays.size() > 1) out += tpu::text(" and ", arrays.size() - 1, " more");
  }
  switch (kind) {
    case Kind::Reduce:
    case Kind::Gather: return out + tpu::text(" to rank ", peer);
    case Kind::Broadcast:
    case Kind::Scatter: return out + tpu::text(" from rank ", peer);
    case Kind::Send: return out + tpu::text(" to rank ", peer, tag ? tpu::text(", tag ", tag) : "");
    case Kind::Receive: return out + tpu::text(" from rank ", peer, tag ? tpu::text(", tag ", tag) : "");
    case Kind::ReceiveAny: return out + tpu::text(" from any rank", tag ? tpu::text(", tag ", tag) : "");
    default: return out;
  }
}

std::string Request::text() const {
  std::string out = parts[0].text();
  if (parts.size() > 1) out += tpu::text(", with ", parts.size() - 1, " more");
  return out;
}

void check_reduction(const c10d::ReduceOp& op, at::ScalarType dtype) {
  const auto names = [&] { return std::string(c10::getDtypeNames(dtype).first); };
  switch (op.op_) {
    case c10d::ReduceOp::BAND:
    case c10d::ReduceOp::BOR:
    case c10d::ReduceOp::BXOR:
      TORCH_CHECK_VALUE(c10::isIntegralType(dtype, true), "Cannot use ReduceOp.", name_of(op), " with the dtype ",
                        names(), ": it takes integers and bool");
      return;
    case c10d::ReduceOp::AVG:
    case c10d::ReduceOp::PREMUL_SUM:
      TORCH_CHECK_TYPE(dtype != at::kBool, "Cannot use ReduceOp.", name_of(op), " with Boolean inputs");
      return;
    case c10d::ReduceOp::SUM: return;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::MAX:
      TORCH_CHECK(!c10::isComplexType(dtype), "all_reduce does not support ", name_of(op), " on complex tensors");
      return;
    case c10d::ReduceOp::UNUSED: break;
  }
  TORCH_CHECK_VALUE(false, "Unhandled ReduceOp");
}

}  // namespace tpu::distributed
