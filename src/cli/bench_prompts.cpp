#include "cli/bench_prompts.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/status.h"
#include "cli/medians.h"
#include "cli/size.h"

namespace millrace::cli {

Status PromptsTest::run(Engine& engine, uint64_t seed, bool together, Side* side) const {
  const uint32_t vocab = engine.model().info().vocab;
  const auto start = std::chrono::steady_clock::now();
  const IoReport before = engine.io();
  uint64_t tokens = 0;
  std::optional<Error> error;
  const auto on_event = [&](const Event& event) {
    if (event.token) ++tokens;
    if (event.error) error = *event.error;
  };
  const auto finish = [&]() -> Status {
    for (bool more = true; more;) {
      MILLRACE_ASSIGN(more, engine.step(on_event));
    }
    if (error) return tl::make_unexpected(*error);
    return {};
  };
  for (uint32_t i = 0; i < prompts_; ++i) {
    std::mt19937_64 random(seed + 1000003 * i);
    Request request;
    for (uint32_t t = 0; t < shape_.prompt; ++t)
      request.prompt_ids.push_back(static_cast<Token>(random() % vocab));
    request.max_tokens = shape_.gen;
    request.ignore_eos = true;
    const auto id = engine.submit(std::move(request));
    if (!id) return tl::make_unexpected(id.error());
    if (!together) MILLRACE_TRY(finish());
  }
  if (together) MILLRACE_TRY(finish());
  if (!side) return {};
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const IoReport after = engine.io();
  side->rates.push_back(static_cast<double>(tokens) / took.count());
  side->tokens += tokens;
  side->bytes += after.bytes_read - before.bytes_read;
  side->hits += after.expert_hits - before.expert_hits;
  side->misses += after.expert_misses - before.expert_misses;
  return {};
}

Status PromptsTest::measure(Engine& engine, uint64_t seed, bool keep) {
  MILLRACE_TRY(run(engine, seed, false, keep ? &apart_ : nullptr));
  return run(engine, seed, true, keep ? &together_ : nullptr);
}

double PromptsTest::ratio() const { return paired_ratio(together_.rates, apart_.rates); }

Table PromptsTest::table(const std::vector<PromptsTest>& tests) {
  Table table = {{"prompts", "together", "one after another", "ratio", "read / token", "in turn",
                  "hits", "in turn"}};
  const auto per_token = [](const Side& side) {
    return format_size(static_cast<double>(side.bytes) /
                       static_cast<double>(std::max<uint64_t>(1, side.tokens)));
  };
  const auto hits = [](const Side& side) {
    const uint64_t fired = side.hits + side.misses;
    return fired == 0 ? std::string()
                      : fmt::format("{:.1f} %", 100.0 * static_cast<double>(side.hits) /
                                                    static_cast<double>(fired));
  };
  for (const PromptsTest& test : tests) {
    table.push_back({fmt::format("{}", test.prompts_),
                     fmt::format("{:.2f} t/s", median(test.together_.rates)),
                     fmt::format("{:.2f} t/s", median(test.apart_.rates)),
                     fmt::format("{:.2f}", test.ratio()), per_token(test.together_),
                     per_token(test.apart_), hits(test.together_), hits(test.apart_)});
  }
  return table;
}

nlohmann::ordered_json PromptsTest::json() const {
  const auto side = [](const Side& s) {
    return nlohmann::ordered_json{{"values", s.rates},     {"median", median(s.rates)},
                                  {"tokens", s.tokens},    {"bytes_read", s.bytes},
                                  {"expert_hits", s.hits}, {"expert_misses", s.misses}};
  };
  return {{"prompts", prompts_},
          {"prompt_tokens", shape_.prompt},
          {"answer_tokens", shape_.gen},
          {"together", side(together_)},
          {"one_after_another", side(apart_)},
          {"ratio", ratio()}};
}

}  // namespace millrace::cli
