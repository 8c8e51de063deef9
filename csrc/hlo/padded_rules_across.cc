// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>

#include "hlo/math.h"
#include "hlo/padded_rules.h"

// The rules of what reads across elements: reductions, products, indexing, sorting, control flow.
namespace tpu::hlo {
namespace {

bool contains(const Dims& dims, int64_t d) { return std::find(dims.begin(), dims.end(), d) != dims.end(); }

}  // namespace

// The initial value of a reduction is neutral, so it may stand for what doesn't count.
Values Padder::reduce(const Node& node) {
  only_varies(node, {});
  const Dims dims = fixed(node, "dimensions");
  Values operands;
  const size_t count = node.operands.size() / 2;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    Value v = mapped(node.operands[i]);
    operands.push_back(i < count ? hidden(v, sizes(node.operands[i]), dims, mapped(node.operands[count + i])) : v);
  }
  return copy_node(node, std::move(operands));
}

// A window reaches from i * stride - low to that + extent. It may change with the size where it only reaches further
// beyond an end.
Values Padder::reduce_window(const Node& node) {
  const Numbers in = sizes(node.operands[0]), out = sizes({const_cast<Node*>(&node), 0}),
                extent = attribute(node, "window_dimensions"), padding = attribute(node, "padding");
  const Dims steps = fixed(node, "window_strides"), base = fixed(node, "base_dilations"),
             window = fixed(node, "window_dilations");
  for (size_t d = 0; d < in.size(); ++d) {
    const Number size = in[d], result = out[d], reach = extent[d], low = padding[2 * d];
    if (!reach.varies() && !low.varies()) continue;
    if (base[d] != 1 || window[d] != 1) throw NotPadded(node.name + ": a dilated window that depends on a size");
    require(node, "a window that depends on a size in another way",
            [size, result, reach, low, step = steps[d]](const std::vector<int64_t>& slots) {
              const int64_t last = (value_of(result, slots) - 1) * step, at = value_of(low, slots);
              const bool begins = at == low.padded || (last <= at && last <= low.padded);
              const int64_t end = value_of(reach, slots) - at, padded_end = reach.padded - low.padded;
              const int64_t n = value_of(size, slots);
              return begins && (end == padded_end || (end >= n && padded_end >= n));
            });
  }
  Values operands;
  const size_t count = node.operands.size() / 2;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    Value v = mapped(node.operands[i]);
    operands.push_back(i < count ? hidden(v, sizes(node.operands[i]), mapped(node.operands[count + i])) : v);
  }
  return copy_node(node, std::move(operands));
}

// Zeros on both sides: anything times zero need not be zero.
Values Padder::dot(const Node& node) {
  only_varies(node, {});
  Values operands;
  const char* summed[] = {"lhs_contracting_dimensions", "rhs_contracting_dimensions"};
  for (size_t i = 0; i < 2; ++i) {
    Value v = mapped(node.operands[i]);
    operands.push_back(hidden(v, sizes(node.operands[i]), fixed(node, summed[i]), hlo::scalar(graph_, v.dtype(), 0)));
  }
  return copy_node(node, std::move(operands));
}

Values Padder::convolution(const Node& node) {
  only_varies(node, {"padding"});
  const Numbers kernel = sizes(node.operands[1]), padding = attribute(node, "padding");
  for (size_t i = 0; i < padding.size(); i += 2) {
    if (padding[i].varies()) throw NotPadded(node.name + ": a beginning that depends on a size");
  }
  const bool grouped = fixed(node, "feature_group_count")[0] != 1 || fixed(node, "batch_group_count")[0] != 1;
  const std::string& text = node.attributes;
  // "#stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->...>": which dimension is what.
  const size_t at = text.find("#stablehlo.conv<[");
  const auto roles = [&](size_t open) {
    std::vector<char> out;
    for (size_t i = open + 1; text[i] != ']'; ++i) {
      if (text[i] != ',' && text[i] != ' ') out.push_back(text[i]);
    }
    return out;
  };
  const size_t first = text.find('[', at), second = text.find('[', first + 1);
  const std::vector<char> of_input = roles(first), of_kernel = roles(second);
  const bool reversed = text.find("window_reversal = array<i1: ") != std::string::npos &&
                        text.substr(text.find("window_reversal"),
                                    text.find('>', text.find("window_reversal")) - text.find("window_reversal"))
                                .find("true") != std::string::npos;
  const Numbers input = sizes(node.operands[0]);
  for (size_t d = 0; d < kernel.size(); ++d) {
    const bool spatial = std::isdigit(of_kernel[d]) != 0;
    if (kernel[d].varies() && ((spatial && reversed) || (!spatial && grouped)))
      throw NotPadded(node.name + ": a kernel that depends on a size");
    if (input[d].varies() && std::isdigit(of_input[d]) == 0 && grouped)
      throw NotPadded(node.name + ": groups of a size that varies");
  }
  Values operands;
  for (const Value& traced : node.operands) {
    Value v = mapped(traced);
    operands.push_back(hidden(v, sizes(traced), hlo::scalar(graph_, v.dtype(), 0)));
  }
  return copy_node(node, std::move(operands));
}

