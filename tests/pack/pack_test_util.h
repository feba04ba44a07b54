// Sources made by hand for the tests of packing, with the piece tables that fit them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "format/manifest.h"
#include "format/pack_plan.h"
#include "format/packed.h"
#include "format/view.h"

namespace millrace::format {

class TempFolder {
 public:
  explicit TempFolder(const char* parent = nullptr) {
    const std::string base =
        parent != nullptr ? parent : std::filesystem::temp_directory_path().string();
    std::string pattern = base + "/millrace-pack-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_all(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A source with a table; `files` are those that must come back.
struct Sample {
  ModelSource source;
  PieceTable table;
  std::vector<std::string> files;
  std::string folder;

  PackJob job(const std::string& out) const;
};

// Makes a table piece by piece.
class TableMaker {
 public:
  explicit TableMaker(Sample& sample) : sample_(sample) {}
  void piece(const std::string& name, PieceKind kind, int32_t layer = -1, int32_t expert = -1);
  // The whole tensor, or one matrix of a stack; `change` may narrow the view.
  void add(Role role, const std::string& tensor, uint64_t index = 0,
           const std::function<void(WeightView&)>& change = {});
  void add_vector(Role role, const std::string& tensor, uint64_t index = 0, uint32_t begin = 0,
                  uint32_t step = 1);
  void add_quantized(Role role, const std::string& module, uint64_t index,
                     const QuantParams& quant);
  void done();

 private:
  void place(Role role, const WeightView& view);
  Sample& sample_;
};

// Every GGUF format, stacked experts, a tied embedding, padding, tensors used in part or not at
// all.
Sample make_gguf(const std::string& folder);
// bf16 in three shards with an index, and side files.
Sample make_sharded(const std::string& folder);
// MLX affine codes of every width.
Sample make_affine(const std::string& folder);
// Stacked bf16 experts, stored transposed, gate and up interleaved.
Sample make_interleaved(const std::string& folder);

using Maker = Sample (*)(const std::string& folder);

// Opens a packed folder, binds the sample's table, unpacks into `out` and compares every file.
void expect_unpacks(const Sample& sample, const std::string& packed, const std::string& out);

#define ASSERT_OK(expression)                            \
  do {                                                   \
    auto&& ok_result = (expression);                     \
    ASSERT_TRUE(ok_result) << ok_result.error().message; \
  } while (false)

inline std::string message_of(const auto& result) {
  return result ? std::string("(no error)") : result.error().message;
}

}  // namespace millrace::format
