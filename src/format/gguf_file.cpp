// GGUF files on disk: one file, or the parts of a split one found from any of its parts.
#include <filesystem>
#include <optional>

#include "format/gguf_value.h"
#include "format/source_readers.h"

namespace millrace::format {
namespace {

// A header holds the vocabulary: tens of megabytes at most.
constexpr uint64_t kFirstRead = uint64_t{1} << 20;
constexpr uint64_t kMaxHeader = uint64_t{256} << 20;

struct Part {
  SourceFile file;
  GgufHeader header;
};

Expected<Part> read_part(const std::string& path) {
  MILLRACE_ASSIGN(const HeadFile file, HeadFile::open(path));
  std::string head;
  for (uint64_t want = kFirstRead;; want *= 4) {
    MILLRACE_TRY(file.read_to(want, head));
    bool short_head = false;
    auto header = parse_gguf_head(path, head, file.size(), short_head);
    if (header) {
      Part part;
      part.file = {path, std::filesystem::path(path).filename().string(), file.size(),
                   header->data_begin};
      part.header = std::move(*header);
      return part;
    }
    if (!short_head || head.size() == file.size())
      return tl::make_unexpected(std::move(header.error()));
    if (want >= kMaxHeader)
      return fail(Code::kInvalid, "{}: header is over {} bytes", path, kMaxHeader);
  }
}

// A key of the part, with the file's name in front of what is wrong with it.
Expected<uint64_t> part_key(const Part& part, std::string_view key, uint64_t otherwise) {
  auto value = get_uint_or(part.header.metadata, key, otherwise);
  if (!value) return with_context(part.file.path, std::move(value.error()));
  return value;
}

Status check_part(const Part& part, uint64_t number, uint64_t count) {
  MILLRACE_ASSIGN(const uint64_t part_count, part_key(part, "split.count", 0));
  MILLRACE_ASSIGN(const uint64_t part_number, part_key(part, "split.no", 0));
  if (part_count != count || part_number != number) {
    return fail(Code::kInvalid, "{}: split.no {} of split.count {}, but its place is {} of {}",
                part.file.path, part_number, part_count, number, count);
  }
  return {};
}

// "name" of "name-00002" + suffix; empty when the file name is not of that form.
std::string split_stem(std::string_view file_name, std::string_view suffix) {
  constexpr size_t kNumber = 6;  // "-00002"
  if (!file_name.ends_with(suffix) || file_name.size() <= suffix.size() + kNumber) return {};
  const std::string_view numbered = file_name.substr(0, file_name.size() - suffix.size());
  const std::string_view number = numbered.substr(numbered.size() - kNumber);
  const bool digits = number.substr(1).find_first_not_of("0123456789") == std::string_view::npos;
  if (number.front() != '-' || !digits) return {};
  return std::string(numbered.substr(0, numbered.size() - kNumber));
}

}  // namespace

Expected<ModelSource> open_gguf(const std::string& path) {
  MILLRACE_ASSIGN(Part given, read_part(path));
  ModelSource source;
  source.kind = SourceKind::kGguf;
  MILLRACE_ASSIGN(const uint64_t count, part_key(given, "split.count", 1));
  if (count <= 1) {
    source.path = path;
    source.gguf = std::move(given.header.metadata);
    MILLRACE_TRY(add_file(source, std::move(given.file), std::move(given.header.tensors)));
    return source;
  }

  // Part numbers have five digits.
  if (count > 99999) return fail(Code::kInvalid, "{}: split.count is {}", path, count);
  const std::string suffix = fmt::format("-of-{:05}.gguf", count);
  const std::string& file_name = given.file.name;
  const std::string stem = split_stem(file_name, suffix);
  if (stem.empty()) {
    return fail(Code::kInvalid, "{}: one of {} parts, but its name does not end in -0000N{}", path,
                count, suffix);
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto part_path = [&](uint64_t number) {
    return (folder / fmt::format("{}-{:05}{}", stem, number + 1, suffix)).string();
  };
  // All parts are looked for first: a missing one is the usual mistake.
  for (uint64_t i = 0; i < count; ++i) {
    std::error_code error;
    if (!std::filesystem::exists(part_path(i), error)) {
      return fail(Code::kNotFound, "{}: part {} of {} is missing", part_path(i), i + 1, count);
    }
  }
  source.path = part_path(0);
  std::optional<uint64_t> total;
  for (uint64_t i = 0; i < count; ++i) {
    MILLRACE_ASSIGN(Part part, read_part(part_path(i)));
    MILLRACE_TRY(check_part(part, i, count));
    if (i == 0) {
      if (has_key(part.header.metadata, "split.tensors.count")) {
        MILLRACE_ASSIGN(total, part_key(part, "split.tensors.count", 0));
      }
      source.gguf = std::move(part.header.metadata);
    }
    MILLRACE_TRY(add_file(source, std::move(part.file), std::move(part.header.tensors)));
  }
  if (total && *total != source.tensors.size()) {
    return fail(Code::kInvalid, "{}: split.tensors.count is {}, but the parts hold {} tensors",
                source.path, *total, source.tensors.size());
  }
  return source;
}

}  // namespace millrace::format
