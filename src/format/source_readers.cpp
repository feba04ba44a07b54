// Shared by the readers of model files: bounded reads, strict JSON, and checks on tensor placement.
#include "format/source_readers.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/numeric.h"

namespace millrace::format {

Expected<HeadFile> HeadFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return fail(errno == ENOENT ? Code::kNotFound : Code::kIo, "{}: {}", path,
                std::strerror(errno));
  }
  HeadFile file(path, fd, 0);
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return fail(Code::kIo, "{}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail(Code::kInvalid, "{}: not a regular file", path);
  file.size_ = static_cast<uint64_t>(status.st_size);
  return file;
}

HeadFile::~HeadFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status HeadFile::read_to(uint64_t bytes, std::string& head) const {
  uint64_t done = head.size();
  const uint64_t want = std::min(bytes, size_);
  if (want <= done) return {};
  head.resize(want);
  while (done < want) {
    const ssize_t got = ::pread(fd_, head.data() + done, want - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(Code::kIo, "{}: read at {}: {}", path_, done, std::strerror(errno));
    if (got == 0) return fail(Code::kIo, "{}: shrank while it was read (at {})", path_, done);
    done += static_cast<uint64_t>(got);
  }
  return {};
}

Expected<std::string> read_text(const std::string& path, uint64_t cap) {
  MILLRACE_ASSIGN(const HeadFile file, HeadFile::open(path));
  if (file.size() > cap) {
    return fail(Code::kInvalid, "{}: {} bytes, more than the {} allowed here", path, file.size(),
                cap);
  }
  std::string text;
  MILLRACE_TRY(file.read_to(file.size(), text));
  return text;
}

namespace {

// Replaces the bare words NaN, Infinity and -Infinity outside of strings.
std::string without_python_floats(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\' && i + 1 < text.size()) out += text[i++];
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (text.substr(i, 3) == "NaN") {
      out += "null";
      i += 3;
      continue;
    } else if (text.substr(i, 8) == "Infinity") {
      out += "1.7976931348623157e308";
      i += 8;
      continue;
    }
    out += text[i++];
  }
  return out;
}

}  // namespace

Expected<nlohmann::json> parse_strict_json(std::string_view name, std::string_view text) {
  std::string cleaned;
  if (text.find("NaN") != text.npos || text.find("Infinity") != text.npos) {
    cleaned = without_python_floats(text);
    text = cleaned;
  }
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const auto watch = [&](int, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end && !keys.empty()) keys.pop_back();
    if (event == Event::key && !keys.empty() && duplicate.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) duplicate = key;
    }
    return true;
  };
  try {
    auto json = nlohmann::json::parse(text.begin(), text.end(), watch);
    if (!duplicate.empty())
      return fail(Code::kInvalid, "{}: key '{}' occurs twice", name, duplicate);
    return json;
  } catch (const nlohmann::json::exception& error) {
    return fail(Code::kInvalid, "{}: {}", name, error.what());
  }
}

std::string shape_text(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Expected<uint64_t> tensor_bytes(SourceType type, const std::vector<uint64_t>& shape) {
  const SourceTypeInfo& type_info = info(type);
  const uint64_t last = shape.empty() ? 1 : shape.back();
  if (last % type_info.block_elements != 0) {
    return fail(Code::kInvalid, "last axis of {} is not a multiple of the {} block of {}",
                shape_text(shape), type_info.name, type_info.block_elements);
  }
  // An empty axis makes the product 0, but must not hide an overflow of the others.
  constexpr uint64_t kMaxElements = uint64_t{1} << 56;
  uint64_t elements = 1;
  bool empty = false;
  for (const uint64_t axis : shape) {
    if (axis == 0) {
      empty = true;
      continue;
    }
    if (axis > kMaxElements / elements) {
      return fail(Code::kInvalid, "shape {} has too many elements", shape_text(shape));
    }
    elements *= axis;
  }
  if (empty) return 0;
  return elements / type_info.block_elements * type_info.block_bytes;
}

Status check_placement(std::string_view name, std::vector<SourceTensor>& tensors, uint64_t begin,
                       uint64_t end, uint64_t alignment, bool exact_end) {
  std::sort(tensors.begin(), tensors.end(), [](const SourceTensor& a, const SourceTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t next = begin;
  const SourceTensor* previous = nullptr;
  for (const SourceTensor& tensor : tensors) {
    const uint64_t place = begin + round_up(next - begin, alignment);
    if (tensor.offset < place) {
      if (previous == nullptr) {
        return fail(Code::kInvalid, "{}: tensor '{}' starts before the tensor data", name,
                    tensor.name);
      }
      return fail(Code::kInvalid, "{}: tensors '{}' and '{}' overlap at byte {}", name,
                  previous->name, tensor.name, tensor.offset);
    }
    if (tensor.bytes > end || tensor.offset > end - tensor.bytes) {
      return fail(Code::kInvalid,
                  "{}: tensor '{}' (bytes {} to {}) reaches past the end of the file at {}", name,
                  tensor.name, tensor.offset, tensor.offset + tensor.bytes, end);
    }
    if (tensor.offset > place) {
      return fail(Code::kInvalid, "{}: gap of {} bytes before tensor '{}'", name,
                  tensor.offset - place, tensor.name);
    }
    next = tensor.offset + tensor.bytes;
    previous = &tensor;
  }
  if (exact_end && next != end) {
    return fail(Code::kInvalid, "{}: {} bytes after the last tensor belong to none", name,
                end - next);
  }
  return {};
}

Status add_file(ModelSource& source, SourceFile file, std::vector<SourceTensor> tensors) {
  const auto index = static_cast<uint32_t>(source.files.size());
  for (SourceTensor& tensor : tensors) {
    tensor.file = index;
    const auto place = static_cast<uint32_t>(source.tensors.size());
    const auto [existing, fresh] = source.by_name.emplace(tensor.name, place);
    if (!fresh) {
      const SourceTensor& other = source.tensors[existing->second];
      return fail(Code::kInvalid, "{}: tensor '{}' is already in {}", file.name, tensor.name,
                  source.files[other.file].name);
    }
    source.tensors.push_back(std::move(tensor));
  }
  source.files.push_back(std::move(file));
  return {};
}

}  // namespace millrace::format
