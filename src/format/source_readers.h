// Shared by the readers of model files: bounded reads, strict JSON, and checks on tensor placement.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "format/source.h"

namespace millrace::format {

// A file opened for reading header bytes only. Closed on destruction.
class HeadFile {
 public:
  static Expected<HeadFile> open(const std::string& path);
  HeadFile(HeadFile&& other) noexcept
      : path_(std::move(other.path_)), fd_(other.fd_), size_(other.size_) {
    other.fd_ = -1;
  }
  HeadFile& operator=(HeadFile&&) = delete;
  HeadFile(const HeadFile&) = delete;
  ~HeadFile();

  uint64_t size() const { return size_; }
  // Grows `head` to the first `bytes` bytes of the file (less at its end).
  Status read_to(uint64_t bytes, std::string& head) const;

 private:
  HeadFile(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// The whole of a small text file; larger than `cap` bytes is an error.
Expected<std::string> read_text(const std::string& path, uint64_t cap);

// JSON in which a key may not occur twice in an object. Python's NaN and Infinity, which
// config.json files contain, are read as null and the largest double.
Expected<nlohmann::json> parse_strict_json(std::string_view name, std::string_view text);

// Bytes of a tensor of this type and shape. Fails on overflow and on a last axis that is no
// multiple of the block.
Expected<uint64_t> tensor_bytes(SourceType type, const std::vector<uint64_t>& shape);

// "[3, 4]" for messages.
std::string shape_text(const std::vector<uint64_t>& shape);

// Sorts tensors of one file by offset. They must follow each other from `begin` to `end` without
// overlap or gap, each at a multiple of `alignment`; `exact_end`: the last one must end at `end`.
Status check_placement(std::string_view name, std::vector<SourceTensor>& tensors, uint64_t begin,
                       uint64_t end, uint64_t alignment, bool exact_end);

// Appends a file and its tensors; a tensor name that another file already has is an error.
Status add_file(ModelSource& source, SourceFile file, std::vector<SourceTensor> tensors);

Expected<ModelSource> open_hugging_face(const std::string& folder);
Expected<ModelSource> open_gguf(const std::string& path);

// As parse_gguf_header; sets `short_head` when it failed because `head` ends too early.
Expected<GgufHeader> parse_gguf_head(std::string_view name, std::string_view head,
                                     uint64_t file_size, bool& short_head);

}  // namespace millrace::format
