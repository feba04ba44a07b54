// A Hugging Face folder: config.json and one or many safetensors files.
//
// Which files belong is said by model.safetensors.index.json; without it model.safetensors alone,
// or else every *.safetensors of the folder. expected.safetensors (test fixtures) never belongs.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "format/source_readers.h"

namespace millrace::format {
namespace {

constexpr uint64_t kMaxConfig = uint64_t{16} << 20;
constexpr uint64_t kMaxIndex = uint64_t{100} << 20;
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kExpectedName = "expected.safetensors";

struct Shards {
  std::vector<std::string> files;                 // names, in reading order
  std::map<std::string, std::string> weight_map;  // tensor -> file; empty without an index
};

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Expected<Shards> shards_of_index(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kIndexName);
  MILLRACE_ASSIGN(const std::string text, read_text(path, kMaxIndex));
  MILLRACE_ASSIGN(const nlohmann::json json, parse_strict_json(path, text));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return fail(Code::kInvalid, "{}: no weight_map object", path);
  }
  Shards shards;
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string())
      return fail(Code::kInvalid, "{}: file of tensor '{}' is no string", path, tensor);
    const auto& name = file.get_ref<const std::string&>();
    // A name with a path in it could point anywhere on the disk.
    if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos ||
        name.find('\0') != name.npos) {
      return fail(Code::kInvalid, "{}: '{}' (tensor '{}') is not a plain file name", path, name,
                  tensor);
    }
    files.insert(name);
    shards.weight_map.emplace(tensor, name);
  }
  if (files.empty()) return fail(Code::kInvalid, "{}: weight_map is empty", path);
  for (const std::string& file : files) {
    if (!exists(folder + "/" + file)) {
      return fail(Code::kNotFound, "{}: shard '{}' is missing from the folder", path, file);
    }
  }
  shards.files.assign(files.begin(), files.end());
  return shards;
}

Expected<Shards> shards_of(const std::string& folder) {
  if (exists(folder + "/" + std::string(kIndexName))) return shards_of_index(folder);
  Shards shards;
  if (exists(folder + "/" + std::string(kSingleName))) {
    shards.files.emplace_back(kSingleName);
    return shards;
  }
  bool gguf = false;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path file = entry->path().filename();
    if (file.extension() == ".safetensors" && file != kExpectedName)
      shards.files.push_back(file.string());
    if (file.extension() == ".gguf") gguf = true;
  }
  if (error) return fail(Code::kIo, "{}: {}", folder, error.message());
  if (shards.files.empty()) {
    return fail(Code::kNotFound, "{}: no *.safetensors file in this folder{}", folder,
                gguf ? "; name the .gguf file itself" : "");
  }
  std::sort(shards.files.begin(), shards.files.end());
  return shards;
}

Status check_index(const ModelSource& source, const Shards& shards) {
  if (shards.weight_map.empty()) return {};
  const std::string path = source.path + "/" + std::string(kIndexName);
  for (const auto& [tensor, file] : shards.weight_map) {
    const SourceTensor* found = source.find(tensor);
    if (found == nullptr) {
      return fail(Code::kNotFound, "{}: tensor '{}' is not in {}", path, tensor, file);
    }
    if (source.files[found->file].name != file) {
      return fail(Code::kInvalid, "{}: tensor '{}' should be in {} but is in {}", path, tensor,
                  file, source.files[found->file].name);
    }
  }
  for (const SourceTensor& tensor : source.tensors) {
    if (!shards.weight_map.contains(tensor.name)) {
      return fail(Code::kInvalid, "{}: tensor '{}' of {} is not in the index", path, tensor.name,
                  source.files[tensor.file].name);
    }
  }
  return {};
}

Status add_safetensors(ModelSource& source, const std::string& file_name) {
  const std::string path = source.path + "/" + file_name;
  MILLRACE_ASSIGN(const HeadFile file, HeadFile::open(path));
  std::string head;
  MILLRACE_TRY(file.read_to(8, head));
  uint64_t length = 0;
  if (head.size() == 8) std::memcpy(&length, head.data(), 8);
  // A length that the file cannot hold is refused by the parser; read nothing for it.
  if (length <= kMaxIndex && length <= file.size() - head.size()) {
    MILLRACE_TRY(file.read_to(8 + length, head));
  }
  uint64_t data_begin = 0;
  MILLRACE_ASSIGN(auto tensors, parse_safetensors_header(path, head, file.size(), &data_begin));
  return add_file(source, SourceFile{path, file_name, file.size(), data_begin}, std::move(tensors));
}

}  // namespace

Expected<ModelSource> open_hugging_face(const std::string& folder) {
  ModelSource source;
  source.kind = SourceKind::kHuggingFace;
  source.path = folder;
  MILLRACE_ASSIGN(const Shards shards, shards_of(folder));
  const std::string config_path = folder + "/config.json";
  MILLRACE_ASSIGN(const std::string text, read_text(config_path, kMaxConfig));
  MILLRACE_ASSIGN(nlohmann::json config, parse_strict_json(config_path, text));
  if (!config.is_object()) return fail(Code::kInvalid, "{}: not a JSON object", config_path);
  source.config = std::make_shared<const nlohmann::json>(std::move(config));
  for (const std::string& file : shards.files) MILLRACE_TRY(add_safetensors(source, file));
  MILLRACE_TRY(check_index(source, shards));
  return source;
}

}  // namespace millrace::format
