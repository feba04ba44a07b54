// What the families with Mamba-2 layers share: its config keys and tensor names.
#include <limits>

#include "model/families/builders.h"

namespace millrace::model {
namespace {

// A number, which may be too large for a float, or {"__float__": "Infinity"}.
float bound(const nlohmann::json& value, float fallback) {
  if (value.is_number()) {
    const auto number = value.get<double>();
    return number < std::numeric_limits<float>::max() ? static_cast<float>(number)
                                                      : std::numeric_limits<float>::infinity();
  }
  if (!value.is_object() || value.value("__float__", "") != "Infinity") return fallback;
  return std::numeric_limits<float>::infinity();
}

}  // namespace

Expected<Mamba2Spec> read_mamba2(Config& config) {
  Mamba2Spec m;
  if (config.is_gguf()) {
    m.heads = config.uint("ssm_time_step_rank");
    m.head_dim = config.uint("ssm_inner_size") / m.heads;
    m.state_dim = config.uint("ssm_state_size");
    m.groups = config.uint("ssm_group_count");
    m.kernel = config.uint("ssm_conv_kernel");
    m.conv_bias = !config.shape_of(".ssm_conv1d.bias").empty();
    m.log_decay = false;
  } else {
    m.heads = config.uint("mamba_num_heads");
    m.head_dim = config.uint("mamba_head_dim");
    m.state_dim = config.uint("ssm_state_size");
    m.groups = config.uint("n_groups");
    m.kernel = config.uint("conv_kernel");
    m.conv_bias = config.flag("use_conv_bias", true);
    m.in_bias = config.flag("mamba_proj_bias", false);
    m.out_bias = config.flag("use_bias", false);
  }
  if (m.heads % m.groups != 0) config.fail_key("n_groups", "does not divide the Mamba heads");
  const auto limit = config.json("time_step_limit");
  if (limit.is_array() && limit.size() == 2) {
    m.least_dt = bound(limit[0], -1.0f);
    m.most_dt = bound(limit[1], -1.0f);
  }
  if (!(m.least_dt >= 0.0f && m.most_dt >= m.least_dt))
    config.fail_key("time_step_limit", "is not a pair of bounds");
  MILLRACE_TRY(config.status());
  return m;
}

void names_mamba2(bool gguf, const std::string& prefix, NameRules* rules) {
  using format::Role;
  const std::string p = gguf ? "blk.{i}.ssm_" : prefix;
  put_first(rules, {{Role::kMixIn, p + (gguf ? "in.weight" : "in_proj.weight")},
                    {Role::kMixInBias, p + (gguf ? "in.bias" : "in_proj.bias")},
                    {Role::kConv, p + "conv1d.weight"},
                    {Role::kConvBias, p + "conv1d.bias"},
                    {Role::kDecay, p + (gguf ? "a" : "A_log")},
                    {Role::kTimeBias, p + (gguf ? "dt.bias" : "dt_bias")},
                    {Role::kSkip, p + (gguf ? "d" : "D")},
                    {Role::kMixNorm, p + "norm.weight"},
                    {Role::kMixOut, p + (gguf ? "out.weight" : "out_proj.weight")},
                    {Role::kMixOutBias, p + (gguf ? "out.bias" : "out_proj.bias")}});
}

}  // namespace millrace::model
