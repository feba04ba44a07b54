// Flags with checked values, and the group of flags that describe an engine (run, check and plan
// share it).
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "millrace/millrace.h"

namespace millrace::cli {

// A size such as 4G; 'auto' leaves `out` empty.
CLI::Option* add_size(CLI::App& app, const std::string& names, std::optional<uint64_t>& out,
                      const std::string& help);

// A whole number or decimal within [least, most], nothing after it.
template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& names, T& out, T least, T most,
                        const std::string& help);

// One of a few words.
template <class T>
struct Choice {
  std::string word;
  T value;
};
template <class T, class Out>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Out& out,
                        const std::vector<Choice<T>>& choices, const std::string& help);

// MODEL, and the flags of EngineOptions under the group "Memory, threads and disk".
enum class EngineFlags { kAll, kCheck };
void add_engine_flags(CLI::App& app, EngineOptions& options, EngineFlags which = EngineFlags::kAll);
CLI::Option* add_model(CLI::App& app, std::string& model);

// "1, 2,3" -> ids. Throws a usage error that names the flag.
std::vector<Token> parse_ids(const std::string& flag, const std::string& text,
                             std::string_view what = "token ids");

// --- templates ---

// "-n,--max-tokens" -> "--max-tokens": the name to show in messages.
std::string long_name(const std::string& names);

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& names, T& out, T least, T most,
                        const std::string& help) {
  const auto read = [&out, least, most, flag = long_name(names)](const std::string& text) {
    T value{};
    const char* end = text.data() + text.size();
    const auto [after, error] = std::from_chars(text.data(), end, value);
    const bool whole = error == std::errc{} && after == end;
    // The comparison also turns NaN away.
    if (!whole || !(value >= least && value <= most))
      usage_error(flag, fmt::format("'{}' is not a number from {} to {}", text, least, most));
    out = value;
  };
  return app.add_option_function<std::string>(names, read, help)
      ->type_name("NUMBER")
      ->default_str(fmt::format("{}", out));
}

template <class T, class Out>
CLI::Option* add_choice(CLI::App& app, const std::string& names, Out& out,
                        const std::vector<Choice<T>>& choices, const std::string& help) {
  std::string words;
  for (const auto& choice : choices) words += (words.empty() ? "" : "|") + choice.word;
  const auto read = [&out, choices, words, flag = long_name(names)](const std::string& text) {
    for (const auto& choice : choices) {
      if (choice.word == text) {
        out = choice.value;
        return;
      }
    }
    usage_error(flag, fmt::format("'{}' is not one of {}", text, words));
  };
  return app.add_option_function<std::string>(names, read, help)->type_name(words);
}

}  // namespace millrace::cli
