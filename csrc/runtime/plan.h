// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hlo/graph.h"
#include "runtime/program.h"
#include "runtime/value.h"

namespace tpu::runtime {

// A number known on the host when an operator is called: a Scalar argument, an offset, a seed.
struct Scalar {
  // Seed and Offset stand for a generator's state while a graph is captured; i: counters to skip.
  enum class Kind : uint8_t { Bool, Int, Float, Complex, Uint, Seed, Offset };
  Kind kind = Kind::Int;
  int64_t i = 0;  // Bool, Int; bits of Uint
  double re = 0;  // Float, Complex
  double im = 0;
};

// Where a parameter of a plan's program comes from.
struct Param {
  enum class From : uint8_t { Operand, Scalar, Constant };
  From from;
  int index;              // into the call's operands or scalars, or the plan's constants
  const hlo::Type* type;  // a scalar is converted to this (rank 0) on the host
};

// Where the elements of a value come from: these parameters of a plan, and numbers in `others`.
struct Origin {
  std::vector<int> params;
  Range others;  // low > high: none
  Range fits;    // else a conversion on the way has changed the elements
};

// One operator on one kind of arguments, as a graph. Immutable after it is built, but for the
// program, which is made on first launch. Lives for the process.
struct Plan {
  std::string name;    // "aten::add.Tensor"
  std::string line;    // of the user's program that it was built for
  std::string reason;  // why no earlier plan would do, in the user's words
  std::unique_ptr<hlo::Graph> graph;
  std::vector<Param> params;
  std::vector<const hlo::Type*> results;
  int64_t result_bytes = 0;
  std::vector<ValueRef> constants;  // values that the graph was captured with
  std::vector<int> donated;         // param indices that an aliased result may reuse
  std::vector<bool> in_stages;      // which operands and constants, in the order of params, are read in several loops
  std::vector<std::pair<int, Origin>> origins;  // of those results of which the operands' ranges tell something

  // For deferred graphs: the number of the one that it was part of last, and whether it came again soon after one.
  std::atomic<uint64_t> last_graph{0};
  std::atomic<bool> settled{false};

  // The executable; compiles or loads from disk on first use. Thread-safe.
  Program& program();
  Program* program_if_ready() const {
    Program* found = program_.load(std::memory_order_acquire);
    return found && found->generation == program_generation() ? found : nullptr;
  }

 private:
  std::atomic<Program*> program_{nullptr};
  std::mutex mutex_;
};

struct Operand;

// The range of elements of this origin in one call of `plan`.
Range range_of(const Origin& origin, const Plan& plan, std::span<const Operand> operands,
               std::span<const Scalar> scalars);
// Gives the results of a launch the ranges that follow from its operands'.
void set_ranges(const Plan& plan, std::span<const Operand> operands, std::span<const Scalar> scalars,
                std::span<ValueRef> results);

}  // namespace tpu::runtime
