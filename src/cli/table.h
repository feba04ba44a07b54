// Tables of text cells: for a terminal, and as Markdown.
#pragma once

#include <string>
#include <vector>

namespace millrace::cli {

using Table = std::vector<std::vector<std::string>>;  // the first row is the head

std::string plain(const Table& table);     // columns aligned, all but the first to the right
std::string markdown(const Table& table);  // the same

}  // namespace millrace::cli
