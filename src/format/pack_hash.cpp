// The one place that includes xxHash for packed models.
#include "format/pack_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace millrace::format {

struct Hasher::State {
  XXH3_state_t xxh;  // 64-byte aligned by its own declaration
};

namespace {

Hash128 from(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

bool parse_hex(std::string_view text, uint64_t& value) {
  value = 0;
  for (const char c : text) {
    uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a') + 10;
    } else {
      return false;
    }
    value = value << 4 | digit;
  }
  return true;
}

}  // namespace

std::string to_hex(const Hash128& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

std::optional<Hash128> hash_from_hex(std::string_view text) {
  Hash128 hash;
  if (text.size() != 32 || !parse_hex(text.substr(0, 16), hash.high) ||
      !parse_hex(text.substr(16), hash.low)) {
    return std::nullopt;
  }
  return hash;
}

Hasher::Hasher() : state_(std::make_unique<State>()) { reset(); }
Hasher::~Hasher() = default;

void Hasher::reset() { XXH3_128bits_reset(&state_->xxh); }

void Hasher::update(const void* data, uint64_t bytes) {
  if (bytes != 0) XXH3_128bits_update(&state_->xxh, data, bytes);
}

void Hasher::field(std::string_view text) {
  field(text.size());
  update(text);
}

Hash128 Hasher::digest() const { return from(XXH3_128bits_digest(&state_->xxh)); }

Hash128 hash_of(std::span<const std::byte> data) {
  return from(XXH3_128bits(data.data(), data.size()));
}
Hash128 hash_of(std::string_view text) { return from(XXH3_128bits(text.data(), text.size())); }
uint64_t short_hash(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace millrace::format
