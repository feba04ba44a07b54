// Opening a model: type table, lookup, and the choice between the two kinds of source.
#include "format/source.h"

#include <array>
#include <filesystem>

#include "format/source_readers.h"

namespace millrace::format {
namespace {

// In the order of SourceType.
constexpr std::array<SourceTypeInfo, 29> kTypes = {{
    {"f32", 1, 4},      {"f16", 1, 2},      {"bf16", 1, 2},     {"f64", 1, 8},
    {"i8", 1, 1},       {"u8", 1, 1},       {"i16", 1, 2},      {"u16", 1, 2},
    {"i32", 1, 4},      {"u32", 1, 4},      {"i64", 1, 8},      {"u64", 1, 8},
    {"bool", 1, 1},     {"f8_e4m3", 1, 1},  {"f8_e5m2", 1, 1},  {"f8_e8m0", 1, 1},
    {"q4_0", 32, 18},   {"q4_1", 32, 20},   {"q5_0", 32, 22},   {"q5_1", 32, 24},
    {"q8_0", 32, 34},   {"q2_K", 256, 84},  {"q3_K", 256, 110}, {"q4_K", 256, 144},
    {"q5_K", 256, 176}, {"q6_K", 256, 210}, {"iq4_nl", 32, 18}, {"iq4_xs", 256, 136},
    {"mxfp4", 32, 17},
}};
static_assert(static_cast<size_t>(SourceType::kMXFP4) + 1 == kTypes.size());

}  // namespace

const SourceTypeInfo& info(SourceType type) { return kTypes[static_cast<size_t>(type)]; }

const SourceTensor* ModelSource::find(std::string_view name) const {
  const auto found = by_name.find(std::string(name));
  return found == by_name.end() ? nullptr : &tensors[found->second];
}

Expected<ModelSource> open_source(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  if (error) return fail(Code::kIo, "{}: {}", path, error.message());
  const auto status = std::filesystem::status(absolute, error);
  if (!std::filesystem::exists(status)) {
    return fail(Code::kNotFound, "{}: no such file or folder", path);
  }
  std::string text = absolute.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  if (std::filesystem::is_directory(status)) return open_hugging_face(text);
  if (std::filesystem::is_regular_file(status)) return open_gguf(text);
  return fail(Code::kInvalid, "{}: neither a folder nor a file", path);
}

}  // namespace millrace::format
