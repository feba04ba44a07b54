// Helpers for the tests of src/format: temporary folders, hand-made files, models in memory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "format/source.h"
#include "format/view.h"

namespace millrace::format {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "millrace-format-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(*this / name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return *this / name;
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::string le(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// A safetensors file of this header text and `data` bytes of zeros.
inline std::string safetensors(std::string_view header, size_t data) {
  return le<uint64_t>(header.size()) + std::string(header) + std::string(data, '\0');
}

inline std::string fixture(const std::string& name) {
  return std::string(MILLRACE_SOURCE_DIR) + "/tests/data/format/" + name;
}

// A safetensors fixture: header parsed by the reader under test, bytes by name.
struct Fixture {
  explicit Fixture(const std::string& name) : bytes(read_file(fixture(name))) {
    auto parsed = parse_safetensors_header(name, bytes, bytes.size(), nullptr);
    EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
    if (parsed) source.tensors = std::move(*parsed);
    for (uint32_t i = 0; i < source.tensors.size(); ++i) source.by_name[source.tensors[i].name] = i;
  }
  uint32_t index(const std::string& tensor) const {
    const auto found = source.by_name.find(tensor);
    EXPECT_NE(found, source.by_name.end()) << tensor;
    return found == source.by_name.end() ? kNoTensor : found->second;
  }
  const char* data(const std::string& tensor) const {
    return bytes.data() + source.tensors[index(tensor)].offset;
  }
  std::string bytes;
  ModelSource source;
};

// A model in memory, for views: one file whose bytes are `bytes`.
struct MemoryModel {
  MemoryModel() { source.files.push_back({"memory", "memory", 0, 0}); }
  // Appends a tensor of random bytes.
  uint32_t add(SourceType type, std::vector<uint64_t> shape, std::mt19937& random) {
    SourceTensor tensor;
    tensor.name = fmt::format("t{}", source.tensors.size());
    tensor.type = type;
    uint64_t elements = 1;
    for (const uint64_t axis : shape) elements *= axis;
    tensor.shape = std::move(shape);
    tensor.offset = bytes.size();
    tensor.bytes = elements / info(type).block_elements * info(type).block_bytes;
    for (uint64_t i = 0; i < tensor.bytes; ++i) bytes.push_back(static_cast<std::byte>(random()));
    source.files[0].size = bytes.size();
    source.tensors.push_back(tensor);
    return static_cast<uint32_t>(source.tensors.size() - 1);
  }
  std::array<std::span<const std::byte>, 3> spans(const std::array<Extent, 3>& extents) const {
    std::array<std::span<const std::byte>, 3> out;
    for (size_t i = 0; i < 3; ++i)
      out[i] = std::span(bytes).subspan(extents[i].offset, extents[i].bytes);
    return out;
  }
  ModelSource source;
  std::vector<std::byte> bytes;
};

}  // namespace millrace::format
