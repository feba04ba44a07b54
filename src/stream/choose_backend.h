// Which backend reads, and how many reads are with the disk at a time: asked for, or measured on the
// model's own file with the size of its own pieces.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/probe.h"
#include "stream/backend.h"
#include "stream/reader.h"

namespace millrace::stream {

enum class BackendKind : uint8_t { kAuto, kPread, kUring };

struct BackendFacts {
  BackendKind kind = BackendKind::kAuto;
  unsigned depth = 0;               // reads in flight; 0: chosen
  unsigned buffers = 0;             // where each read takes one: how many were planned for
  uint32_t capacity = 1;            // slots
  std::span<std::byte> arena = {};  // not in use yet: the probe reads into it
  uint64_t read_bytes = 0;          // of most reads while streaming; 0: nothing is read again
  ReadWatch* watch = nullptr;       // told of pieces that were fetched
};

// What is known of the choice, for reports.
struct ReadChoice {
  bool uring = false;
  unsigned depth = 0;
  uint64_t read_bytes = 0;          // of most reads while streaming; 0: nothing is read again
  std::vector<io::ReadRate> rates;  // as measured; empty: nothing was
  std::string fallback;             // why it is not what was asked for; empty: it is
};

struct ChosenBackend {
  std::unique_ptr<ReadBackend> backend;
  unsigned depth = 0;
  std::string reason;  // "measured with reads of 4.0 MiB: ..."
  ReadChoice known;
};

// Never fails: without io_uring it is the pool, and the reason says why.
ChosenBackend choose_backend(PieceReader& reader, const BackendFacts& facts);

}  // namespace millrace::stream
