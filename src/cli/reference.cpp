#include "cli/reference.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/status.h"
#include "format/source.h"

namespace millrace::cli {
namespace {

using format::SourceTensor;
using format::SourceType;

class File {
 public:
  static Expected<File> open(const std::string& path) {
    File file;
    file.path_ = path;
    std::ifstream stream(path, std::ios::binary);
    if (!stream) return fail(Code::kNotFound, "{}: cannot be opened", path);
    file.bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    uint64_t data_begin = 0;
    MILLRACE_ASSIGN(file.tensors_, format::parse_safetensors_header(
                                       path, file.bytes_, file.bytes_.size(), &data_begin));
    return file;
  }

  // `shape` holds the expected extents; 0 takes what is there and writes it back.
  template <class T>
  Status read(std::string_view name, SourceType type, std::vector<uint64_t>& shape,
              std::vector<T>* out) const {
    const SourceTensor* tensor = find(name);
    if (!tensor) return fail(Code::kNotFound, "{}: tensor '{}' is missing", path_, name);
    bool fits = tensor->type == type && tensor->shape.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i) {
      if (shape[i] == 0) shape[i] = tensor->shape[i];
      fits = shape[i] == tensor->shape[i] && shape[i] > 0;
    }
    if (!fits)
      return fail(Code::kInvalid, "{}: tensor '{}' has an unexpected type or shape", path_, name);
    out->resize(tensor->bytes / sizeof(T));
    std::memcpy(out->data(), bytes_.data() + tensor->offset, out->size() * sizeof(T));
    return {};
  }

  bool has(std::string_view name) const { return find(name) != nullptr; }

 private:
  const SourceTensor* find(std::string_view name) const {
    for (const SourceTensor& tensor : tensors_)
      if (tensor.name == name) return &tensor;
    return nullptr;
  }

  std::string path_;
  std::string bytes_;
  std::vector<SourceTensor> tensors_;
};

Status read_whole_rows(const File& file, Reference* reference) {
  std::vector<uint64_t> rows = {reference->input_ids.size(), 0};
  MILLRACE_TRY(file.read("logits", SourceType::kF32, rows, &reference->logits));
  reference->vocab = static_cast<uint32_t>(rows[1]);
  if (!file.has("greedy_ids")) return {};
  std::vector<uint64_t> steps = {0};
  MILLRACE_TRY(file.read("greedy_ids", SourceType::kI32, steps, &reference->greedy_ids));
  steps.push_back(rows[1]);
  return file.read("greedy_logits", SourceType::kF32, steps, &reference->greedy_logits);
}

Status read_top(const File& file, Reference* reference) {
  std::vector<uint64_t> shape = {reference->input_ids.size(), 0};
  MILLRACE_TRY(file.read("logits_top_ids", SourceType::kI32, shape, &reference->top_ids));
  MILLRACE_TRY(file.read("logits_top", SourceType::kF32, shape, &reference->top_logits));
  reference->top = static_cast<uint32_t>(shape[1]);
  shape.pop_back();
  return file.read("logsumexp", SourceType::kF32, shape, &reference->logsumexp);
}

}  // namespace

std::span<const float> Reference::row(size_t at) const {
  if (at < input_ids.size()) return std::span(logits).subspan(at * vocab, vocab);
  return std::span(greedy_logits).subspan((at - input_ids.size() + 1) * vocab, vocab);
}

Expected<Reference> read_reference(const std::string& path) {
  MILLRACE_ASSIGN(const File file, File::open(path));
  Reference reference;
  std::vector<uint64_t> rows = {0};
  MILLRACE_TRY(file.read("input_ids", SourceType::kI32, rows, &reference.input_ids));
  if (file.has("logits")) {
    MILLRACE_TRY(read_whole_rows(file, &reference));
  } else {
    MILLRACE_TRY(read_top(file, &reference));
  }
  return reference;
}

}  // namespace millrace::cli
