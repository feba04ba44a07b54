// millrace check: compare a model with the expected values beside it.
//
// The bar with float activations: on every row the largest difference is within 2e-3 of the row's
// range of logits, and the largest logit is the reference's wherever the reference's own margin is
// above that. With int8 activations the difference is reported, and 97 % of the rows must agree.

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/reference.h"

namespace millrace::cli {
namespace {

constexpr double kDifferenceBar = 2e-3;  // of the row's logit range
constexpr double kAgreementBar = 0.97;   // with int8 activations

constexpr const char* kFooter = R"(
DIR holds expected.safetensors: input_ids with logits, greedy_ids and greedy_logits; or input_ids
with logits_top_ids, logits_top and logsumexp. The exit code is 0 when the model is within the bar:
with f32 activations every row within 2e-3 of its logit range, and the same greedy tokens wherever
the reference is not at a near tie; with int8 activations the same top token on 97 % of the rows.

  millrace check tests/data/golden/qwen3_moe
  millrace check models/tiny-moe-4bit --activations int8 --budget 8M)";

struct Options {
  EngineOptions engine;
  std::string expected;
  bool json = false;
};

struct Result {
  size_t rows = 0;
  double worst = 0;           // largest |difference| / range
  double worst_absolute = 0;  // largest |difference|
  size_t worst_row = 0;
  double smallest_range = 0, largest_range = 0;
  size_t agree = 0;      // rows with the reference's top token
  size_t near_ties = 0;  // rows that may differ and do
  size_t generated = 0, generated_equal = 0;
  bool generated_ok = true;  // the first difference, if any, is at a near tie
  bool whole_rows = true;
  TieOrder ties = TieOrder::kLowerPosition;  // with which the values were compared
};

struct Spread {
  float least, most;
  double range() const { return static_cast<double>(most) - least; }
};
Spread spread(std::span<const float> row) {
  const auto [least, most] = std::minmax_element(row.begin(), row.end());
  return {*least, *most};
}

// Equal values rank by lower index, as everywhere.
size_t argmax(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

double margin(std::span<const float> row) {
  const size_t best = argmax(row);
  float second = -INFINITY;
  for (size_t i = 0; i < row.size(); ++i)
    if (i != best) second = std::max(second, row[i]);
  return static_cast<double>(row[best]) - second;
}

bool near_tie(std::span<const float> reference) {
  return margin(reference) <= kDifferenceBar * spread(reference).range();
}

void add_row(size_t at, double difference, double range, Result* result) {
  // A NaN must never pass, so it counts as infinite.
  if (!std::isfinite(difference)) difference = INFINITY;
  const double relative = difference / range;
  if (result->rows == 0 || relative > result->worst) {
    result->worst = relative;
    result->worst_row = at;
  }
  result->worst_absolute = std::max(result->worst_absolute, difference);
  result->smallest_range = result->rows == 0 ? range : std::min(result->smallest_range, range);
  result->largest_range = std::max(result->largest_range, range);
  ++result->rows;
}

void compare_whole_row(const Reference& reference, size_t at, std::span<const float> ours,
                       Result* result) {
  const std::span<const float> theirs = reference.row(at);
  double difference = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    const double d = std::abs(static_cast<double>(ours[i]) - theirs[i]);
    if (!(d <= difference)) difference = d;
    if (std::isnan(d)) break;
  }
  add_row(at, difference, spread(theirs).range(), result);
  if (argmax(ours) == argmax(theirs)) {
    ++result->agree;
  } else if (near_tie(theirs)) {
    ++result->near_ties;
  }
}

void compare_top_row(const Reference& reference, size_t at, std::span<const float> ours,
                     Result* result) {
  double difference = 0;
  for (size_t i = 0; i < reference.top; ++i) {
    const size_t k = at * reference.top + i;
    const auto id = static_cast<size_t>(reference.top_ids[k]);
    const double d = std::abs(static_cast<double>(ours[id]) - reference.top_logits[k]);
    if (!(d <= difference)) difference = d;
    if (std::isnan(d)) break;
  }
  const double range = spread(ours).range();
  add_row(at, difference, range, result);
  if (argmax(ours) == static_cast<size_t>(reference.top_ids[at * reference.top])) {
    ++result->agree;
  } else if (reference.top > 1 && reference.top_logits[at * reference.top] -
                                          reference.top_logits[at * reference.top + 1] <=
                                      kDifferenceBar * range) {
    ++result->near_ties;
  }
}

// The reference generated each token from a full pass over all before it, and so do we: how it
// ranks equal scores depends on the length of the text.
Status compare_generated_by_full_passes(const Reference& reference, Engine& engine,
                                        Result* result) {
  const uint32_t vocab = engine.model().info().vocab;
  std::vector<Token> ids = reference.input_ids;
  result->generated = reference.greedy_ids.size();
  for (size_t i = 0; i < result->generated; ++i) {
    std::vector<float> last(vocab);
    MILLRACE_TRY(engine.score(
        ids, [&](uint32_t, const float* logits) { std::copy_n(logits, vocab, last.begin()); },
        TieOrder::kReference));
    const size_t at = ids.size() - 1;
    if (i > 0) compare_whole_row(reference, at, last, result);  // row 0 is one of the prompt's
    if (argmax(last) == static_cast<size_t>(reference.greedy_ids[i])) {
      ++result->generated_equal;
    } else if (!near_tie(reference.row(at))) {
      result->generated_ok = false;
    }
    ids.push_back(reference.greedy_ids[i]);
  }
  return {};
}

Status compare_generated(const Reference& reference, Engine& engine, Result* result) {
  if (reference.greedy_ids.empty()) return {};
  Request request;
  request.prompt_ids = reference.input_ids;
  request.max_tokens = static_cast<uint32_t>(reference.greedy_ids.size());
  request.ignore_eos = true;
  MILLRACE_ASSIGN(const auto completion, engine.generate(std::move(request)));
  result->generated = reference.greedy_ids.size();
  if (completion.token_ids.size() != result->generated)
    return fail(Code::kInternal, "asked for {} tokens, got {}", result->generated,
                completion.token_ids.size());
  const auto differs = std::mismatch(reference.greedy_ids.begin(), reference.greedy_ids.end(),
                                     completion.token_ids.begin());
  result->generated_equal = static_cast<size_t>(differs.first - reference.greedy_ids.begin());
  // After the first difference the texts are different ones; nothing more can be compared.
  if (result->generated_equal < result->generated)
    result->generated_ok =
        near_tie(reference.row(reference.input_ids.size() - 1 + result->generated_equal));
  return {};
}

Status check_ids(const Reference& reference, uint32_t vocab) {
  const auto outside = [vocab](Token id) { return id < 0 || static_cast<uint32_t>(id) >= vocab; };
  for (const auto* ids : {&reference.input_ids, &reference.greedy_ids, &reference.top_ids})
    if (std::any_of(ids->begin(), ids->end(), outside))
      return fail(Code::kInvalid, "the expected values have ids outside the model's vocabulary");
  if (reference.whole_rows() && reference.vocab != vocab)
    return fail(Code::kInvalid, "the expected values are for {} tokens, the model has {}",
                reference.vocab, vocab);
  return {};
}

Expected<Result> compare(const Reference& reference, Engine& engine, TieOrder ties) {
  const uint32_t vocab = engine.model().info().vocab;
  MILLRACE_TRY(check_ids(reference, vocab));
  Result result;
  result.whole_rows = reference.whole_rows();
  result.ties = ties;
  const bool by_full_passes = ties == TieOrder::kReference && result.whole_rows;
  std::vector<Token> ids = reference.input_ids;
  if (!reference.greedy_ids.empty() && !by_full_passes)
    ids.insert(ids.end(), reference.greedy_ids.begin(), reference.greedy_ids.end() - 1);
  MILLRACE_TRY(engine.score(
      ids,
      [&](uint32_t at, const float* logits) {
        const std::span<const float> ours(logits, vocab);
        if (result.whole_rows) {
          compare_whole_row(reference, at, ours, &result);
        } else {
          compare_top_row(reference, at, ours, &result);
        }
      },
      ties));
  if (result.rows != ids.size())
    return fail(Code::kInternal, "scored {} rows of {}", result.rows, ids.size());
  MILLRACE_TRY(by_full_passes ? compare_generated_by_full_passes(reference, engine, &result)
                              : compare_generated(reference, engine, &result));
  return result;
}

bool within_bar(const Result& result, ActivationPrecision activations) {
  const size_t may_differ = result.rows - result.near_ties;
  if (activations == ActivationPrecision::kInt8)
    return static_cast<double>(result.agree) >= kAgreementBar * static_cast<double>(may_differ) &&
           std::isfinite(result.worst);
  return result.worst <= kDifferenceBar && result.agree == may_differ && result.generated_ok;
}

std::string describe(const Engine& engine, const Options& options, const Result& result, bool ok) {
  const ModelInfo& info = engine.model().info();
  const bool f32 = options.engine.activations == ActivationPrecision::kF32;
  std::string text = fmt::format("{}: {}, {}, {} activations\n", options.engine.model,
                                 info.architecture, info.format, f32 ? "f32" : "int8");
  text += fmt::format("  max |difference|   {:.3g}, {:.3g} of the row's logit range (row {}){}\n",
                      result.worst_absolute, result.worst, result.worst_row,
                      f32 ? fmt::format("; bar {:g}", kDifferenceBar) : "");
  text += fmt::format("  logit range        {:.4g} to {:.4g} over {} rows{}\n",
                      result.smallest_range, result.largest_range, result.rows,
                      result.whole_rows ? "" : " (differences on the reference's largest logits)");
  text += fmt::format(
      "  same top token     {} of {} rows ({:.2f} %), {} others are near ties{}\n", result.agree,
      result.rows, 100.0 * static_cast<double>(result.agree) / static_cast<double>(result.rows),
      result.near_ties, f32 ? "" : fmt::format("; bar {:.0f} %", 100 * kAgreementBar));
  if (result.generated > 0)
    text += fmt::format("  greedy ids         {} of {} equal{}\n", result.generated_equal,
                        result.generated,
                        result.generated_equal == result.generated ? ""
                        : result.generated_ok ? ", then a near tie of the reference"
                                              : ", then a difference that is no near tie");
  if (result.ties == TieOrder::kReference)
    text +=
        "  equal index scores ranked as torch.topk ranks them for these values; generation ranks "
        "them by position\n";
  return text + (ok ? "ok\n" : "NOT within the bar\n");
}

nlohmann::ordered_json as_json(const Engine& engine, const Options& options, const Result& result,
                               bool ok) {
  const bool f32 = options.engine.activations == ActivationPrecision::kF32;
  return {{"model", options.engine.model},
          {"architecture", engine.model().info().architecture},
          {"activations", f32 ? "f32" : "int8"},
          {"ok", ok},
          {"rows", result.rows},
          {"max_difference", result.worst_absolute},
          {"max_difference_of_range", result.worst},
          {"worst_row", result.worst_row},
          {"logit_range", {result.smallest_range, result.largest_range}},
          {"top_agree", result.agree},
          {"near_ties", result.near_ties},
          {"reference_ties", result.ties == TieOrder::kReference},
          {"generated", result.generated},
          {"generated_equal", result.generated_equal},
          {"generated_ok", result.generated_ok}};
}

int run(const Cli& cli, Options options) {
  watch_interrupts(OnInterrupt::kExitSoon);
  if (options.expected.empty())
    options.expected =
        (std::filesystem::path(options.engine.model) / "expected.safetensors").string();
  const auto reference = read_reference(options.expected);
  if (!reference) return cli.report(reference.error());

  options.engine.log = [](std::string_view line) { spdlog::debug("{}", line); };
  options.engine.warn = [](std::string_view line) { spdlog::warn("{}", line); };
  const auto engine = Engine::open(options.engine);
  if (!engine) return cli.report(engine.error());
  auto result = compare(*reference, **engine, TieOrder::kLowerPosition);
  if (!result) return cli.report(result.error());
  bool ok = within_bar(*result, options.engine.activations);
  if (!ok) {
    // Sparse attention over equal scores: the reference takes them in an order of its own.
    auto again = compare(*reference, **engine, TieOrder::kReference);
    if (!again) return cli.report(again.error());
    if (within_bar(*again, options.engine.activations)) {
      ok = true;
      result = std::move(again);
    }
  }
  const int printed = options.json ? cli.print_json(as_json(**engine, options, *result, ok))
                                   : cli.print(describe(**engine, options, *result, ok));
  return ok ? printed : kError;
}

}  // namespace

void add_check(CLI::App& root, Cli& cli) {
  CLI::App& app = *root.add_subcommand("check", "Compare a model with expected values beside it");
  auto options = std::make_shared<Options>();
  options->engine.activations = ActivationPrecision::kF32;
  app.add_option("DIR", options->engine.model, "A model with expected.safetensors")
      ->required()
      ->type_name("");
  app.add_option("--expected", options->expected,
                 "Expected values that lie elsewhere (to check a packed model or a .gguf)")
      ->type_name("FILE");
  app.add_flag("--json", options->json, "One JSON object");
  add_engine_flags(app, options->engine, EngineFlags::kCheck);
  app.footer(kFooter);
  app.callback([&cli, options] { cli.exit_code = run(cli, *options); });
}

}  // namespace millrace::cli
