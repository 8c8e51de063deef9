// SPDX-License-Identifier: Apache-2.0
#include "pjrt/signature.h"

namespace tpu::pjrt {

std::string marked_for(std::string_view platform, std::string_view text) {
  if (platform != "tpu") return std::string(text);
  constexpr std::string_view kMark = "mhlo.sharding = \"{replicated}\"";
  constexpr std::string_view kType = "tensor<";
  const size_t begin = text.find("@main(");
  const size_t end = begin == text.npos ? begin : text.find('\n', begin);
  if (end == text.npos) return std::string(text);
  std::string_view line = text.substr(begin, end - begin);
  if (line.find("sharding") != line.npos) return std::string(text);
  std::string out(text.substr(0, begin));
  // A single result may stand without the parentheses that its attributes need.
  std::string with_parentheses;
  constexpr std::string_view kArrow = "-> tensor<", kBody = " {";
  if (const size_t arrow = line.find(kArrow); arrow != line.npos && line.ends_with(kBody)) {
    with_parentheses = std::string(line.substr(0, arrow)).append("-> (");
    with_parentheses.append(line.substr(arrow + 3, line.size() - arrow - 3 - kBody.size())).append(")").append(kBody);
    line = with_parentheses;
  }
  for (size_t type = line.find(kType); type != line.npos; type = line.find(kType)) {
    size_t close = type + kType.size();
    for (int depth = 1; close < line.size() && depth > 0; ++close)  // complex<f32> stands inside
      depth += line[close] == '<' ? 1 : line[close] == '>' ? -1 : 0;
    out.append(line.substr(0, close)).append(" {").append(kMark);
    line.remove_prefix(close);
    // Attributes that are there already follow.
    constexpr std::string_view kOpen = " {";
    if (line.starts_with(kOpen) && line.size() > kOpen.size()) {
      out.append(", ");
      line.remove_prefix(kOpen.size());
    } else {
      out.append("}");
    }
  }
  return out.append(line).append(text.substr(end));
}

}  // namespace tpu::pjrt
