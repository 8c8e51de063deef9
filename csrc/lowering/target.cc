// SPDX-License-Identifier: Apache-2.0
#include "lowering/target.h"

#include <map>
#include <mutex>

namespace tpu::lowering {
namespace {

struct Row {
  bool Target::* field;  // null: no choice of the target's
  const char* what;
  const char* on_cpu;
  const char* on_tpu;
  const char* why;
};

constexpr Row kRows[] = {
    {&Target::checked_values, "values that PyTorch refuses (an index out of range)", "judged in the program, raised",
     "clamped, as XLA defines", "reading the verdict waits for the program, which costs nothing on the host alone"},
    {&Target::int64_products, "products and convolutions of int64", "dot_general, convolution", "multiply, then sum",
     "a TPU has neither for int64"},
    {&Target::leading_batches, "batched products of bfloat16", "batches transposed to the front",
     "batches where they lie", "the CPU plugin refuses some bfloat16 products of others, at the launch"},
    {&Target::double_transforms, "fft of float64", "fft", "products with the roots of unity",
     "a TPU's fft takes float32 only"},
    {&Target::flipped_kernels, "input gradient of a convolution", "kernel flipped by a reverse", "reversed window",
     "the CPU plugin is 30 times faster on unreversed windows; a TPU reverses for free"},
    {&Target::walked_windows, "max pooling and its gradient", "shifted slices; places compared with the index",
     "reduce_window; select_and_scatter, which of several NaNs takes the gradient is open",
     "the CPU plugin walks windows one by one; a TPU has both in hardware loops, and needs no index"},
    {&Target::packed_sorts, "sort", "value and index packed into one integer", "stable sort of two operands",
     "the CPU plugin calls the comparison for each pair; a TPU compares in vectors and has no 64-bit integers"},
    {&Target::scattered_positions, "positions of true values", "scatter", "binary search of the running count",
     "a scatter runs one element at a time on a TPU"},
    {&Target::strip_sums, "sums of rows in normalizations", "strips of 16, then the strips", "one reduce",
     "the CPU plugin adds a row one by one"},
    {&Target::plain_extremes, "argmax, argmin", "extreme, then the first place that has it", "one reduce of pairs",
     "the CPU plugin makes vector code of plain reductions only"},
    {&Target::plain_signature, "arguments and results", "as they are", "marked as whole on the device",
     "a TPU's compiler then writes the result of a scatter once, where it wrote it twice"},
    // One form for all targets.
    {nullptr, "attention", "blocks of query rows; the gradient computes the probabilities again", nullptr,
     "no matrix of probabilities is kept, and a causal mask leaves out what it hides"},
    {nullptr, "random numbers", "Philox, in the program", nullptr, "a seed gives the same numbers on every target"},
    {nullptr, "products of float32", "as torch.set_float32_matmul_precision says: six passes for 'highest'", nullptr,
     "a TPU multiplies bfloat16; what precision is worth is the user's to say"},
    {nullptr, "layouts", "the compiler's own; tensors of the program are dense in the order of their sizes", nullptr,
     "the compiler knows the tiles"},
};

}  // namespace

const Target& cpu_target() {
  static const Target target{.name = "CPU"};
  return target;
}

const Target& tpu_target(std::string_view generation) {
  static auto* mutex = new std::mutex;
  static auto* targets = new std::map<std::string, Target, std::less<>>;  // stable addresses
  std::lock_guard lock(*mutex);
  const auto found = targets->find(generation);
  if (found != targets->end()) return found->second;
  Target target{.name = std::string(generation)};
  for (const Row& row : kRows)
    if (row.field) target.*row.field = false;
  return targets->emplace(target.name, target).first->second;
}

const Target& any_size_target(const Target& target) {
  static auto* mutex = new std::mutex;
  static auto* targets = new std::map<std::string, Target>;
  std::lock_guard lock(*mutex);
  const auto [any, fresh] = targets->emplace(target.name, target);
  if (fresh) any->second.strip_sums = false, any->second.any_size = true;
  return any->second;
}

std::vector<Choice> choices(const Target& target) {
  std::vector<Choice> out;
  for (const Row& row : kRows)
    out.push_back({row.what, !row.field || target.*row.field ? row.on_cpu : row.on_tpu, row.why});
  return out;
}

}  // namespace tpu::lowering
