// Opening a packed folder, and binding a piece table to what it holds.
#include "format/packed.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "format/manifest.h"
#include "format/source_readers.h"

namespace millrace::format {
namespace {

// A GGUF header holds the vocabulary; a safetensors header names every tensor.
constexpr uint64_t kMaxHeader = uint64_t{512} << 20;

// The header of source file `index`, out of source.bin, checked against its hashes.
Expected<std::string> read_header(const Manifest& manifest, const InFile& bin, uint32_t index) {
  const ManifestFile& file = manifest.files[index];
  if (file.data_begin > kMaxHeader) {
    return fail(Code::kInvalid, "{}: header of '{}' has {} bytes", bin.path(), file.name,
                file.data_begin);
  }
  std::string head;
  for (const ManifestRange& range : manifest.ranges) {
    if (range.range.file != index || range.range.offset >= file.data_begin) continue;
    if (range.range.offset != head.size()) break;
    std::string part(padded(range.range.bytes), '\0');
    MILLRACE_TRY(bin.read(range.at, std::as_writable_bytes(std::span(part))));
    if (hash_of(std::string_view(part)) != range.hash) {
      return fail(Code::kCorrupt, "{}: header of '{}' at offset {}: hash mismatch", bin.path(),
                  file.name, range.at);
    }
    part.resize(range.range.bytes);
    head += part;
  }
  if (head.size() < file.data_begin) {
    return fail(Code::kInvalid, "{}: the header of '{}' is not whole", bin.path(), file.name);
  }
  return head;
}

Expected<ModelSource> read_source(const Manifest& manifest, const std::string& folder) {
  ModelSource source;
  source.kind = manifest.kind;
  source.path = folder;
  if (manifest.kind == SourceKind::kHuggingFace) {
    const SideFile* config = manifest.side_file("config.json");
    if (config == nullptr) return fail(Code::kInvalid, "{}: no config.json", folder);
    const std::string path = folder + "/config.json";
    MILLRACE_ASSIGN(const std::string text, read_small(path, uint64_t{16} << 20));
    if (hash_of(std::string_view(text)) != config->hash) {
      return fail(Code::kCorrupt, "{}: hash mismatch", path);
    }
    MILLRACE_ASSIGN(nlohmann::json json, parse_strict_json(path, text));
    if (!json.is_object()) return fail(Code::kInvalid, "{}: not a JSON object", path);
    source.config = std::make_shared<const nlohmann::json>(std::move(json));
  }
  MILLRACE_ASSIGN(const InFile bin,
                  InFile::open(folder + "/" + std::string(kSourceBinName), false, false));
  for (uint32_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    const std::string label = fmt::format("{} ({})", bin.path(), file.name);
    MILLRACE_ASSIGN(const std::string head, read_header(manifest, bin, i));
    std::vector<SourceTensor> tensors;
    uint64_t data_begin = 0;
    if (manifest.kind == SourceKind::kHuggingFace) {
      MILLRACE_ASSIGN(tensors, parse_safetensors_header(label, head, file.bytes, &data_begin));
    } else {
      MILLRACE_ASSIGN(GgufHeader header, parse_gguf_header(label, head, file.bytes));
      data_begin = header.data_begin;
      tensors = std::move(header.tensors);
      if (i == 0) source.gguf = std::move(header.metadata);
    }
    if (data_begin != file.data_begin) {
      return fail(Code::kInvalid, "{}: header ends at {}, the manifest says {}", label, data_begin,
                  file.data_begin);
    }
    MILLRACE_TRY(add_file(source, {folder + "/" + file.name, file.name, file.bytes, data_begin},
                          std::move(tensors)));
  }
  return source;
}

// Turns the names of source tensors into indices.
Status resolve(Manifest& manifest, const ModelSource& source) {
  const auto index_of = [&](const std::string& name, uint32_t& index) {
    index = kNoTensor;
    if (name.empty()) return true;
    const auto found = source.by_name.find(name);
    if (found == source.by_name.end()) return false;
    index = found->second;
    return true;
  };
  for (size_t i = 0; i < manifest.table.pieces.size(); ++i) {
    Piece& piece = manifest.table.pieces[i];
    for (size_t j = 0; j < piece.tensors.size(); ++j) {
      WeightView& view = piece.tensors[j].view;
      const TensorNames& names = manifest.names[i][j];
      if (!index_of(names.weight, view.weight) || !index_of(names.scales, view.scales) ||
          !index_of(names.biases, view.biases)) {
        return fail(Code::kInvalid,
                    "piece '{}': tensor '{}' comes from a source tensor that the "
                    "source does not have ('{}')",
                    piece.name, name(piece.tensors[j].role), names.weight);
      }
    }
  }
  return {};
}

bool same_view(const WeightView& a, const WeightView& b) {
  return a.layout == b.layout && a.vector == b.vector && a.transposed == b.transposed &&
         a.weight == b.weight && a.scales == b.scales && a.biases == b.biases &&
         a.index == b.index && a.row_begin == b.row_begin && a.row_step == b.row_step &&
         a.scale_rows == b.scale_rows && a.scale_cols == b.scale_cols;
}

Status compare(const Piece& packed, const Piece& wanted) {
  const auto differs = [&](std::string_view what) {
    return fail(Code::kInvalid,
                "piece '{}': {} differs from what this model needs; pack it again "
                "with this version",
                wanted.name, what);
  };
  if (packed.name != wanted.name)
    return differs(fmt::format("its place (held by '{}')", packed.name));
  if (packed.kind != wanted.kind || packed.layer != wanted.layer ||
      packed.expert != wanted.expert || packed.row_begin != wanted.row_begin) {
    return differs("its kind, layer, expert or first row");
  }
  if (packed.bytes != wanted.bytes) return differs("its size");
  if (packed.tensors.size() != wanted.tensors.size()) return differs("its number of tensors");
  for (size_t i = 0; i < wanted.tensors.size(); ++i) {
    const PieceTensor& a = packed.tensors[i];
    const PieceTensor& b = wanted.tensors[i];
    if (a.role != b.role || a.offset != b.offset || a.bytes != b.bytes ||
        !same_view(a.view, b.view)) {
      return differs(fmt::format("tensor '{}'", name(b.role)));
    }
  }
  return {};
}

}  // namespace

bool is_packed_folder(const std::string& path) {
  std::error_code error;
  const std::string manifest = path + "/" + std::string(kManifestName);
  if (!std::filesystem::is_regular_file(manifest, error)) return false;
  // Another program's manifest.json beside safetensors is not ours; a damaged one of ours still is.
  if (std::filesystem::exists(path + "/" + std::string(kSourceBinName), error)) return true;
  auto file = InFile::open(manifest, false, false);
  if (!file) return false;
  std::string head(std::min<uint64_t>(file->size(), 256), '\0');
  return file->read(0, std::as_writable_bytes(std::span(head))) &&
         head.find("millrace-pack") != std::string::npos;
}

Expected<PackedModel> open_packed(const std::string& path) {
  PackedModel packed;
  packed.path = trimmed_path(path);
  MILLRACE_ASSIGN(Manifest manifest, open_manifest(packed.path));
  MILLRACE_ASSIGN(packed.source, read_source(manifest, packed.path));
  Status resolved = resolve(manifest, packed.source);
  if (!resolved) {
    return with_context(packed.path + "/" + std::string(kManifestName),
                        std::move(resolved.error()));
  }
  for (uint32_t i = 0; i < manifest.weights_bytes.size(); ++i) {
    packed.files.push_back(packed.path + "/" + weights_name(i));
  }
  packed.file_bytes = std::move(manifest.weights_bytes);
  packed.manifest = std::move(manifest.table);
  return packed;
}

Status bind_packed(const PackedModel& packed, PieceTable* table) {
  const auto& pieces = packed.manifest.pieces;
  for (size_t i = 0; i < table->pieces.size(); ++i) {
    if (i >= pieces.size()) {
      return fail(Code::kInvalid, "{}: piece '{}' is missing; pack it again with this version",
                  packed.path, table->pieces[i].name);
    }
    Status same = compare(pieces[i], table->pieces[i]);
    if (!same) return with_context(packed.path, std::move(same.error()));
  }
  if (pieces.size() > table->pieces.size()) {
    return fail(Code::kInvalid, "{}: holds a piece '{}' that this model does not have", packed.path,
                pieces[table->pieces.size()].name);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    table->pieces[i].file = pieces[i].file;
    table->pieces[i].offset = pieces[i].offset;
    table->pieces[i].hash[0] = pieces[i].hash[0];
    table->pieces[i].hash[1] = pieces[i].hash[1];
  }
  return {};
}

}  // namespace millrace::format
