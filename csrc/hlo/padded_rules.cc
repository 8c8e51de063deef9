// SPDX-License-Identifier: Apache-2.0
#include "hlo/padded_rules.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "hlo/math.h"

// The elements of a value that count are those whose indices are below the true sizes. Each rule gives results of which
// that holds too, provided it holds of the operands.
namespace tpu::hlo {
namespace {

Dims padded_sizes(const std::vector<Number>& sizes) {
  Dims out;
  for (const Number& n : sizes) out.push_back(n.padded);
  return out;
}

}  // namespace

Padder::Padder(const PaddedGraph& padded, Graph& into, Value integers, Value reals, Conditions* conditions)
    : padded_(padded), graph_(into), conditions_(conditions) {
  // In the body, where every region sees them.
  const auto split = [](Value all, size_t count) {
    Values out;
    for (size_t i = 0; i < count; ++i) {
      const auto at = static_cast<int64_t>(i);
      out.push_back(hlo::reshape(hlo::slice(all, {at}, {at + 1}, {1}), {}));
    }
    return out;
  };
  integers_ = split(integers, padded.integer_slots());
  reals_ = split(reals, padded.real_slots());
}

Values Padder::run(const Values& arguments) {
  const Region& body = padded_.graph_->body();
  TPU_INTERNAL(arguments.size() == body.arguments().size(), "a padded graph of ", body.arguments().size(),
               " parameters gets ", arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Value& traced = body.arguments()[i];
    map_[traced.node()] = {padded_.varies(traced) ? unpack(arguments[i], sizes(traced)) : arguments[i]};
  }
  Values results = copy(body);
  for (size_t i = 0; i < results.size(); ++i) {
    const Value& traced = body.results()[i];
    if (padded_.varies(traced)) results[i] = pack(results[i], sizes(traced));
  }
  return results;
}

const std::unordered_map<std::string, Padder::Rule>& Padder::rules() {
  static const auto* table = [] {
    auto* t = new std::unordered_map<std::string, Rule>{
        {"constant", &Padder::constant},
        {"broadcast_in_dim", &Padder::broadcast},
        {"reverse", &Padder::reverse},
        {"slice", &Padder::slice},
        {"pad", &Padder::pad},
        {"concatenate", &Padder::concatenate},
        {"reshape", &Padder::reshape},
        {"reduce", &Padder::reduce},
        {"reduce_window", &Padder::reduce_window},
        {"dot_general", &Padder::dot},
        {"convolution", &Padder::convolution},
        {"gather", &Padder::gather},
        {"scatter", &Padder::scatter},
        {"sort", &Padder::sort},
        {"chlo.top_k", &Padder::top_k},
        {"dynamic_slice", &Padder::dynamic_slice},
        {"dynamic_update_slice", &Padder::dynamic_update_slice},
        {"while", &Padder::control},
        {"if", &Padder::control},
        {"case", &Padder::control},
        {"iota", &Padder::same},
        {"transpose", &Padder::same},
        {"bitcast_convert", &Padder::same},
    };
    for (const char* name : {"abs",
                             "add",
                             "and",
                             "atan2",
                             "cbrt",
                             "ceil",
                             "clamp",
                             "compare",
                             "complex",
                             "convert",
                             "cosine",
                             "count_leading_zeros",
                             "divide",
                             "exponential",
                             "exponential_minus_one",
                             "floor",
                             "imag",
                             "is_finite",
                             "log",
                             "log_plus_one",
                             "logistic",
                             "maximum",
                             "minimum",
                             "multiply",
                             "negate",
                             "not",
                             "optimization_barrier",
                             "or",
                             "popcnt",
                             "power",
                             "real",
                             "reduce_precision",
                             "remainder",
                             "round_nearest_afz",
                             "round_nearest_even",
                             "rsqrt",
                             "select",
                             "shift_left",
                             "shift_right_arithmetic",
                             "shift_right_logical",
                             "sign",
                             "sine",
                             "sqrt",
                             "subtract",
                             "tan",
                             "tanh",
                             "xor",
                             "chlo.acos",
                             "chlo.acosh",
                             "chlo.asin",
                             "chlo.asinh",
                             "chlo.atan",
                             "chlo.atanh",
                             "chlo.bessel_i1e",
                             "chlo.cosh",
                             "chlo.digamma",
                             "chlo.erf",
                             "chlo.erf_inv",
                             "chlo.erfc",
                             "chlo.is_inf",
                             "chlo.is_neg_inf",
                             "chlo.is_pos_inf",
                             "chlo.lgamma",
                             "chlo.next_after",
                             "chlo.polygamma",
                             "chlo.sinh",
                             "chlo.square",
                             "chlo.zeta"}) {
      t->emplace(name, &Padder::same);
    }
    return t;
  }();
  return *table;
}

// ---- The traced graph's numbers --------------------------------------------------------------------------------

Padder::Numbers Padder::sizes(const Value& traced) const {
  size_t at = padded_.listing_.item(*traced.node()).integers;
  for (int i = 0; i < traced.index(); ++i) at += traced.node()->results[static_cast<size_t>(i)].dims.size();
  Numbers out;
  for (size_t d = 0; d < traced.dims().size(); ++d)
    out.push_back({padded_.listing_.integers()[at + d], padded_.integer_slot_[at + d]});
  return out;
}

Padder::Numbers Padder::attribute(const Node& node, const std::string& name) const {
  const Listing::Item& item = padded_.listing_.item(node);
  const std::string& text = node.attributes;
  const std::string key = name + " = ";
  size_t from = text.find(key);
  while (from != std::string::npos && from > 0 && (std::isalnum(text[from - 1]) || text[from - 1] == '_'))
    from = text.find(key, from + 1);
  if (from == std::string::npos) return {};
  from += key.size();
  const char close = text[from] == '['                                                            ? ']'
                     : text.compare(from, 5, "array") == 0 || text.compare(from, 5, "dense") == 0 ? '>'
                                                                                                  : ',';
  const size_t to = std::min(text.find(close, from), text.size());
  size_t at = item.integers;
  for (const Type& type : node.results) at += type.dims.size();
  Numbers out;
  for (size_t i = 0; i < item.integer_places.size(); ++i) {
    if (item.integer_places[i] >= from && item.integer_places[i] < to)
      out.push_back({padded_.listing_.integers()[at + i], padded_.integer_slot_[at + i]});
  }
  return out;
}

Dims Padder::fixed(const Node& node, const std::string& name) const {
  Dims out;
  for (const Number& n : attribute(node, name)) {
    if (n.varies()) throw NotPadded(node.name + ": " + name + " depends on a size");
    out.push_back(n.padded);
  }
  return out;
}

bool Padder::plain(const Node& node) const {
  for (const Value& v : node.operands) {
    if (padded_.varies(v)) return false;
  }
  const Listing::Item& item = padded_.listing_.item(node);
  size_t count = item.integer_places.size();
  for (const Type& type : node.results) count += type.dims.size();
  for (size_t i = 0; i < count; ++i) {
    if (padded_.integer_slot_[item.integers + i] >= 0) return false;
  }
  for (size_t i = 0; i < item.real_places.size(); ++i) {
    if (padded_.real_slot_[item.reals + i] >= 0) return false;
  }
  return true;
}

void Padder::only_varies(const Node& node, std::initializer_list<const char*> names) const {
  const Listing::Item& item = padded_.listing_.item(node);
  size_t at = item.integers, count = 0;
  for (const Type& type : node.results) at += type.dims.size();
  for (size_t i = 0; i < item.integer_places.size(); ++i) count += padded_.integer_slot_[at + i] >= 0;
  for (const char* name : names) {
    for (const Number& n : attribute(node, name)) count -= n.varies();
  }
  if (count != 0) throw NotPadded(node.name + ": attributes that depend on a size");
}

void Padder::require(const Node& node, const char* what, PaddedGraph::Condition condition) {
  if (!conditions_) return;
  if (!condition(padded_.integer_padded_)) throw NotPadded(node.name + ": " + what);
  conditions_->emplace_back(std::move(condition), node.name + ": " + what);
}

// ---- Making the new graph --------------------------------------------------------------------------------------

Value Padder::as(Value v, DType t) { return hlo::convert(v, t); }

Value Padder::number(const Number& n) {
  return n.varies() ? integers_[static_cast<size_t>(n.slot)] : hlo::scalar(graph_, DType::S64, n.padded);
}

Value Padder::mapped(const Value& traced) const { return map_.at(traced.node())[static_cast<size_t>(traced.index())]; }

Values Padder::copy(const Region& region) {
  for (const Node& node : region.nodes()) {
    if (node.name.empty() || !padded_.listing_.lists(node)) continue;
    if (plain(node) && !has_open_regions(node)) {
      map_[&node] = same(node);
      continue;
    }
    const std::string name = node.name.starts_with("stablehlo.") ? node.name.substr(10) : node.name;
    const auto rule = rules().find(name);
    if (rule == rules().end()) throw NotPadded(node.name + " has no rule");
    map_[&node] = (this->*rule->second)(node);
  }
  Values results;
  for (const Value& v : region.results()) results.push_back(mapped(v));
  return results;
}

// The node with other operands. Its regions are isolated: nothing in them varies.
Values Padder::copy_node(const Node& node, Values operands, std::string attributes) {
  std::vector<Region*> regions;
  for (const Region* nested : node.regions) {
    std::vector<Type> types;
    for (const Value& v : nested->arguments()) types.push_back(v.type());
    regions.push_back(graph_.region(
        types,
        [&](const Values& arguments) {
          for (size_t i = 0; i < arguments.size(); ++i) map_[nested->arguments()[i].node()] = {arguments[i]};
          return copy(*nested);
        },
        true));
  }
  Node* made = graph_.current().append(node.name, std::move(operands), node.results,
                                       attributes.empty() ? node.attributes : std::move(attributes), regions);
  made->flops = node.flops;
  Values out;
  for (size_t i = 0; i < node.results.size(); ++i) out.emplace_back(made, static_cast<int>(i));
  return out;
}

Value Padder::inside(const Dims& shape, const Numbers& sizes, const Dims& which) {
  Value mask;
  for (int64_t d : which) {
    const Number& n = sizes[static_cast<size_t>(d)];
    if (!n.varies()) continue;
    Value one = hlo::lt(hlo::iota(graph_, {DType::S32, shape}, d), as(number(n), DType::S32));
    mask = mask.node() ? hlo::and_(mask, one) : one;
  }
  return mask;
}

Value Padder::hidden(Value v, const Numbers& sizes, const Dims& which, Value fill) {
  Value mask = inside(v.dims(), sizes, which);
  return mask.node() ? hlo::select(mask, v, hlo::broadcast_in_dim(fill, v.dims(), {})) : v;
}

Value Padder::hidden(Value v, const Numbers& sizes, Value fill) { return hidden(v, sizes, hlo::all_dims(v), fill); }

Value Padder::shifted(Value v, int64_t dim, Value start, int64_t span) {
  Value longer = hlo::pad_dim(v, dim, 0, span);  // so that the start is never clamped
  Values starts(static_cast<size_t>(v.rank()), hlo::scalar(graph_, DType::S64, int64_t{0}));
  starts[static_cast<size_t>(dim)] = start;
  Dims sizes = v.dims();
  sizes[static_cast<size_t>(dim)] = span;
  return hlo::dynamic_slice(longer, starts, sizes);
}

// A reshape: the elements that count, in order, to where the new sizes have them. The last dimensions that stay and
// don't vary move as a whole.
Value Padder::regrouped(Value v, const Numbers& from, const Numbers& to) {
  size_t suffix = 0;
  int64_t row = 1;
  while (suffix < from.size() && suffix < to.size()) {
    const Number &a = from[from.size() - 1 - suffix], &b = to[to.size() - 1 - suffix];
    if (a.varies() || b.varies() || a.padded != b.padded) break;
    row *= a.padded;
    ++suffix;
  }
  const auto lead = [&](const Numbers& sizes) {
    return Numbers(sizes.begin(), sizes.end() - static_cast<long>(suffix));
  };
  const Numbers in = lead(from), out = lead(to);
  const int64_t rows_in = hlo::numel(padded_sizes(in)), rows_out = hlo::numel(padded_sizes(out));
  const DType t = std::max(v.numel(), rows_out * row) < (int64_t{1} << 31) ? DType::S32 : DType::S64;
  // Which element it is, counted in the new sizes.
  Value place = hlo::iota(graph_, {t, {rows_out}}, 0), index = hlo::like(place, 0);
  Value stride = hlo::scalar(graph_, t, 1);
  for (size_t k = out.size(); k-- > 0;) {
    Value at = k == 0 ? place : place % out[k].padded;
    index = index + at * stride;
    if (k == 0) break;
    place = place / out[k].padded;
    stride = stride * as(number(out[k]), t);
  }
  // Where the old sizes have it.
  Value source = hlo::like(index, 0);
  int64_t step = 1;
  for (size_t k = in.size(); k-- > 0;) {
    Value size = hlo::maximum(as(number(in[k]), t), 1);
    source = source + (k == 0 ? index : index % size) * step;
    if (k == 0) break;
    index = index / size;
    step *= in[k].padded;
  }
  Value moved = hlo::take(hlo::reshape(v, {rows_in, row}), source, 0);
  return hlo::reshape(moved, padded_sizes(to));
}

namespace {
// Whether the elements that count are at the beginning already: all but the first size that isn't 1 are fixed.
bool is_prefix(const std::vector<Number>& sizes) {
  bool first = true;
  for (const Number& n : sizes) {
    if (!first && n.varies()) return false;
    if (n.varies() || n.padded != 1) first = false;
  }
  return true;
}

// A vector of `count` elements as rows of the last sizes that don't vary. The number of rows has no slot of its own:
// nothing divides by it.
std::vector<Number> in_rows(int64_t count, const std::vector<Number>& sizes) {
  std::vector<Number> out{{count, -1}};
  for (size_t k = sizes.size(); k-- > 0 && !sizes[k].varies() && out[0].padded > 0 && sizes[k].padded > 0;) {
    out.insert(out.begin() + 1, sizes[k]);
    out[0].padded /= sizes[k].padded;
  }
  return out;
}
}  // namespace

Value Padder::pack(Value v, const Numbers& sizes) {
  if (is_prefix(sizes)) return hlo::reshape(v, {v.numel()});
  return hlo::reshape(regrouped(v, sizes, in_rows(v.numel(), sizes)), {v.numel()});
}

Value Padder::unpack(Value flat, const Numbers& sizes) {
  if (is_prefix(sizes)) return hlo::reshape(flat, padded_sizes(sizes));
  const Numbers from = in_rows(flat.numel(), sizes);
  return regrouped(hlo::reshape(flat, padded_sizes(from)), from, sizes);
}

// What StableHLO makes of a start outside: the nearest at which the window fits.
Value Padder::clamped_start(Value start, const Number& size, const Number& window) {
  if (!size.varies() && !window.varies()) return start;
  Value last = hlo::maximum(as(number(size) - number(window), start.dtype()), 0);
  return hlo::minimum(hlo::maximum(start, 0), last);
}

// ---- A rule each -----------------------------------------------------------------------------------------------

Values Padder::same(const Node& node) {
  only_varies(node, {});
  Values operands;
  for (const Value& v : node.operands) operands.push_back(mapped(v));
  if (node.name == "stablehlo.bitcast_convert" && !plain(node)) {
    // Widths differ: the last dimension is part of an element.
    const Numbers in = sizes(node.operands[0]), out = sizes({const_cast<Node*>(&node), 0});
    if ((in.size() > out.size() && in.back().varies()) || (out.size() > in.size() && out.back().varies()))
      throw NotPadded(node.name + ": of a size that varies");
  }
  return copy_node(node, std::move(operands));
}

Values Padder::constant(const Node& node) {
  const Listing::Item& item = padded_.listing_.item(node);
  const Type& type = node.results[0];
  const size_t count = item.integer_places.size() + item.real_places.size();
  if (node.attributes.find("dense<[") != std::string::npos) throw NotPadded("a table that depends on a size");
  Value v;
  if (!item.real_places.empty() && padded_.real_slot_[item.reals] >= 0) {
    if (count != 1) throw NotPadded("a complex number that depends on a size");
    v = reals_[static_cast<size_t>(padded_.real_slot_[item.reals])];
  } else if (const size_t at = item.integers + type.dims.size();
             !item.integer_places.empty() && padded_.integer_slot_[at] >= 0) {
    v = integers_[static_cast<size_t>(padded_.integer_slot_[at])];
  } else {
    return same(node);
  }
  return {hlo::broadcast_in_dim(as(v, type.dtype), type.dims, {})};
}

Values Padder::broadcast(const Node& node) {
  const Numbers in = sizes(node.operands[0]), out = sizes({const_cast<Node*>(&node), 0});
  const Dims to = fixed(node, "broadcast_dimensions");
  for (size_t i = 0; i < in.size(); ++i) {
    const Number a = in[i], b = out[static_cast<size_t>(to[i])];
    if (!a.varies() && (!b.varies() || a.padded == 1)) continue;
    require(node, "a dimension is repeated at some sizes only", [a, b](const std::vector<int64_t>& slots) {
      return value_of(a, slots) == (a.padded == b.padded ? value_of(b, slots) : 1);
    });
  }
  return same(node);
}

Values Padder::reverse(const Node& node) {
  const Numbers in = sizes(node.operands[0]);
  Value v = same(node)[0];
  for (int64_t d : fixed(node, "dimensions")) {
    const Number& n = in[static_cast<size_t>(d)];
    if (n.varies()) v = shifted(v, d, n.padded - number(n), n.padded);
  }
  return {v};
}

Values Padder::slice(const Node& node) {
  Value v = mapped(node.operands[0]);
  const Dims steps = fixed(node, "strides");
  const Numbers starts = attribute(node, "start_indices"), limits = attribute(node, "limit_indices");
  Dims from, to;
  for (size_t d = 0; d < steps.size(); ++d) {
    if (!starts[d].varies()) {
      from.push_back(starts[d].padded);
      to.push_back(limits[d].padded);
      continue;
    }
    const int64_t span = std::max<int64_t>(0, (node.results[0].dims[d] - 1) * steps[d] + 1);
    v = shifted(v, static_cast<int64_t>(d), number(starts[d]), span);
    from.push_back(0);
    to.push_back(span);
  }
  return {hlo::slice(v, from, to, steps)};
}

// Elements that don't count become padding; where the beginning moves with the size, they are put there.
Values Padder::pad(const Node& node) {
  const Numbers in = sizes(node.operands[0]), low = attribute(node, "edge_padding_low"),
                high = attribute(node, "edge_padding_high");
  const Dims interior = fixed(node, "interior_padding");
  const Value fill = mapped(node.operands[1]);
  Value v = hidden(mapped(node.operands[0]), in, fill);
  for (size_t d = 0; d < in.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const int64_t size = v.dim(dim), wide = size + std::max<int64_t>(size - 1, 0) * interior[d];
    const int64_t result = node.results[0].dims[d];
    Dims none(in.size(), 0), before = none, after = none, holes = none;
    holes[d] = interior[d];
    if (!low[d].varies()) {
      before[d] = low[d].padded;
      after[d] = result - low[d].padded - wide;
      v = hlo::pad(v, fill, before, after, holes);
      continue;
    }
    require(node, "a beginning that is cut by a number that depends on a size",
            [n = low[d]](const std::vector<int64_t>& slots) { return value_of(n, slots) >= 0; });
    v = hlo::pad(v, fill, none, none, holes);
    Dims room = v.dims();
    room[d] = result + wide;
    Values starts(in.size(), hlo::scalar(graph_, DType::S64, int64_t{0}));
    starts[d] = number(low[d]);
    require(node, "a beginning beyond the end",
            [n = low[d], result](const std::vector<int64_t>& slots) { return value_of(n, slots) <= result; });
    v = hlo::dynamic_update_slice(hlo::broadcast_in_dim(fill, room, {}), v, starts);
    v = hlo::slice_dim(v, dim, 0, result);
  }
  return {v};
}

// From the first to the last: what doesn't count at the end of one is written over by the next.
Values Padder::concatenate(const Node& node) {
  const int64_t dim = fixed(node, "dimension")[0];
  const auto along = [&](const Value& v) { return sizes(v)[static_cast<size_t>(dim)]; };
  bool fits = true;
  for (size_t i = 0; i + 1 < node.operands.size(); ++i) fits = fits && !along(node.operands[i]).varies();
  if (fits) return same(node);
  Value all = hlo::full(graph_, node.results[0], 0);
  Values starts(static_cast<size_t>(all.rank()), hlo::scalar(graph_, DType::S64, int64_t{0}));
  Value& start = starts[static_cast<size_t>(dim)];
  for (const Value& v : node.operands) {
    all = hlo::dynamic_update_slice(all, mapped(v), starts);
    start = start + number(along(v));
  }
  return {all};
}

Values Padder::reshape(const Node& node) {
  const Numbers from = sizes(node.operands[0]), to = sizes({const_cast<Node*>(&node), 0});
  const Value v = mapped(node.operands[0]);
  // Groups of dimensions with equal products. One in which only the first may vary stays as it lies.
  bool stays = true;
  size_t i = 0, j = 0;
  while (stays && (i < from.size() || j < to.size())) {
    Numbers in, out;
    int64_t a = 1, b = 1;
    do {
      if ((a <= b && i < from.size()) || j == to.size()) {
        a *= from[i].padded;
        in.push_back(from[i++]);
      } else {
        b *= to[j].padded;
        out.push_back(to[j++]);
      }
    } while (a != b && (i < from.size() || j < to.size()));
    while (i < from.size() && from[i].padded == 1 && !from[i].varies()) ++i;
    while (j < to.size() && to[j].padded == 1 && !to[j].varies()) ++j;
    stays = a == b && is_prefix(in) && is_prefix(out);
    if (!stays) break;
    const auto varies = [](const Number& n) { return n.varies(); };
    if (std::none_of(in.begin(), in.end(), varies) && std::none_of(out.begin(), out.end(), varies)) continue;
    require(node, "dimensions that are joined in another way at some sizes",
            [in, out](const std::vector<int64_t>& slots) {
              const auto product = [&](const Numbers& numbers) {
                int64_t p = 1;
                for (const Number& n : numbers) p *= value_of(n, slots);
                return p;
              };
              return product(in) == product(out);
            });
  }
  return {stays ? hlo::reshape(v, node.results[0].dims) : regrouped(v, from, to)};
}

}  // namespace tpu::hlo
