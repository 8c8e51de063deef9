// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tpu::aten {

struct ArgSpec;
struct Call;

// What an argument looked like, as far as it shapes a program.
struct ArgumentNote {
  enum class What : uint8_t { None, Tensor, Number, Setting, List };
  What what = What::None;
  int argument = 0, element = -1;  // of the schema; in a list
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;  // of a tensor; strides are empty where it is contiguous. List: its length
  std::string text;                     // Tensor: what else there is to it; Number: its kind; Setting: its value
  std::string name;                     // where "argument 0" would not say it
};

struct CallNote {
  std::vector<ArgumentNote> arguments;
  std::string surroundings;  // the default dtype and the like
};

CallNote note_of(c10::ArrayRef<ArgSpec> specs, c10::ArrayRef<c10::IValue> arguments, const Call& call);

// The kinds of calls that an operator has met, to tell what is new in the next.
class CallHistory {
 public:
  // Remembers `note`; returns why its plan is a new one: "argument 0 of aten::add changed size from (8, 128)
  // to (8, 129)". Warns, once, where the same argument keeps changing. Thread-safe.
  std::string reason(const std::string& op, CallNote note, const std::string& line);

 private:
  struct Changing {
    int count = 0;
    int64_t transfers = -1;  // of the process, when it was last counted
  };
  std::mutex mutex_;
  std::deque<CallNote> notes_;
  std::map<std::pair<int, std::string>, Changing> changing_;  // by argument and line
  bool warned_ = false;
};

}  // namespace tpu::aten
