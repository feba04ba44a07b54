// Pieces of a packed folder: one aligned read each, checked against the hash in the manifest.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/packed.h"
#include "io/file.h"
#include "stream/reader.h"

namespace millrace::stream {

struct PackedReaderOptions {
  io::Mode mode = io::Mode::kBuffered;
  bool verify_always = false;  // check the hash on every read, not only on the first of each piece
  io::ReadHook* hook = nullptr;           // injected faults
  std::vector<std::string> mirrors = {};  // folders with whole copies of the packed folder
};

// `table` is bound to the packed model (bind_packed) and must outlive the reader.
Expected<std::unique_ptr<PieceReader>> make_packed_reader(const format::PackedModel& packed,
                                                          const format::PieceTable& table,
                                                          const PackedReaderOptions& options);

}  // namespace millrace::stream