Values Padder::gather(const Node& node) {
  only_varies(node, {"slice_sizes"});
  const Numbers in = sizes(node.operands[0]), window = attribute(node, "slice_sizes");
  const Dims map = fixed(node, "start_index_map");
  const int64_t vector_dim = fixed(node, "index_vector_dim")[0];
  for (size_t d = 0; d < in.size(); ++d) {
    const Number size = in[d], w = window[d];
    if (!w.varies()) continue;
    require(node, "a slice that is not a whole dimension", [size, w](const std::vector<int64_t>& slots) {
      return value_of(size, slots) == value_of(w, slots) && size.padded == w.padded;
    });
  }
  // Starts are clamped by the true size.
  Value indices = mapped(node.operands[1]);
  if (std::any_of(map.begin(), map.end(), [&](int64_t d) { return in[static_cast<size_t>(d)].varies(); })) {
    Values last;
    for (int64_t d : map) {
      const Number &size = in[static_cast<size_t>(d)], &w = window[static_cast<size_t>(d)];
      last.push_back(hlo::reshape(hlo::maximum(number(size) - number(w), 0), {1}));
    }
    Value limits = as(hlo::concat(last, 0), indices.dtype());
    if (vector_dim == indices.rank())
      limits = hlo::broadcast_in_dim(hlo::reshape(limits, {}), indices.dims(), {});
    else
      limits = hlo::broadcast_in_dim(limits, indices.dims(), {vector_dim});
    indices = hlo::minimum(hlo::maximum(indices, 0), limits);
  }
  return copy_node(node, {mapped(node.operands[0]), indices});
}

// A place outside is skipped: so is one beyond the true size, and the updates that don't count go there.
Values Padder::scatter(const Node& node) {
  only_varies(node, {});
  const size_t count = (node.operands.size() - 1) / 2;
  const Numbers in = sizes(node.operands[0]), at = sizes(node.operands[count]),
                update = sizes(node.operands[count + 1]);
  const Dims map = fixed(node, "scatter_dims_to_operand_dims"), windows = fixed(node, "update_window_dims"),
             gone = fixed(node, "inserted_window_dims"), batching = fixed(node, "input_batching_dims");
  const int64_t vector_dim = fixed(node, "index_vector_dim")[0];
  // The window's size along each dimension of the operand.
  Numbers window(in.size(), Number{1, -1});
  size_t next = 0;
  for (size_t d = 0; d < in.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (contains(gone, dim) || contains(batching, dim)) continue;
    window[d] = update[static_cast<size_t>(windows[next++])];
    if (!window[d].varies()) continue;
    require(node, "a window that is not a whole dimension",
            [size = in[d], w = window[d]](const std::vector<int64_t>& slots) {
              return value_of(size, slots) == value_of(w, slots) && size.padded == w.padded;
            });
  }
  Value indices = mapped(node.operands[count]);
  const bool bounded =
      std::any_of(map.begin(), map.end(), [&](int64_t d) { return in[static_cast<size_t>(d)].varies(); });
  Value keep;
  if (bounded) {
    Values last;
    for (int64_t d : map) {
      const Number &size = in[static_cast<size_t>(d)], &w = window[static_cast<size_t>(d)];
      last.push_back(hlo::reshape(number(size) - number(w), {1}));
    }
    Value limits = as(hlo::concat(last, 0), indices.dtype());
    limits = vector_dim == indices.rank() ? hlo::broadcast_in_dim(hlo::reshape(limits, {}), indices.dims(), {})
                                          : hlo::broadcast_in_dim(limits, indices.dims(), {vector_dim});
    keep = hlo::le(indices, limits);
  }
  Dims which;
  for (int64_t d = 0; d < indices.rank(); ++d) {
    if (d != vector_dim) which.push_back(d);
  }
  if (Value counts = inside(indices.dims(), at, which); counts.node())
    keep = keep.node() ? hlo::and_(keep, counts) : counts;
  if (keep.node()) indices = hlo::select(keep, indices, hlo::like(indices, -1));
  std::string attributes = node.attributes;
  for (const char* flag : {"unique_indices = true", "indices_are_sorted = true"}) {
    if (const size_t found = attributes.find(flag); found != std::string::npos)
      attributes.replace(attributes.find("true", found), 4, "false");
  }
  Values operands;
  for (size_t i = 0; i < node.operands.size(); ++i) operands.push_back(i == count ? indices : mapped(node.operands[i]));
  return copy_node(node, std::move(operands), std::move(attributes));
}

