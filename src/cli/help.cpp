#include "cli/help.h"

namespace millrace::cli {
namespace {

constexpr size_t kWidth = 96;

// Breaks at spaces so that the text stands in a column of its own.
std::string wrap(const std::string& text, size_t indent) {
  std::string out;
  size_t column = indent;
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, space - at);
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    at = space + 1;
  }
  return out;
}

}  // namespace

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  std::string left = "  " + make_option_name(option, is_positional) + make_option_opts(option);
  const size_t column = get_column_width();
  left += left.size() + 1 < column ? std::string(column - left.size(), ' ')
                                   : "\n" + std::string(column, ' ');
  return left + wrap(option->get_description(), column) + "\n";
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  std::string text;
  if (!option->get_type_name().empty()) text += " " + option->get_type_name();
  if (!option->get_default_str().empty()) text += " (" + option->get_default_str() + ")";
  return text;
}

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  // The caller puts an empty line between groups, but none before the first.
  std::string text = is_positional || group == "Options" ? "\n" : "";
  text += group + ":\n";
  for (const CLI::Option* option : options) text += make_option(option, is_positional);
  return text;
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  std::string text = app->get_footer();
  if (app->get_parent() != nullptr)
    text +=
        "\n\n--verbose and --quiet work here too: they say more, or nothing but errors, on "
        "standard error.";
  return text.empty() ? "" : text + "\n";
}

}  // namespace millrace::cli
