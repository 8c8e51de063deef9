// SPDX-License-Identifier: Apache-2.0
#include "aten/call_note.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "aten/kernel.h"
#include "aten/storage.h"
#include "base/log.h"
#include "runtime/capture.h"
#include "runtime/metrics.h"

namespace tpu::aten {
namespace {

using What = ArgumentNote::What;
using runtime::Scalar;

constexpr size_t kRemembered = 32;  // kinds of calls that a new one is compared with
constexpr int kStorm = 10;          // changes of one argument that are worth a warning

std::string dtype_name(c10::ScalarType type) { return std::string(c10::getDtypeNames(type).first); }

std::string tuple_text(const std::vector<int64_t>& sizes) {
  std::string out = "(";
  for (size_t i = 0; i < sizes.size(); ++i) out += (i ? ", " : "") + std::to_string(sizes[i]);
  return out + (sizes.size() == 1 ? ",)" : ")");
}

const char* kind_text(c10::ScalarType number) {
  if (c10::isComplexType(number)) return "a complex number";
  if (c10::isFloatingType(number)) return "a float";
  return number == c10::ScalarType::Bool ? "a bool" : "an int";
}

std::string setting_text(const c10::IValue& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

ArgumentNote tensor_note(const TensorArg& arg) {
  ArgumentNote note;
  if (!arg.tensor) return note;
  const at::Tensor& t = *arg.tensor;
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    note.what = What::Number;
    note.text = kind_text(t.scalar_type());
    return note;
  }
  note.what = What::Tensor;
  note.dtype = t.scalar_type();
  note.sizes = t.sizes().vec();
  if (!t.is_contiguous()) note.strides = t.strides().vec();
  if (!arg.slot)
    note.text = "a number on the CPU";
  else if (!arg.identity)
    note.text = "a view of a storage of " + hlo::to_string(*arg.type);
  if (t.is_conj()) note.text += ", conjugate";
  if (t.is_neg()) note.text += ", negative";
  return note;
}

// One difference between two calls.
struct Change {
  std::string text;
  int argument = -1;
  bool lasting = false;                        // a change that another value of the same may follow
  std::set<std::pair<int64_t, int64_t>> from;  // of the sizes: the numbers that changed, and to what
};

// How `now` differs from what stood in its place; an empty text where it doesn't.
Change difference(const ArgumentNote& before, const ArgumentNote& now) {
  Change change;
  change.argument = now.argument;
  std::string subject = now.name;
  if (subject.empty()) subject = "argument " + std::to_string(now.argument);
  if (now.element >= 0) subject = "tensor " + std::to_string(now.element) + " in " + subject;
  const auto changed = [&](const std::string& what, const std::string& a, const std::string& b) {
    change.text = subject + "\1 changed " + what + (what.empty() ? "" : " ") + "from " + a + " to " + b;
  };
  static constexpr const char* kWhat[] = {"None", "a tensor", "a number", "a setting", "a list"};
  if (before.what != now.what) {
    changed("", kWhat[static_cast<size_t>(before.what)], kWhat[static_cast<size_t>(now.what)]);
    return change;
  }
  switch (now.what) {
    case What::None: break;
    case What::Tensor:
      if (before.dtype != now.dtype) {
        changed("dtype", dtype_name(before.dtype), dtype_name(now.dtype));
      } else if (before.sizes != now.sizes) {
        changed("size", tuple_text(before.sizes), tuple_text(now.sizes));
        change.lasting = before.sizes.size() == now.sizes.size();
        for (size_t i = 0; change.lasting && i < now.sizes.size(); ++i) {
          if (before.sizes[i] != now.sizes[i]) change.from.emplace(before.sizes[i], now.sizes[i]);
        }
      } else if (before.strides != now.strides) {
        const auto strides = [](const ArgumentNote& a) {
          return a.strides.empty() ? "contiguous" : tuple_text(a.strides);
        };
        changed("strides", strides(before), strides(now));
      } else if (before.text != now.text) {
        const auto whole = [](const ArgumentNote& a) { return a.text.empty() ? "a whole storage" : a.text; };
        changed("", whole(before), whole(now));
      }
      break;
    case What::List:
      if (before.sizes == now.sizes) break;
      change.text = subject + "\1 changed from " + std::to_string(before.sizes[0]) + " tensors to " +
                    std::to_string(now.sizes[0]);
      change.lasting = true;
      break;
    case What::Number:
      if (before.text != now.text) changed("", before.text, now.text);
      break;
    case What::Setting:
      if (before.text == now.text) break;
      changed("", before.text, now.text);
      change.lasting = true;
      break;
  }
  return change;
}

std::vector<Change> differences(const CallNote& before, const CallNote& now) {
  std::vector<Change> out;
  auto old = before.arguments.begin();
  for (const ArgumentNote& note : now.arguments) {
    const auto place = [](const ArgumentNote& a) { return std::make_pair(a.argument, a.element); };
    while (old != before.arguments.end() && place(*old) < place(note)) ++old;
    if (old == before.arguments.end() || place(*old) != place(note)) continue;  // a longer list: told by its length
    Change change = difference(*old, note);
    if (!change.text.empty()) out.push_back(std::move(change));
  }
  return out;
}

std::string with_op(const std::string& text, const std::string& op) {
  std::string out = text;
  const size_t mark = out.find('\1');
  return out.replace(mark, 1, op.empty() ? "" : " of " + op);
}

const char* advice(const CallNote& note, int argument) {
  for (const ArgumentNote& a : note.arguments) {
    if (a.argument != argument) continue;
    if (a.what == What::Setting) return "this argument is part of the program. Keep it to a few values";
    if (a.what == What::List) return "each number of tensors is a new program. Collect, and call it once";
  }
  return "each size is a new program. Pad to a few sizes (the next power of two), sort the data into buckets of equal "
         "size, or use buffers of a fixed size. Under torch.compile, dynamic=True or mark_dynamic has sizes share a "
         "program";
}

}  // namespace

CallNote note_of(c10::ArrayRef<ArgSpec> specs, c10::ArrayRef<c10::IValue> arguments, const Call& call) {
  CallNote out;
  size_t tensor = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const ArgSpec& spec = specs[i];
    const c10::IValue& value = arguments[i];
    const bool unused = spec.kind == lowering::Kind::Unused && !spec.written;
    ArgumentNote note;
    note.argument = static_cast<int>(i);
    if (spec.form == Form::Tensor) {
      if (unused) continue;
      note = tensor_note(call.tensors[tensor++]);
      note.argument = static_cast<int>(i);
    } else if (spec.form == Form::TensorList || spec.form == Form::OptTensorList) {
      if (unused) continue;
      note.what = What::List;
      note.sizes = {static_cast<int64_t>(value.toListRef().size())};
      out.arguments.push_back(note);
      for (int64_t j = 0; j < note.sizes[0]; ++j) {
        out.arguments.push_back(tensor_note(call.tensors[tensor++]));
        out.arguments.back().argument = static_cast<int>(i);
        out.arguments.back().element = static_cast<int>(j);
      }
      continue;
    } else if (unused || value.isNone() || spec.kind == lowering::Kind::Random) {
      // None, or nothing that shapes the program
    } else if (spec.kind == lowering::Kind::Value || spec.kind == lowering::Kind::OptValue) {
      note.what = What::Number;
      note.text = kind_text(value.toScalar().type());
    } else if (spec.kind == lowering::Kind::Scale) {
      const c10::Scalar s = value.toScalar();
      const bool special = !s.isComplex() && (s.toDouble() == 0 || s.toDouble() == 1);
      note.what = What::Number;
      note.text = special ? setting_text(value) : kind_text(s.type());
    } else {
      note.what = What::Setting;
      note.text = setting_text(value);
    }
    out.arguments.push_back(std::move(note));
  }
  out.surroundings = text(dtype_name(call.default_dtype), static_cast<int>(call.precision));
  return out;
}

