// Names of piece kinds and tensor roles, as manifests and messages write them.
#include "format/piece.h"

#include <array>

namespace millrace::format {
namespace {

constexpr std::array<std::string_view, 7> kKinds = {"embedding", "mixer", "ffn", "router",
                                                    "expert",    "final", "head"};
static_assert(static_cast<size_t>(PieceKind::kHead) + 1 == kKinds.size());

// In the order of Role.
constexpr std::array<std::string_view, 46> kRoles = {"embedding",
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
                                                     "mix_norm"};
static_assert(static_cast<size_t>(Role::kMixNorm) + 1 == kRoles.size());

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
