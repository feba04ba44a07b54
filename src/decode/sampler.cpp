#include "decode/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/status.h"

namespace millrace::decode {
namespace {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
  }
  return counter;
}

// Natural logarithm of a positive normal double in plain arithmetic, so that every machine draws
// the same token.
double natural_log(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) m *= 0.5, ++exponent;
  const double s = (m - 1) / (m + 1), z = s * s;  // ln m = 2 atanh s, |s| < 0.172
  double series = 0;
  for (int k = 21; k >= 1; k -= 2) series = series * z + 1.0 / k;
  return 2 * s * series + exponent * 0.6931471805599453;
}

// exp for the probabilities that top-p compares: e^x = 2^n e^r, plain arithmetic as well.
double natural_exp(double x) {
  if (x < -700) return 0;
  const double n = std::nearbyint(x * 1.4426950408889634);
  const double r = x - n * 0.6931471805599453;
  double series = 1;
  for (int k = 16; k >= 1; --k) series = 1 + series * r / k;
  return std::ldexp(series, static_cast<int>(n));
}

}  // namespace

double gumbel(uint64_t seed, uint64_t position, uint32_t id) {
  const auto bits =
      philox({id, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  // 52 bits, strictly inside (0, 1).
  const uint64_t wide = (uint64_t{bits[0]} << 20) ^ bits[1];
  const double u = (static_cast<double>(wide & 0xfffffffffffffull) + 0.5) * 0x1p-52;
  return -natural_log(-natural_log(u));
}

Token argmax(std::span<const float> logits) {
  Token best = 0;
  float value = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > value) value = logits[i], best = static_cast<Token>(i);
  }
  return best;
}

Token Sampler::sample(std::span<const float> logits, uint64_t position) {
  logits = logits.subspan(0, std::min<size_t>(logits.size(), allowed_));
  if (params_.temperature <= 0.0f) return argmax(logits);
  const auto n = static_cast<uint32_t>(logits.size());
  order_.resize(n);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!std::isnan(logits[i])) order_[kept++] = i;
  }
  if (kept == 0) return 0;
  auto before = [&](uint32_t a, uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const double t = params_.temperature;
  const bool ordered = params_.top_p < 1.0f;
  if (params_.top_k > 0 && params_.top_k < kept) {
    std::nth_element(order_.begin(), order_.begin() + params_.top_k - 1, order_.begin() + kept,
                     before);
    kept = params_.top_k;
  }
  const float largest = logits[*std::min_element(order_.begin(), order_.begin() + kept, before)];
  if (ordered) {
    std::sort(order_.begin(), order_.begin() + kept, before);
    double total = 0;
    scaled_.resize(kept);
    for (uint32_t i = 0; i < kept; ++i) {
      scaled_[i] =
          static_cast<float>(natural_exp((static_cast<double>(logits[order_[i]]) - largest) / t));
      total += scaled_[i];
    }
    double sum = 0;
    uint32_t keep = 0;
    while (keep < kept && (keep == 0 || sum < params_.top_p * total)) sum += scaled_[keep++];
    kept = keep;
  }
  if (params_.min_p > 0.0f) {
    const double floor = natural_log(std::max<double>(params_.min_p, 1e-300)) * t + largest;
    const auto end = std::partition(order_.begin(), order_.begin() + kept, [&](uint32_t i) {
      return logits[i] >= floor || logits[i] == largest;
    });
    kept = static_cast<uint32_t>(end - order_.begin());
  }
  Token best = 0;
  double value = -std::numeric_limits<double>::infinity();
  for (uint32_t i = 0; i < kept; ++i) {
    const uint32_t id = order_[i];
    const double noisy = static_cast<double>(logits[id]) / t + gumbel(params_.seed, position, id);
    if (noisy > value || (noisy == value && static_cast<Token>(id) < best))
      value = noisy, best = static_cast<Token>(id);
  }
  return best;
}

Status check(const SamplingParams& p) {
  if (!(p.temperature >= 0.0f) || p.temperature > 100.0f)
    return fail(Code::kInvalid, "temperature must be from 0 to 100, not {}", p.temperature);
  if (!(p.top_p > 0.0f) || p.top_p > 1.0f)
    return fail(Code::kInvalid, "top_p must be above 0 and at most 1, not {}", p.top_p);
  if (!(p.min_p >= 0.0f) || p.min_p > 1.0f)
    return fail(Code::kInvalid, "min_p must be from 0 to 1, not {}", p.min_p);
  return {};
}

}  // namespace millrace::decode
