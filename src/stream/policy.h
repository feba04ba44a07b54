// Which resident piece to give up for another, where the order of use is not known ahead (experts, an
// untied embedding). One interface for the store and for replays of recorded traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::stream {

inline constexpr uint32_t kNone = UINT32_MAX;

enum class PolicyKind : uint8_t {
  kLru,     // used longest ago
  kLfu,     // used least, where a use counts half as much after 64 tokens
  kS3Fifo,  // a small queue for what came once, a main queue for what came back (Yang et al., 2023)
  // The default: whose next use is farthest, as far as its layer and how often it fires tell.
  kNextUse,
};

inline constexpr PolicyKind kDefaultPolicy = PolicyKind::kNextUse;

struct PolicyName {
  PolicyKind kind;
  std::string_view name;  // "lru"
};
std::span<const PolicyName> policy_names();
std::string_view name(PolicyKind kind);
Expected<PolicyKind> find_policy(std::string_view name);  // the error lists the names

// Used by one thread. Nothing is allocated while passes run.
class Policy {
 public:
  using MayGo = std::function<bool(uint32_t piece)>;

  virtual ~Policy() = default;
  // A pass over a layer begins, with so many rows. Its uses follow.
  virtual void began(uint32_t layer, uint32_t rows) { (void)layer, (void)rows; }
  virtual void admitted(uint32_t piece) = 0;  // resident from now on; its first use follows
  // A resident piece was used just now, by so many of the pass's rows.
  virtual void used(uint32_t piece, uint32_t rows) = 0;
  virtual void removed(uint32_t piece) = 0;  // no longer resident
  // The resident piece to give up, among those that may go; kNone when none may.
  virtual uint32_t victim(const MayGo& may_go) = 0;

  // Between passes, when the number of slots changes; these may allocate.
  // All resident pieces, the one to give up first in front.
  virtual std::vector<uint32_t> order() const = 0;
  virtual void resize(uint32_t slots) { (void)slots; }
};

// What a policy may know of the pieces. All ids are below layer_of.size().
struct PolicyFacts {
  std::vector<uint32_t> layer_of;  // by piece, ascending in the order of a pass; of others anything
  uint32_t slots = 0;              // at most so many are resident
};
std::unique_ptr<Policy> make_policy(PolicyKind kind, PolicyFacts facts);

}  // namespace millrace::stream
