// Pieces made from the source files while they are read: no packing, at the price of a pass through
// a bounce buffer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "format/piece.h"
#include "format/source.h"
#include "io/file.h"
#include "stream/reader.h"

namespace millrace::stream {

struct InPlaceReaderOptions {
  io::Mode mode = io::Mode::kBuffered;
  io::ReadHook* hook = nullptr;           // injected faults
  std::vector<std::string> mirrors = {};  // folders with copies of all source files
};

// Checks every view of the table against the source. Both must outlive the reader.
Expected<std::unique_ptr<PieceReader>> make_in_place_reader(const format::ModelSource& source,
                                                            const format::PieceTable& table,
                                                            const InPlaceReaderOptions& options);

}  // namespace millrace::stream
