#include "cli/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace millrace::cli {

std::string plain(const Table& table) {
  std::vector<size_t> widths(table[0].size());
  for (const auto& row : table)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : table) {
    std::string line = fmt::format("  {:<{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string markdown(const Table& table) {
  std::string text;
  for (size_t r = 0; r < table.size(); ++r) {
    text += fmt::format("| {} |\n", fmt::join(table[r], " | "));
    if (r > 0) continue;
    text += "|---|";
    for (size_t i = 1; i < table[0].size(); ++i) text += "---:|";
    text += "\n";
  }
  return text;
}

}  // namespace millrace::cli
