// Names of piece kinds and tensor roles, as manifests and messages write them.
#include "format/piece.h"

#include <array>

namespace millrace::format {
namespace {

constexpr std::array<std::string_view, 8> kKinds = {"embedding", "mixer", "ffn",  "router",
                                                    "expert",    "final", "head", "lookup"};
static_assert(static_cast<size_t>(PieceKind::kLookup) + 1 == kKinds.size());

// In the order of Role.
constexpr std::array<std::string_view, 77> kRoles = {"embedding",
                                                     "head",
                                                     "head_bias",
                                                     "final_norm",
                                                     "rope_factors",
                                                     "mixer_in_norm",
                                                     "mixer_out_norm",
                                                     "ffn_in_norm",
                                                     "ffn_out_norm",
                                                     "q",
                                                     "k",
                                                     "v",
                                                     "o",
                                                     "q_bias",
                                                     "k_bias",
                                                     "v_bias",
                                                     "o_bias",
                                                     "q_norm",
                                                     "k_norm",
                                                     "sinks",
                                                     "gate",
                                                     "up",
                                                     "down",
                                                     "gate_bias",
                                                     "up_bias",
                                                     "down_bias",
                                                     "router",
                                                     "router_bias",
                                                     "router_correction",
                                                     "shared_gate",
                                                     "shared_up",
                                                     "shared_down",
                                                     "shared_router",
                                                     "mix_in",
                                                     "mix_in_bias",
                                                     "mix_gate",
                                                     "mix_beta",
                                                     "mix_alpha",
                                                     "mix_out",
                                                     "mix_out_bias",
                                                     "conv",
                                                     "conv_bias",
                                                     "decay",
                                                     "time_bias",
                                                     "skip",
                                                     "mix_norm",
                                                     "q_down",
                                                     "q_down_bias",
                                                     "q_down_norm",
                                                     "kv_down",
                                                     "kv_down_bias",
                                                     "kv_down_norm",
                                                     "key_up",
                                                     "key_up_transposed",
                                                     "value_up",
                                                     "index_q",
                                                     "index_k",
                                                     "index_k_norm",
                                                     "index_k_norm_bias",
                                                     "index_weights",
                                                     "act_positive",
                                                     "act_negative",
                                                     "act_beta",
                                                     "act_eps",
                                                     "attention_gate",
                                                     "shared_out_norm",
                                                     "expert_in_norm",
                                                     "expert_out_norm",
                                                     "router_scale",
                                                     "expert_scale",
                                                     "layer_table",
                                                     "layer_in_projection",
                                                     "layer_in_norm",
                                                     "layer_in_gate",
                                                     "layer_in_out",
                                                     "layer_in_out_norm",
                                                     "layer_scale"};
static_assert(static_cast<size_t>(Role::kLayerScale) + 1 == kRoles.size());

}  // namespace

std::string_view name(PieceKind kind) { return kKinds[static_cast<size_t>(kind)]; }
std::string_view name(Role role) { return kRoles[static_cast<size_t>(role)]; }

Expected<Role> role_from_name(std::string_view text) {
  for (size_t i = 0; i < kRoles.size(); ++i) {
    if (kRoles[i] == text) return static_cast<Role>(i);
  }
  return fail(Code::kInvalid, "unknown role '{}'", text);
}

}  // namespace millrace::format
