#include "decode/step_timer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>

#include "base/status.h"

namespace millrace::decode {
namespace {

// Keys and values of [0, depth) as bytes that are there, without a pass that would compute them:
// 0x2c2c is a small number in f16, and so is 0x2c2c2c2c in f32.
Status fill(model::KvSequence& sequence, const model::KvShape& shape, uint32_t depth,
            uint32_t chunk) {
  for (uint32_t at = 0; at < depth;) {
    const uint32_t n = std::min(chunk, depth - at);
    MILLRACE_TRY(sequence.reserve(at + n));
    for (uint32_t g = 0; g < shape.groups.size(); ++g) {
      for (uint32_t block = at / kernels::kKvBlock; block <= (at + n - 1) / kernels::kKvBlock;
           ++block) {
        std::byte* page = sequence.page(g, block);
        if (page) std::memset(page, 0x2c, shape.groups[g].page_bytes);
      }
    }
    sequence.commit(at + n);
    at += n;
  }
  if (sequence.state().exists()) {
    MILLRACE_TRY(sequence.state().reserve());
    sequence.state().end_advance(depth);
  }
  return {};
}

}  // namespace

Expected<std::vector<double>> time_steps(model::Forward& forward, model::KvPool& pool,
                                         const TimerLimits& limits, const StepShape& shape,
                                         uint32_t repeats, uint64_t seed) {
  if (shape.rows == 0 || repeats == 0) return fail(Code::kInvalid, "a step needs rows");
  const uint64_t end = shape.depth + uint64_t{shape.rows} * repeats;
  if (end > limits.context) {
    return fail(Code::kInvalid, "{} steps of {} rows from position {} do not fit a context of {}",
                repeats, shape.rows, shape.depth, limits.context);
  }
  uint32_t pass = std::min(limits.prefill_chunk, limits.max_rows);
  if (shape.all_logits) pass = std::min(pass, limits.max_logit_rows);
  if (shape.all_logits && shape.rows > pass) {
    return fail(Code::kInvalid,
                "{} rows with logits do not fit one pass of at most {}; a larger "
                "--prefill-chunk may hold them",
                shape.rows, pass);
  }
  std::mt19937_64 random(seed);
  model::KvSequence sequence(pool);
  MILLRACE_TRY(fill(sequence, pool.shape(), shape.depth, pass));
  std::vector<double> seconds;
  std::vector<model::Row> rows;
  uint32_t position = shape.depth;
  for (uint32_t i = 0; i < repeats; ++i) {
    std::vector<Token> tokens(shape.rows);
    for (Token& token : tokens) token = static_cast<Token>(random() % limits.vocab);
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t done = 0; done < shape.rows;) {
      const uint32_t n = std::min(pass, shape.rows - done);
      MILLRACE_TRY(sequence.reserve(position + n));
      rows.clear();
      for (uint32_t r = 0; r < n; ++r) {
        const bool last = done + r + 1 == shape.rows;
        rows.push_back({&sequence, position + r, tokens[done + r], shape.all_logits || last});
      }
      MILLRACE_ASSIGN([[maybe_unused]] const auto logits, forward.run(rows));
      sequence.commit(position + n);
      position += n;
      done += n;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds.push_back(took.count());
  }
  return seconds;
}

}  // namespace millrace::decode
