#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace::model {
namespace {

double number(const nlohmann::json& object, const char* key, double fallback) {
  auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : fallback;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Blend of interpolated (divided by factor) and original frequencies between two correction
// dimensions.
void apply_yarn(const nlohmann::json& p, double theta, uint32_t max_context, RopeSpec* rope) {
  const double factor = number(p, "factor", 1.0);
  const double original = number(p, "original_max_position_embeddings", max_context);
  const double d = rope->dims;
  auto correction = [&](double rotations) {
    return d * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = correction(number(p, "beta_fast", 32.0));
  double high = correction(number(p, "beta_slow", 1.0));
  if (!p.contains("truncate") || p["truncate"] != false)
    low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (size_t j = 0; j < rope->inv_freq.size(); ++j) {
    const float ramp =
        std::clamp(static_cast<float>((static_cast<double>(j) - low) / (high - low)), 0.0f, 1.0f);
    const float keep = 1.0f - ramp;
    const float base = rope->inv_freq[j];
    rope->inv_freq[j] = base / static_cast<float>(factor) * (1.0f - keep) + base * keep;
  }
  // GGUF has mscale_all_dim alone; mscale is 1 then.
  const double all = number(p, "mscale_all_dim", number(p, "yarn_log_multiplier", 0.0));
  const double mscale = number(p, "mscale", p.contains("yarn_log_multiplier") ? 1.0 : 0.0);
  double scale = p.contains("attention_factor") && p["attention_factor"].is_number()
                     ? p["attention_factor"].get<double>()
                 : mscale > 0 && all > 0 ? yarn_mscale(factor, mscale) / yarn_mscale(factor, all)
                                         : yarn_mscale(factor, 1.0);
  rope->scale = static_cast<float>(scale * number(p, "attention_factor_extra", 1.0));
}

void apply_llama3(const nlohmann::json& p, RopeSpec* rope) {
  const double factor = number(p, "factor", 8.0), low = number(p, "low_freq_factor", 1.0);
  const double high = number(p, "high_freq_factor", 4.0),
               original = number(p, "original_max_position_embeddings", 8192.0);
  for (float& f : rope->inv_freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > original / low) {
      f = static_cast<float>(f / factor);
    } else if (wavelength >= original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      f = static_cast<float>((1 - smooth) * f / factor + smooth * f);
    }
  }
}

Status apply_longrope(const nlohmann::json& p, uint32_t max_context, RopeSpec* rope) {
  const double original = number(p, "original_max_position_embeddings", max_context);
  const double ratio = p.contains("factor") && p["factor"].is_number() ? p["factor"].get<double>()
                                                                       : max_context / original;
  // The factors must not change with the length of the text (a key's rotation would depend on what
  // follows it), so the long ones serve whenever the model's context is longer than the original
  // one.
  const char* key = max_context > original ? "long_factor" : "short_factor";
  auto it = p.find(key);
  if (it == p.end() || !it->is_array() || it->size() != rope->inv_freq.size()) {
    return fail(Code::kInvalid, "rope '{}' must be a list of {} numbers", key,
                rope->inv_freq.size());
  }
  for (size_t j = 0; j < rope->inv_freq.size(); ++j) {
    if (!(*it)[j].is_number() || (*it)[j].get<double>() <= 0)
      return fail(Code::kInvalid, "rope '{}'[{}] must be a positive number", key, j);
    rope->inv_freq[j] /= (*it)[j].get<float>();
  }
  double scale = ratio <= 1 ? 1.0 : std::sqrt(1 + std::log(ratio) / std::log(original));
  scale = number(p, "attention_factor", scale);
  rope->scale = static_cast<float>(scale);
  return {};
}

}  // namespace

Expected<RopeSpec> make_rope(const nlohmann::json& parameters, double theta, uint32_t dims,
                             uint32_t max_context, bool interleaved) {
  static constexpr std::array kKnown = {
      "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor",
      "original_max_position_embeddings", "max_position_embeddings", "beta_fast", "beta_slow",
      "mscale", "mscale_all_dim", "attention_factor", "truncate", "long_factor", "short_factor",
      "partial_rotary_factor", "attention_factor_extra", "yarn_log_multiplier",
      "llama_4_scaling_beta", "finetuned", "alpha",
      // Positions in three axes, equal for text.
      "mrope_section", "mrope_interleaved"};
  const nlohmann::json p = parameters.is_object() ? parameters : nlohmann::json::object();
  for (const auto& [key, value] : p.items()) {
    if (!value.is_null() && std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
      return fail(Code::kUnsupported,
                  "rope parameter '{}' = {} is not understood and may change the result", key,
                  value.dump().substr(0, 60));
    }
  }
  theta = number(p, "rope_theta", theta);
  if (!(theta > 1.0) || dims == 0 || dims % 2 != 0)
    return fail(Code::kInvalid, "rope: theta {} and {} rotated dimensions make no sense", theta,
                dims);
  RopeSpec rope;
  rope.dims = dims;
  rope.interleaved = interleaved;
  rope.inv_freq.resize(dims / 2);
  for (uint32_t j = 0; j < dims / 2; ++j)
    rope.inv_freq[j] = static_cast<float>(1.0 / std::pow(theta, 2.0 * j / dims));

  auto text = [&](const char* key) {
    return p.contains(key) && p[key].is_string() ? p[key].get<std::string>() : std::string();
  };
  std::string type = text("rope_type").empty() ? text("type") : text("rope_type");
  if (type.empty() || type == "default" || type == "none" || type == "mrope") return rope;
  const double factor = number(p, "factor", 1.0);
  if (!(factor > 0)) return fail(Code::kInvalid, "rope 'factor' must be positive, not {}", factor);
  if (type == "dynamic") {
    // Changes nothing up to the length that the model was made for, and no sequence is longer; with
    // "alpha", the base is larger from the start.
    const double alpha = number(p, "alpha", 0.0);
    const double base = alpha > 0 ? theta * std::pow(alpha, dims / (dims - 2.0)) : theta;
    for (uint32_t j = 0; j < dims / 2; ++j)
      rope.inv_freq[j] = static_cast<float>(1.0 / std::pow(base, 2.0 * j / dims));
  } else if (type == "proportional") {
    // Pairs span the whole head; only the first of them turn.
    const auto turning = static_cast<uint32_t>(number(p, "partial_rotary_factor", 1.0) * dims / 2);
    for (uint32_t j = 0; j < dims / 2; ++j)
      rope.inv_freq[j] = j < turning ? rope.inv_freq[j] / static_cast<float>(factor) : 0.0f;
  } else if (type == "linear") {
    for (float& f : rope.inv_freq) f /= static_cast<float>(factor);
  } else if (type == "llama3") {
    apply_llama3(p, &rope);
  } else if (type == "yarn" || type == "deepseek_yarn" || type == "telechat3-yarn") {
    apply_yarn(p, theta, max_context, &rope);
  } else if (type == "longrope" && p.contains("attention_factor_extra")) {
    rope.scale = static_cast<float>(number(p, "attention_factor_extra", 1.0));  // divisors: tensors
  } else if (type == "longrope" || type == "su") {
    MILLRACE_TRY(apply_longrope(p, max_context, &rope));
  } else {
    return fail(Code::kUnsupported,
                "rope type '{}' is not supported (default, linear, dynamic, proportional, llama3, "
                "yarn, longrope are)",
                type);
  }
  return rope;
}

}  // namespace millrace::model
