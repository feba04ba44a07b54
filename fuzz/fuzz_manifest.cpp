// manifest.json of a packed folder: any bytes are an error or a manifest whose every place is
// inside its files, and which reads the same after it was written again.
#include <nlohmann/json.hpp>

#include "format/manifest.h"

using namespace millrace::format;

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // Almost never past its hash; must not fail otherwise.
  (void)read_manifest("fuzz", text);
  const auto manifest = read_manifest_body("fuzz", text);
  if (!manifest) {
    require(!manifest.error().message.empty());
    return 0;
  }
  require(manifest->names.size() == manifest->table.pieces.size());
  std::vector<uint64_t> ends(manifest->weights_bytes.size(), 0);
  for (const Piece& piece : manifest->table.pieces) {
    require(piece.file < ends.size());
    require(piece.bytes != 0 && piece.offset + piece.bytes <= manifest->weights_bytes[piece.file]);
    ends[piece.file] += piece.bytes;
    for (const PieceTensor& tensor : piece.tensors) {
      require(tensor.offset + tensor.bytes <= piece.bytes);
      require(tensor.bytes == view_bytes(tensor.view));
    }
  }
  require(ends == manifest->weights_bytes);
  for (const ManifestFile& file : manifest->files) require(is_plain_name(file.name));
  for (const ManifestRange& range : manifest->ranges) {
    require(range.at + range.range.bytes <= manifest->source_bin_bytes);
  }
  const auto written = write_manifest(*manifest, nullptr);
  require(written.has_value());
  const auto again = read_manifest("again", *written);
  require(again.has_value());
  const auto twice = write_manifest(*again, nullptr);
  require(twice && *twice == *written);
  return 0;
}
