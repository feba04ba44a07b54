// How --help looks: wrapped to a readable width, without the parser's own notes in between.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace millrace::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override;
  std::string make_footer(const CLI::App* app) const override;
};

}  // namespace millrace::cli
