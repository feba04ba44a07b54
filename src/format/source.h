// What a model looks like before packing: files, and named tensors inside them, read lazily.
//
// Nothing here knows an architecture. A reader parses headers only (bounds-checked: every offset and
// size lies inside its file, no two tensors of a file overlap), so opening a model of any size takes
// a few megabytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/status.h"

namespace millrace::format {

// Element types of source tensors. The quantized ones are GGUF block formats.
enum class SourceType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};

struct SourceTypeInfo {
  std::string_view name;    // "q4_0", "bf16"
  uint32_t block_elements;  // elements in a block (1 for plain types)
  uint32_t block_bytes;     // bytes of a block
};
const SourceTypeInfo& info(SourceType type);

struct SourceFile {
  std::string path;         // absolute
  std::string name;         // file name inside the model folder
  uint64_t size = 0;        // bytes
  uint64_t data_begin = 0;  // where tensor data starts; everything before it is the header
};

struct SourceTensor {
  std::string name;
  SourceType type = SourceType::kF32;
  std::vector<uint64_t>
      shape;            // outermost first; the last axis is contiguous (GGUF's order reversed)
  uint32_t file = 0;    // index into ModelSource::files
  uint64_t offset = 0;  // absolute byte offset in the file
  uint64_t bytes = 0;
};

// GGUF key/value metadata. Arrays of strings keep one allocation a string.
struct GgufValue {
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string,
               std::vector<std::string>, std::vector<int64_t>, std::vector<uint64_t>,
               std::vector<double>, std::vector<bool>>
      value;
};
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

enum class SourceKind : uint8_t { kHuggingFace, kGguf };

struct ModelSource {
  SourceKind kind = SourceKind::kHuggingFace;
  std::string path;                              // folder or first .gguf, absolute
  std::shared_ptr<const nlohmann::json> config;  // config.json (Hugging Face only)
  GgufMetadata gguf;                             // GGUF only; of the first part for split files
  std::vector<SourceFile> files;
  std::vector<SourceTensor> tensors;  // in file order
  std::unordered_map<std::string, uint32_t> by_name;

  const SourceTensor* find(std::string_view name) const;
};

// Opens a Hugging Face folder (safetensors, sharded or not) or a GGUF file (split files: any part).
Expected<ModelSource> open_source(const std::string& path);

// The parsers below work on bytes alone, for tests and fuzzers. `name` is used in messages.
// Parses the header at the front of a safetensors file; `head` must hold it whole, or as much of the
// file as there is. `file_size` bounds the offsets.
Expected<std::vector<SourceTensor>> parse_safetensors_header(std::string_view name,
                                                             std::string_view head,
                                                             uint64_t file_size,
                                                             uint64_t* data_begin);
struct GgufHeader {
  GgufMetadata metadata;
  std::vector<SourceTensor> tensors;
  uint64_t data_begin = 0;
};
Expected<GgufHeader> parse_gguf_header(std::string_view name, std::string_view head,
                                       uint64_t file_size);

}  // namespace millrace::format
