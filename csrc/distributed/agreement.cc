// SPDX-License-Identifier: Apache-2.0
#include "distributed/agreement.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/hash.h"

namespace tpu::distributed {
namespace {

// What must be the same on all ranks. Arrays may differ in shape, not in length.
uint64_t signature(const Request& request) {
  Hash128 hash;
  const auto add = [&](const std::vector<Array>& arrays) {
    for (const Array& array : arrays) {
      hash.add(static_cast<uint64_t>(array.dtype));
      hash.add(static_cast<uint64_t>(array.numel()));
    }
  };
  for (const Collective& part : request.parts) {
    hash.add(static_cast<uint64_t>(part.kind));
    switch (part.kind) {
      case Kind::AllReduce:
        hash.add(static_cast<uint64_t>(part.op.op_));
        add(part.inputs);
        break;
      case Kind::Reduce:
        hash.add(static_cast<uint64_t>(part.op.op_));
        hash.add(static_cast<uint64_t>(part.peer));
        add(part.inputs);
        break;
      case Kind::Broadcast:
        hash.add(static_cast<uint64_t>(part.peer));
        add(part.inputs.empty() ? part.outputs : part.inputs);
        break;
      case Kind::AllGather: {
        bool even = true;
        for (const Array& out : part.outputs) even = even && out.numel() == part.outputs[0].numel();
        if (even)
          add(part.inputs);
        else
          add(part.outputs);
        break;
      }
      case Kind::Gather:
        hash.add(static_cast<uint64_t>(part.peer));
        add(part.inputs);
        break;
      case Kind::Scatter:
        hash.add(static_cast<uint64_t>(part.peer));
        add(part.outputs);
        break;
      case Kind::ReduceScatter: {
        hash.add(static_cast<uint64_t>(part.op.op_));
        bool even = true;
        for (const Array& in : part.inputs) even = even && in.numel() == part.inputs[0].numel();
        if (even)
          add(part.outputs);
        else
          add(part.inputs);
        break;
      }
      case Kind::AllToAll:
        if (!part.inputs.empty()) hash.add(static_cast<uint64_t>(part.inputs[0].dtype));
        break;
      default: break;
    }
  }
  return hash.lo();
}

template <class T>
T read(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// The bytes that go to, or come from, each rank.
int64_t share(const std::vector<Array>& arrays, const std::vector<int64_t>& splits, size_t rank) {
  if (splits.empty()) return arrays[rank].bytes();
  return splits[rank] * static_cast<int64_t>(c10::elementSize(arrays[0].dtype));
}

}  // namespace

void Header::write(const Request& request, uint64_t number, int size, const std::string& failure, uint8_t* memory) {
  Fixed fixed{};
  fixed.failed = !failure.empty();
  fixed.number = number;
  fixed.kind = static_cast<uint64_t>(request.parts[0].kind);
  fixed.hash = signature(request);
  const Collective& part = request.parts[0];
  if (part.kind == Kind::Send) fixed.bytes = static_cast<uint64_t>(part.inputs[0].bytes());
  std::string text = failure.empty() ? request.text() : failure;
  text.resize(std::min(text.size(), sizeof fixed.text - 1));
  std::memcpy(fixed.text, text.c_str(), text.size());
  std::memcpy(memory, &fixed, sizeof fixed);
  memory += sizeof fixed;
  const bool exchange = part.kind == Kind::AllToAll;
  for (int rank = 0; rank < size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const int64_t pair[2] = {exchange ? share(part.inputs, part.give, r) : 0,
                             exchange ? share(part.outputs, part.get, r) : 0};
    std::memcpy(memory + r * sizeof pair, pair, sizeof pair);
  }
}

std::string Header::compare(const uint8_t* memory, int size) {
  const auto at = [&](int rank) { return memory + rank * bytes(size); };
  const Fixed first = read<Fixed>(at(0));
  bool alike = true;
  for (int rank = 0; rank < size; ++rank) {
    const Fixed fixed = read<Fixed>(at(rank));
    if (fixed.failed) return tpu::text("rank ", rank, " can't take part: ", std::string_view(fixed.text));
    alike = alike && fixed.number == first.number && fixed.kind == first.kind && fixed.hash == first.hash;
  }
  if (!alike) {
    std::string out = "the ranks disagree:";
    std::string_view between = " ";
    for (int rank = 0; rank < size; ++rank) {
      const Fixed fixed = read<Fixed>(at(rank));
      out += tpu::text(between, "rank ", rank, " calls ", std::string_view(fixed.text));
      between = "; ";
    }
    return out;
  }
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const auto give = read<int64_t>(at(from) + sizeof(Fixed) + static_cast<size_t>(to) * 16);
      const auto get = read<int64_t>(at(to) + sizeof(Fixed) + static_cast<size_t>(from) * 16 + 8);
      if (give != get) {
        return tpu::text("the ranks disagree: rank ", from, " gives ", give, " bytes to rank ", to, ", which expects ",
                         get);
      }
    }
  }
  return "";
}

std::string Header::compare_message(const uint8_t* memory, const Request& expected, int64_t* bytes) {
  const auto fixed = read<Fixed>(memory);
  *bytes = static_cast<int64_t>(fixed.bytes);
  if (fixed.failed) return tpu::text("the sender can't send: ", std::string_view(fixed.text));
  if (*bytes == expected.parts[0].outputs[0].bytes()) return "";
  return tpu::text("the ranks disagree: the sender calls ", std::string_view(fixed.text));
}

std::string missing_ranks(c10d::Store& store, int rank, int size) {
  constexpr auto kPatience = std::chrono::seconds(2);
  const auto key = [](int r) { return tpu::text("left/", r); };
  std::string missing;
  try {
    store.set(key(rank), std::vector<uint8_t>{1});
    std::vector<int> open;
    for (int r = 0; r < size; ++r)
      if (r != rank) open.push_back(r);
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      std::erase_if(open, [&](int r) { return store.check({key(r)}); });
      if (open.empty() || std::chrono::steady_clock::now() > until) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (open.empty()) return "every rank has left it";
    for (int r : open) missing += tpu::text(missing.empty() ? "" : ", ", r);
    return tpu::text(open.size() == 1 ? "rank " : "ranks ", missing, " did not take part: died, or stalled elsewhere");
  } catch (const std::exception&) {
    return "the store of the group does not answer either: the process that holds it, mostly rank 0, has ended";
  }
}

}  // namespace tpu::distributed