std::string CallHistory::reason(const std::string& op, CallNote note, const std::string& line) {
  std::string why, warning;
  {
    std::lock_guard lock(mutex_);
    if (notes_.empty()) {
      why = op + " is called for the first time";
    } else {
      // The nearest known call tells best; the latest of equals.
      const CallNote* nearest = nullptr;
      std::vector<Change> changes;
      for (auto it = notes_.rbegin(); it != notes_.rend(); ++it) {
        std::vector<Change> found = differences(*it, note);
        if (nearest && found.size() >= changes.size()) continue;
        nearest = &*it;
        changes = std::move(found);
      }
      if (!changes.empty()) {
        why = with_op(changes[0].text, op);
        if (changes.size() > 1) why += ", " + with_op(changes[1].text, "");
        if (changes.size() > 2) why += text(", and ", changes.size() - 2, " more");
      } else if (nearest->surroundings != note.surroundings) {
        why = "the default dtype or the precision of matrix products changed for " + op;
      } else {
        why = "which arguments of " + op + " share a storage changed";
      }
      // A storm: one length or setting that has another value each time a line is run, while data comes and goes. A
      // network's first step meets many sizes too, but all of them between two transfers.
      std::set<std::pair<int64_t, int64_t>> numbers;
      bool lasting = !changes.empty() && !runtime::Capture::current();
      for (const Change& change : changes) {
        lasting = lasting && change.lasting;
        numbers.insert(change.from.begin(), change.from.end());
      }
      if (lasting && numbers.size() <= 2 && !warned_) {
        Changing& changing = changing_[{changes[0].argument, line}];
        const int64_t transfers = runtime::metrics::transfers();
        if (changing.transfers != transfers) ++changing.count;
        changing.transfers = transfers;
        if (changing.count >= kStorm) {
          warned_ = true;
          warning = text(op, " has been compiled ", kStorm, " times because argument ", changes[0].argument,
                         " keeps changing, now at ", line.empty() ? "an unknown line" : line, " (", why,
                         "): ", advice(note, changes[0].argument),
                         ". torch.tpu.compile_report() lists what was compiled and why");
        }
      }
    }
    notes_.push_back(std::move(note));
    if (notes_.size() > kRemembered) notes_.pop_front();
  }
  if (!warning.empty()) log::warn(warning);
  return why;
}

}  // namespace tpu::aten
