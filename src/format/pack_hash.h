// XXH3-128 as this project writes it: streaming, and as 32 hex digits (what `xxhsum -H2` prints).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace millrace::format {

struct Hash128 {
  uint64_t low = 0, high = 0;
  bool operator==(const Hash128&) const = default;
};

std::string to_hex(const Hash128& hash);
std::optional<Hash128> hash_from_hex(std::string_view text);

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void reset();
  void update(const void* data, uint64_t bytes);
  void update(std::span<const std::byte> data) { update(data.data(), data.size()); }
  void update(std::string_view text) { update(text.data(), text.size()); }
  // A number or a length-prefixed text: so that neighbours cannot run into each other.
  void field(uint64_t value) { update(&value, sizeof value); }
  void field(std::string_view text);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash128 hash_of(std::span<const std::byte> data);
Hash128 hash_of(std::string_view text);
uint64_t short_hash(std::string_view text);  // xxh3-64, for journal lines

}  // namespace millrace::format