// What doesn't count comes last, whatever the comparison says of it.
Values Padder::sort(const Node& node) {
  const int64_t dim = fixed(node, "dimension")[0];
  const Number size = sizes(node.operands[0])[static_cast<size_t>(dim)];
  Values operands;
  for (const Value& v : node.operands) operands.push_back(mapped(v));
  if (!size.varies()) return copy_node(node, std::move(operands));
  Value beyond = hlo::ge(hlo::iota(graph_, {DType::S32, operands[0].dims()}, dim), as(number(size), DType::S32));
  operands.push_back(as(beyond, DType::S32));
  const bool stable = node.attributes.find("is_stable = true") != std::string::npos;
  const Region& less = *node.regions[0];
  Values out = hlo::sort(operands, dim, stable, [&](const Values& pairs) {
    for (size_t i = 0; i < less.arguments().size(); ++i) map_[less.arguments()[i].node()] = {pairs[i]};
    const Value a = pairs[pairs.size() - 2], b = pairs[pairs.size() - 1];
    return hlo::or_(hlo::lt(a, b), hlo::and_(hlo::eq(a, b), copy(less)[0]));
  });
  out.pop_back();
  return out;
}

// The least of all numbers, at the end: it comes after every element that counts.
Values Padder::top_k(const Node& node) {
  only_varies(node, {});
  Value v = mapped(node.operands[0]);
  return copy_node(node, {hidden(v, sizes(node.operands[0]), {v.rank() - 1}, hlo::lowest(graph_, v.dtype()))});
}

Values Padder::dynamic_slice(const Node& node) {
  const Numbers in = sizes(node.operands[0]), window = attribute(node, "slice_sizes");
  Value v = mapped(node.operands[0]);
  Values operands{v};
  for (size_t d = 0; d < in.size(); ++d) {
    operands.push_back(clamped_start(mapped(node.operands[d + 1]), in[d], window[d]));
    if (window[d].varies()) operands[0] = hlo::pad_dim(operands[0], static_cast<int64_t>(d), 0, window[d].padded);
  }
  return copy_node(node, std::move(operands));
}

Values Padder::dynamic_update_slice(const Node& node) {
  const Numbers in = sizes(node.operands[0]), window = sizes(node.operands[1]);
  Value v = mapped(node.operands[0]), update = mapped(node.operands[1]);
  Values starts;
  for (size_t d = 0; d < in.size(); ++d)
    starts.push_back(clamped_start(mapped(node.operands[d + 2]), in[d], window[d]));
  Value counts = inside(update.dims(), window, hlo::all_dims(update));
  if (!counts.node()) return {hlo::dynamic_update_slice(v, update, starts)};
  // What doesn't count of the update leaves the old elements; room at the end, so that no start is clamped.
  const Dims whole = v.dims();
  for (size_t d = 0; d < in.size(); ++d) {
    if (window[d].varies()) v = hlo::pad_dim(v, static_cast<int64_t>(d), 0, window[d].padded);
  }
  Value old = hlo::dynamic_slice(v, starts, update.dims());
  v = hlo::dynamic_update_slice(v, hlo::select(counts, update, old), starts);
  return {hlo::slice(v, Dims(whole.size(), 0), whole, Dims(whole.size(), 1))};
}

Values Padder::control(const Node& node) {
  std::vector<Region*> regions;
  for (const Region* nested : node.regions) {
    std::vector<Type> types;
    for (const Value& v : nested->arguments()) types.push_back(v.type());
    regions.push_back(graph_.region(types, [&](const Values& arguments) {
      for (size_t i = 0; i < arguments.size(); ++i) map_[nested->arguments()[i].node()] = {arguments[i]};
      return copy(*nested);
    }));
  }
  Values operands;
  for (const Value& v : node.operands) operands.push_back(mapped(v));
  Node* made = graph_.current().append(node.name, std::move(operands), node.results, node.attributes, regions);
  Values out;
  for (size_t i = 0; i < node.results.size(); ++i) out.emplace_back(made, static_cast<int>(i));
  return out;
}

}  // namespace tpu::hlo
