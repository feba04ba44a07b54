// millrace families: which model families this build runs.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "millrace/millrace.h"

namespace millrace::cli {
namespace {

struct Column {
  const char* title;
  std::string FamilyInfo::*field;
};
constexpr Column kColumns[] = {
    {"family", &FamilyInfo::name},
    {"also named", &FamilyInfo::aliases},
    {"gguf", &FamilyInfo::gguf},
    {"mixer", &FamilyInfo::mixer},
    {"ffn", &FamilyInfo::ffn},
    {"streams by", &FamilyInfo::streaming},
    {"kv", &FamilyInfo::kv},
    {"drafter ports", &FamilyInfo::drafter_ports},
    {"checked with", &FamilyInfo::fixtures},
};

std::string table(const std::vector<FamilyInfo>& rows) {
  std::string text;
  std::vector<size_t> widths;
  for (const Column& column : kColumns) {
    size_t width = std::string_view(column.title).size();
    for (const FamilyInfo& row : rows) width = std::max(width, (row.*column.field).size());
    widths.push_back(width);
  }
  const auto add_row = [&](const auto& cell) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i)
      line += fmt::format("{:<{}}  ", cell(kColumns[i]), widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_row([](const Column& column) { return std::string(column.title); });
  for (const FamilyInfo& row : rows)
    add_row([&row](const Column& column) { return row.*column.field; });
  return text;
}

int run(const Cli& cli, bool json) {
  const std::vector<FamilyInfo> rows = families();
  if (!json) return cli.print(table(rows));
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FamilyInfo& row : rows)
    list.push_back({{"name", row.name},
                    {"aliases", row.aliases},
                    {"gguf", row.gguf},
                    {"mixer", row.mixer},
                    {"ffn", row.ffn},
                    {"streaming", row.streaming},
                    {"kv", row.kv},
                    {"drafter_ports", row.drafter_ports},
                    {"fixtures", row.fixtures}});
  return cli.print_json({{"families", list}});
}

}  // namespace

void add_families(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("families", "List the model families this build runs");
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "List as JSON");
  app.callback([&cli, json] { cli.exit_code = run(cli, *json); });
}

}  // namespace millrace::cli
