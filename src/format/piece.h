// Pieces: the smallest units of residency, and the table that names them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/view.h"

namespace millrace::format {

// The order of kinds is the order of the forward pass inside a layer.
enum class PieceKind : uint8_t {
  kEmbedding,  // a row range of the token embedding
  kMixer,      // attention (or another mixer) with its norms
  kFfn,        // dense feed-forward with its norms
  kRouter,     // router, shared experts and norms of a mixture-of-experts layer
  kExpert,     // one routed expert: gate, up, down together
  kFinal,      // final norm
  kHead,       // a row range of the output head
  kLookup,     // a row range of a further table of which only the tokens' rows are read
};
std::string_view name(PieceKind kind);

// What a tensor is for. Values are written to manifests by name, never by number.
enum class Role : uint8_t {
  kEmbedding,
  kHead,
  kHeadBias,
  kFinalNorm,
  kRopeFactors,  // [dims/2] divisors of the rotary frequencies (GGUF keeps llama3 scaling so)
  kMixerInNorm,
  kMixerOutNorm,
  kFfnInNorm,
  kFfnOutNorm,
  kQ,
  kK,
  kV,
  kO,
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,
  kKNorm,
  kSinks,
  kGate,
  kUp,
  kDown,
  kGateBias,
  kUpBias,
  kDownBias,
  kRouter,
  kRouterBias,
  kRouterCorrection,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedRouter,
  // Recurrent mixers: projections in and out, convolution, and the vectors of each head.
  kMixIn,
  kMixInBias,
  kMixGate,
  kMixBeta,
  kMixAlpha,
  kMixOut,
  kMixOutBias,
  kConv,
  kConvBias,
  kDecay,
  kTimeBias,
  kSkip,
  kMixNorm,
  // Latent attention: down projections, the halves of the up projection by head, the indexer.
  kQDown,
  kQDownBias,
  kQDownNorm,
  kKvDown,
  kKvDownBias,
  kKvDownNorm,
  kKeyUp,
  kKeyUpTransposed,
  kValueUp,
  kIndexQ,
  kIndexK,
  kIndexKNorm,
  kIndexKNormBias,
  kIndexWeights,
  // Parameters of xIELU; the gate of attention; norms and scales around experts beside a dense part.
  kActPositive,
  kActNegative,
  kActBeta,
  kActEps,
  kAttentionGate,
  kSharedOutNorm,
  kExpertInNorm,
  kExpertOutNorm,
  kRouterScale,
  kExpertScale,
  // Per-layer embeddings, and the scale of a layer's output.
  kLayerTable,
  kLayerInProjection,
  kLayerInNorm,
  kLayerInGate,
  kLayerInOut,
  kLayerInOutNorm,
  kLayerScale,
};
std::string_view name(Role role);
Expected<Role> role_from_name(std::string_view name);

struct PieceTensor {
  Role role = Role::kEmbedding;
  WeightView view;      // layout, and (for a source in place) where it comes from
  uint64_t offset = 0;  // in the piece, 64-byte aligned
  uint64_t bytes = 0;
};

struct Piece {
  std::string name;  // "layers.3.experts.17"
  PieceKind kind = PieceKind::kMixer;
  int32_t layer = -1;  // -1 outside the layers
  int32_t expert = -1;
  uint32_t row_begin = 0;  // embedding and head: first row of the range
  uint64_t bytes = 0;      // of the slot contents, a multiple of 4096
  std::vector<PieceTensor> tensors;
  // Packed models only: where it lies.
  uint32_t file = 0;
  uint64_t offset = 0;        // 4096-byte aligned
  uint64_t hash[2] = {0, 0};  // xxh3-128 of `bytes` bytes, low and high
};

// Pieces in the order in which the forward pass reads them (experts of a layer by number).
struct PieceTable {
  std::vector<Piece> pieces;
};

}  // namespace millrace::format
