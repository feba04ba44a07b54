// A packed folder: manifest.json, weights-NNNNN.bin, the source's headers (so that unpack gives the source back byte
// for byte), and its tokenizer, template and config files under their own names.
//
// The piece table is not trusted: it is built again from the source headers and must match the manifest's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "format/piece.h"
#include "format/source.h"

namespace millrace::format {

inline constexpr int kPackVersion = 1;

bool is_packed_folder(const std::string& path);

struct PackedModel {
  ModelSource source;  // metadata only: headers and config as they were; files cannot be read
  std::string path;
  std::vector<std::string> files;  // absolute paths of weights-NNNNN.bin, index = Piece::file
  std::vector<uint64_t> file_bytes;
  PieceTable manifest;  // name, bytes, file, offset, hash and tensor layouts, as recorded
};

// Reads and checks the manifest (version, sizes of files, ranges inside files, alignment, no overlap).
Expected<PackedModel> open_packed(const std::string& path);

// Copies file, offset and hash into a table built from the source; an error names the first piece or tensor that differs.
Status bind_packed(const PackedModel& packed, PieceTable* table);

struct PackJob {
  const ModelSource* source = nullptr;
  const PieceTable* table = nullptr;
  std::string architecture;  // for the manifest
  std::string out;
  bool overwrite = false;
  std::function<void(uint64_t done, uint64_t total, std::string_view what)> progress;
  std::function<bool()> cancelled;
};
struct PackResult {
  uint64_t pieces = 0, bytes = 0;
  bool resumed = false;
};

// Writes OUT.partial (journal of finished pieces), fsyncs, renames to OUT. A killed pack resumes from the journal.
// Free disk is checked first. Memory stays under a few of the largest piece plus 64 MiB.
Expected<PackResult> pack_model(const PackJob& job);

struct VerifyResult {
  uint64_t pieces = 0, bytes = 0;
};
Expected<VerifyResult> verify_packed(
    const std::string& path,
    const std::function<void(uint64_t, uint64_t, std::string_view)>& progress);

// Recreates the source files under `out` from the packed folder and checks each against the hash recorded when packing.
Expected<PackResult> unpack_model(const PackedModel& packed, const PieceTable& table,
                                  const PackJob& job);

}  // namespace millrace::format
