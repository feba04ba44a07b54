#include "text/files.h"

#include <fstream>
#include <system_error>

namespace millrace::text {

Expected<std::string> read_file(const std::filesystem::path& path) {
  // Tokenizers of the largest vocabularies take about 40 MB as JSON.
  constexpr std::uintmax_t kLimit = std::uintmax_t{1} << 30;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return fail(Code::kNotFound, "{}: no such file", path.string());
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return fail(Code::kIo, "{}: {}", path.string(), error.message());
  if (size > kLimit) return fail(Code::kInvalid, "{}: {} bytes is too large", path.string(), size);
  std::ifstream in(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return fail(Code::kIo, "{}: cannot read", path.string());
  }
  return bytes;
}

Expected<nlohmann::json> read_json_if_present(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return nlohmann::json();
  MILLRACE_ASSIGN(const std::string bytes, read_file(path));
  nlohmann::json document = nlohmann::json::parse(bytes, nullptr, false);
  if (document.is_discarded()) return fail(Code::kInvalid, "{}: not valid JSON", path.string());
  if (!document.is_object()) return fail(Code::kInvalid, "{}: not a JSON object", path.string());
  return document;
}

}  // namespace millrace::text
