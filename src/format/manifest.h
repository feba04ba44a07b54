// manifest.json: what a packed folder holds, where, and how it is checked.
//
// {
//  "format": "millrace-pack", "version": 1, "architecture": "qwen3_moe",
//  "source": {"kind": "hugging_face", "name": "Qwen3-30B-A3B", "fingerprint": "<hex>",
//             "files": [{"name": "model.safetensors", "bytes": 1, "data_begin": 1, "xxh3_128":
//             "<hex>"}], "ranges": [[file, offset, bytes, at, "<hex>"]]},      bytes of the source
//             in source.bin
//  "source_bin": {"file": "source.bin", "bytes": 4096},
//  "config": {...}, "quantization": {"q4_0": bytes, ...},
//  "side_files": [{"name": "tokenizer.json", "bytes": 1, "xxh3_128": "<hex>"}],
//  "weights": [{"file": "weights-00001.bin", "bytes": 4096}],
//  "pieces": [
//   {"name": "layers.0.mixer", "kind": "mixer", "layer": 0, "file": 0, "offset": 0, "bytes": 4096,
//    "xxh3_128": "<hex>", "tensors": [{"role": "q", "layout": "q4_0", "shape": [rows, cols],
//    "offset": 0, "bytes": 1, "weight": "<source tensor>"}]}],
//  "xxh3_128": "<hex>"}
//
// The last line is the hash of every byte before it, so that a flipped bit of the manifest itself
// is found. Ranges and pieces lie at multiples of 4096, zero-padded to one, follow each other
// without a gap, and are hashed with their padding: every byte of every .bin file is under a hash.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "format/pack_coverage.h"
#include "format/pack_folder.h"
#include "format/pack_hash.h"
#include "format/piece.h"
#include "format/source.h"

namespace millrace::format {

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  uint64_t data_begin = 0;
  Hash128 hash;
};

struct ManifestRange {
  SourceRange range;
  uint64_t at = 0;  // in source.bin
  Hash128 hash;     // of the padded bytes
};

struct TensorNames {
  std::string weight, scales, biases;  // source tensors; empty when not used
};

struct Manifest {
  std::string architecture;
  SourceKind kind = SourceKind::kHuggingFace;
  std::string source_name;
  std::vector<ManifestFile> files;
  std::vector<ManifestRange> ranges;
  uint64_t source_bin_bytes = 0;
  std::vector<SideFile> side_files;
  std::vector<uint64_t> weights_bytes;
  PieceTable table;  // views' tensor indices are unset: `names` says which
  std::vector<std::vector<TensorNames>> names;  // by piece, by tensor

  const SideFile* side_file(std::string_view name) const;
};

Hash128 fingerprint(const Manifest& manifest);  // of the source files

// The whole text, seal included. `config` may be null (GGUF). Names that are no UTF-8 are refused.
Expected<std::string> write_manifest(const Manifest& manifest, const nlohmann::json* config);

// `name` is used in messages. Checks everything that can be said without other files.
Expected<Manifest> read_manifest(std::string_view name, std::string_view text);
// The same without the seal: for fuzzing, and for tests that write wrong manifests.
Expected<Manifest> read_manifest_body(std::string_view name, std::string_view text);
// Replaces the seal of an edited text: for tests.
std::string seal_manifest(std::string_view body);

// "q4_0", "affine4g64_bf16", "bf16".
std::string layout_name(const WeightLayout& layout);
Expected<WeightLayout> layout_from_name(std::string_view name);

// Reads manifest.json of the folder, and checks that its files are there with the recorded sizes.
Expected<Manifest> open_manifest(const std::string& folder);

inline uint64_t padded(uint64_t bytes) {
  return (bytes + kPackAlign - 1) / kPackAlign * kPackAlign;
}

}  // namespace millrace::format
