// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "hlo/build.h"

// Control flow, random bits, custom calls and collectives: what is more than a function of tensors.
namespace tpu::hlo {
using namespace build;
namespace {

Values branches_of(std::string_view op, Value selector, const std::vector<const Build*>& branches) {
  require_scalar(op, selector, "the selector");
  TPU_CHECK(!branches.empty(), op, ": no branches");
  std::vector<Region*> regions;
  for (const Build* branch : branches) {
    regions.push_back(selector.graph().region({}, [&](const Values&) { return (*branch)(); }));
    const std::vector<Type> first = types_of(regions[0]->results()), own = types_of(regions.back()->results());
    require_size(op, "a branch's result list", own.size(), static_cast<int64_t>(first.size()));
    for (size_t i = 0; i < own.size(); ++i) {
      TPU_CHECK(own[i] == first[i], op, ": result ", i, " of the branches differs: ", to_string(first[i]), " and ",
                to_string(own[i]));
    }
  }
  std::vector<Type> results = types_of(regions[0]->results());
  return emit_many(op, {selector}, std::move(results), {}, std::move(regions));
}

// "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = ..."
std::string replica_text(std::string_view op, const Replicas& r) {
  TPU_CHECK(!r.groups.empty(), op, ": no replica groups");
  std::string rows;
  for (const Dims& group : r.groups) {
    require_size(op, "a replica group", group.size(), static_cast<int64_t>(r.groups[0].size()));
    rows += (rows.empty() ? "" : ", ") + list(group);
  }
  std::string out =
      text("replica_groups = dense<[", rows, "]> : tensor<", r.groups.size(), "x", r.groups[0].size(), "xi64>");
  if (r.channel_id != 0)
    out += text(", channel_handle = #stablehlo.channel_handle<handle = ", r.channel_id, ", type = 0>");
  if (r.use_global_device_ids) out += ", use_global_device_ids";
  return out;
}
int64_t group_size(std::string_view op, const Replicas& r) {
  TPU_CHECK(!r.groups.empty() && !r.groups[0].empty(), op, ": no replica groups");
  return static_cast<int64_t>(r.groups[0].size());
}

}  // namespace

Value all_gather(Value x, int64_t dim, const Replicas& replicas) {
  require("all_gather", x, kAny);
  require_dim("all_gather", dim, x.rank());
  Type result = x.type();
  result.dims[static_cast<size_t>(dim)] *= group_size("all_gather", replicas);
  return emit("all_gather", {x}, std::move(result),
              text("all_gather_dim = ", dim, " : i64, ", replica_text("all_gather", replicas)));
}

Value all_reduce(Value x, const Replicas& replicas, const Combine& combine) {
  require("all_reduce", x, kAny);
  Region* body = combine_region("all_reduce", x.graph(), x.dtype(), combine, x.dtype());
  return emit("all_reduce", {x}, x.type(), replica_text("all_reduce", replicas), {body});
}

Value all_to_all(Value x, int64_t split_dim, int64_t concat_dim, int64_t split_count, const Replicas& replicas) {
  require("all_to_all", x, kAny);
  require_dim("all_to_all", split_dim, x.rank());
  require_dim("all_to_all", concat_dim, x.rank());
  TPU_CHECK(split_count == group_size("all_to_all", replicas) && x.dim(split_dim) % split_count == 0,
            "all_to_all: split of ", to_string(x.type()), " into ", split_count, " for groups of ",
            group_size("all_to_all", replicas));
  Type result = x.type();
  result.dims[static_cast<size_t>(split_dim)] /= split_count;
  result.dims[static_cast<size_t>(concat_dim)] *= split_count;
  Replicas r = replicas;
  r.use_global_device_ids = false;  // the operation has no such attribute
  return emit("all_to_all", {x}, std::move(result),
              text("split_dimension = ", split_dim, " : i64, concat_dimension = ", concat_dim,
                   " : i64, split_count = ", split_count, " : i64, ", replica_text("all_to_all", r)));
}

Values case_(Value index, const std::vector<Build>& branches) {
  TPU_CHECK(index.dtype() == DType::S32, "case: the index must be i32[], got ", to_string(index.type()));
  std::vector<const Build*> pointers;
  for (const Build& branch : branches) pointers.push_back(&branch);
  return branches_of("case", index, pointers);
}

Value collective_permute(Value x, const std::vector<std::pair<int64_t, int64_t>>& source_target, int64_t channel_id) {
  require("collective_permute", x, kAny);
  std::string attributes = "source_target_pairs = " + pairs(source_target);
  if (channel_id != 0) {
    attributes += text(", channel_handle = #stablehlo.channel_handle<handle = ", channel_id, ", type = 0>");
  }
  return emit("collective_permute", {x}, x.type(), std::move(attributes));
}

Values custom_call(Graph& graph, std::string_view target, const Values& operands, const std::vector<Type>& results,
                   const CustomCall& options) {
  const std::string config = options.api_version == 4 ? (options.backend_config.empty() ? "{}" : options.backend_config)
                                                      : quote(options.backend_config);
  Node* node =
      emit_node(graph, "custom_call", operands, results,
                text("call_target_name = ", quote(target), ", has_side_effect = ", flag(options.has_side_effect),
                     ", backend_config = ", config, ", api_version = ", options.api_version, " : i32"));
  Values out;
  for (size_t i = 0; i < results.size(); ++i) out.emplace_back(node, static_cast<int>(i));
  return out;
}

Values if_(Value condition, const Build& then, const Build& otherwise) {
  require("if", condition, kPred);
  return branches_of("if", condition, {&then, &otherwise});
}

Values optimization_barrier(const Values& xs) {
  if (xs.empty()) return {};
  return emit_many("optimization_barrier", xs, types_of(xs));
}

Value partition_id(Graph& graph) { return {emit_node(graph, "partition_id", {}, {{DType::U32, {}}}), 0}; }
Value replica_id(Graph& graph) { return {emit_node(graph, "replica_id", {}, {{DType::U32, {}}}), 0}; }

Value reduce_scatter(Value x, int64_t dim, const Replicas& replicas, const Combine& combine) {
  require("reduce_scatter", x, kAny);
  require_dim("reduce_scatter", dim, x.rank());
  const int64_t n = group_size("reduce_scatter", replicas);
  TPU_CHECK(x.dim(dim) % n == 0, "reduce_scatter: dimension ", dim, " of ", to_string(x.type()),
            " is not divisible by the group size ", n);
  Type result = x.type();
  result.dims[static_cast<size_t>(dim)] /= n;
  Region* body = combine_region("reduce_scatter", x.graph(), x.dtype(), combine, x.dtype());
  return emit("reduce_scatter", {x}, std::move(result),
              text("scatter_dimension = ", dim, " : i64, ", replica_text("reduce_scatter", replicas)), {body});
}

RngResult rng_bit_generator(Value state, const Type& output, RngAlgorithm algorithm) {
  static constexpr const char* kNames[] = {"DEFAULT", "THREE_FRY", "PHILOX"};
  const bool three_fry = algorithm == RngAlgorithm::THREE_FRY;
  TPU_CHECK(
      state.dtype() == DType::U64 && state.rank() == 1 && (state.dim(0) == 2 || (state.dim(0) == 3 && !three_fry)),
      "rng_bit_generator: ", kNames[static_cast<int>(algorithm)], " does not take a state of ",
      to_string(state.type()));
  TPU_CHECK(is_integer(output.dtype) && byte_size(output.dtype) <= 8, "rng_bit_generator: gives integers, not ",
            to_string(output));
  const Values out =
      emit_many("rng_bit_generator", {state}, {state.type(), output},
                text("rng_algorithm = #stablehlo<rng_algorithm ", kNames[static_cast<int>(algorithm)], ">"));
  return {out[0], out[1]};
}

Values while_(const Values& state, const std::function<Value(const Values&)>& condition,
              const std::function<Values(const Values&)>& body) {
  TPU_CHECK(!state.empty(), "while: no state");
  Graph& graph = state[0].graph();
  const std::vector<Type> types = types_of(state);
  Region* test = graph.region(types, [&](const Values& args) { return Values{condition(args)}; });
  TPU_CHECK(test->results()[0].type() == (Type{DType::PRED, {}}), "while: the condition returns ",
            to_string(test->results()[0].type()), ", expected i1[]");
  Region* step = graph.region(types, body);
  require_size("while", "the body's result list", step->results().size(), static_cast<int64_t>(types.size()));
  for (size_t i = 0; i < types.size(); ++i) {
    TPU_CHECK(step->results()[i].type() == types[i], "while: the body returns ", to_string(step->results()[i].type()),
              " for state ", i, ", expected ", to_string(types[i]));
  }
  return emit_many("while", state, types, {}, {test, step});
}

}  // namespace tpu::hlo
