// Side files: the small files of a model that travel with its weights under their own names.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "format/pack_folder.h"

namespace millrace::format {
namespace fs = std::filesystem;
namespace {

// Larger ones are no side files; a README or a licence is only worth carrying when it is small.
constexpr uint64_t kMaxSide = uint64_t{256} << 20;
constexpr uint64_t kMaxText = uint64_t{1} << 20;

constexpr std::array<std::string_view, 21> kNames = {"config.json",
                                                     "generation_config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "vocab.json",
                                                     "vocab.txt",
                                                     "merges.txt",
                                                     "tokenizer.model",
                                                     "spiece.model",
                                                     "tiktoken.model",
                                                     "preprocessor_config.json",
                                                     "processor_config.json",
                                                     "model.safetensors.index.json",
                                                     "quantize_config.json",
                                                     "hf_quant_config.json",
                                                     "expected.safetensors",
                                                     "expected.json"};
constexpr std::array<std::string_view, 7> kTexts = {
    "README.md", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE", "USE_POLICY.md", "USAGE_POLICY"};

bool among(auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool inside(const fs::path& file, const fs::path& folder) {
  const auto [rest, _] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return rest == folder.end();
}

// Where the files of a model may really lie: its own folder, and the blobs of a cache whose
// snapshots are folders of links (<repo>/snapshots/<revision>, <repo>/blobs).
Status check_inside(const std::string& path, const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) return fail(Code::kIo, "{}: {}", path, error.message());
  const fs::path home = fs::canonical(folder, error);
  if (error) return fail(Code::kIo, "{}: {}", folder.string(), error.message());
  if (inside(real, home)) return {};
  if (home.parent_path().filename() == "snapshots" &&
      inside(real, home.parent_path().parent_path() / "blobs")) {
    return {};
  }
  return fail(Code::kInvalid, "{}: is a link that leaves the model's folder", path);
}

}  // namespace

bool is_side_name(std::string_view name) { return among(kNames, name) || among(kTexts, name); }

Expected<std::vector<std::string>> find_side_files(const ModelSource& source) {
  const bool gguf = source.kind == SourceKind::kGguf;
  // A .gguf lies among strangers: only fixtures made for it are taken along.
  const std::string folder = gguf ? parent_folder(source.path) : source.path;
  std::vector<std::string> found;
  const auto consider = [&](std::string_view name, uint64_t limit) -> Status {
    const std::string path = folder + "/" + std::string(name);
    std::error_code error;
    const auto kind = fs::status(path, error);
    if (!fs::exists(kind)) return {};
    if (!fs::is_regular_file(kind)) return fail(Code::kInvalid, "{}: not a regular file", path);
    if (std::ranges::any_of(source.files, [&](const auto& file) { return file.name == name; })) {
      return {};  // packed as a source already
    }
    MILLRACE_TRY(check_inside(path, folder));
    const uint64_t bytes = fs::file_size(path, error);
    if (error) return fail(Code::kIo, "{}: {}", path, error.message());
    if (bytes > limit) {
      if (limit == kMaxText) return {};
      return fail(Code::kInvalid, "{}: {} bytes, more than the {} allowed for a side file", path,
                  bytes, limit);
    }
    found.emplace_back(name);
    return {};
  };
  for (const std::string_view name : kNames) {
    if (!gguf || name.starts_with("expected.")) MILLRACE_TRY(consider(name, kMaxSide));
  }
  for (const std::string_view name : kTexts) {
    if (!gguf) MILLRACE_TRY(consider(name, kMaxText));
  }
  return found;
}

Expected<SideFile> copy_side_file(const std::string& from, bool follow, const std::string& to,
                                  const std::string& name) {
  MILLRACE_ASSIGN(const InFile in, InFile::open(from, follow, false));
  const Fd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!out.open()) return io_error(to, "create", errno);
  const AlignedBuffer buffer(kIoBlock);
  Hasher hasher;
  for (uint64_t offset = 0; offset < in.size();) {
    const auto block = buffer.first(std::min(kIoBlock, in.size() - offset));
    MILLRACE_TRY(in.read(offset, block));
    hasher.update(block);
    for (uint64_t done = 0; done < block.size();) {
      const ssize_t put = ::pwrite(out.get(), block.data() + done, block.size() - done,
                                   static_cast<off_t>(offset + done));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return io_error(to, "write", put < 0 ? errno : ENOSPC);
      done += static_cast<uint64_t>(put);
    }
    offset += block.size();
  }
  if (::fsync(out.get()) != 0) return io_error(to, "fsync", errno);
  return SideFile{name, in.size(), hasher.digest()};
}

}  // namespace millrace::format
