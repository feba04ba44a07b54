// The journal of a pack under way: what is finished and safe on the disk.
//
// Text, one line a fact, each ended by " #" and its hash. A line is appended only after the data it
// speaks of was fsynced, and is fsynced itself. Reading stops at the first line that does not
// check: a kill can only tear the last one.
//   head <source> <table>
//   items <first> <hash> <hash> ...        items are the ranges of source.bin, then the pieces
//   file <index> <hash>                    whole source file
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "format/pack_hash.h"
#include "format/pack_io.h"

namespace millrace::format {

inline constexpr std::string_view kJournalName = "journal";

struct JournalState {
  Hash128 source, table;       // what the pack was started for
  std::vector<Hash128> items;  // finished ones, a prefix
  std::map<uint32_t, Hash128> files;
  uint64_t bytes = 0;  // of the valid lines
};

class Journal {
 public:
  // kNotFound without a journal; kCorrupt when not even its head is whole.
  static Expected<JournalState> load(const std::string& folder);
  static Expected<Journal> create(const std::string& folder, const Hash128& source,
                                  const Hash128& table);
  static Expected<Journal> resume(const std::string& folder, const JournalState& state);

  Status add_items(uint64_t first, std::span<const Hash128> hashes);
  Status add_file(uint32_t index, const Hash128& hash);

 private:
  Status line(std::string text);
  std::string path_;
  Fd fd_;
};

}  // namespace millrace::format
