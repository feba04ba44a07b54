// Reading a manifest. It is data from outside: every number, name and range is checked, and an
// error says which entry is wrong.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "format/manifest.h"
#include "format/packed.h"

namespace millrace::format {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxManifest = uint64_t{1} << 30;
constexpr uint64_t kMaxBytes = uint64_t{1} << 60;  // sums of a few stay in 64 bits
constexpr std::string_view kSealStart = "\"xxh3_128\":\"";
constexpr size_t kSealBytes = 12 + 32 + 3;  // start, digits, `"}` and the line end

// A text of the file inside a message: quotes, and escapes for what is not printable.
std::string shown(const std::string& text) {
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

Expected<const json*> member(const json& object, const char* key) {
  if (!object.is_object()) return fail(Code::kInvalid, "not an object");
  const auto found = object.find(key);
  if (found == object.end()) return fail(Code::kInvalid, "'{}' is missing", key);
  return &*found;
}

Expected<uint64_t> get_uint(const json& object, const char* key, uint64_t max) {
  MILLRACE_ASSIGN(const json* value, member(object, key));
  if (!value->is_number_unsigned()) {
    return fail(Code::kInvalid, "'{}' is no number of 0 or more in 64 bits", key);
  }
  const auto number = value->get<uint64_t>();
  if (number > max) return fail(Code::kInvalid, "'{}' is {}, more than {}", key, number, max);
  return number;
}

Expected<uint64_t> get_uint_or(const json& object, const char* key, uint64_t max,
                               uint64_t otherwise) {
  return object.contains(key) ? get_uint(object, key, max) : Expected<uint64_t>(otherwise);
}

Expected<std::string> get_text(const json& object, const char* key) {
  MILLRACE_ASSIGN(const json* value, member(object, key));
  if (!value->is_string()) return fail(Code::kInvalid, "'{}' is no text", key);
  return value->get<std::string>();
}

Expected<Hash128> hash_from(const json& value) {
  const auto hash = value.is_string() ? hash_from_hex(value.get_ref<const std::string&>())
                                      : std::optional<Hash128>();
  if (!hash) return fail(Code::kInvalid, "the hash is not 32 hex digits");
  return *hash;
}

Expected<Hash128> get_hash(const json& object) {
  MILLRACE_ASSIGN(const json* value, member(object, "xxh3_128"));
  return hash_from(*value);
}

Expected<const json*> get_array(const json& object, const char* key) {
  MILLRACE_ASSIGN(const json* value, member(object, key));
  if (!value->is_array()) return fail(Code::kInvalid, "'{}' is no array", key);
  return value;
}

Expected<PieceKind> kind_from_name(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(PieceKind::kLookup); ++i) {
    if (name(static_cast<PieceKind>(i)) == text) return static_cast<PieceKind>(i);
  }
  return fail(Code::kInvalid, "unknown kind {}", shown(std::string(text)));
}

Expected<uint32_t> dimension(const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
      value.get<uint64_t>() > INT32_MAX) {
    return fail(Code::kInvalid, "'shape' holds something else than numbers of 1 to 2^31 - 1");
  }
  return static_cast<uint32_t>(value.get<uint64_t>());
}

Status read_shape(const json& tensor, WeightView& view) {
  MILLRACE_ASSIGN(const json* shape, get_array(tensor, "shape"));
  if (shape->empty() || shape->size() > 2) {
    return fail(Code::kInvalid, "'shape' has {} axes", shape->size());
  }
  view.vector = shape->size() == 1;
  MILLRACE_ASSIGN(view.layout.cols, dimension(shape->back()));
  view.layout.rows = 1;
  if (!view.vector) {
    MILLRACE_ASSIGN(view.layout.rows, dimension(shape->front()));
  }
  const bool plain = view.layout.format <= WeightFormat::kBF16;
  if ((view.vector || view.transposed) && !plain) {
    return fail(Code::kInvalid, "layout '{}' cannot be a vector or transposed",
                layout_name(view.layout));
  }
  // Keeps sizes computed from the shape inside 64 bits.
  if (uint64_t{view.layout.rows} * view.layout.cols > kMaxBytes / 64) {
    return fail(Code::kInvalid, "shape [{}, {}] is too large", view.layout.rows, view.layout.cols);
  }
  return check_layout(view.layout);
}

Expected<PieceTensor> read_tensor(const json& value, TensorNames& names) {
  PieceTensor tensor;
  MILLRACE_ASSIGN(const std::string role, get_text(value, "role"));
  MILLRACE_ASSIGN(tensor.role, role_from_name(role));
  MILLRACE_ASSIGN(const std::string layout, get_text(value, "layout"));
  MILLRACE_ASSIGN(tensor.view.layout, layout_from_name(layout));
  if (value.contains("transposed")) {
    if (!value["transposed"].is_boolean()) return fail(Code::kInvalid, "'transposed' is no bool");
    tensor.view.transposed = value["transposed"].get<bool>();
  }
  MILLRACE_TRY(read_shape(value, tensor.view));
  MILLRACE_ASSIGN(tensor.offset, get_uint(value, "offset", kMaxBytes));
  MILLRACE_ASSIGN(tensor.bytes, get_uint(value, "bytes", kMaxBytes));
  if (tensor.bytes != view_bytes(tensor.view)) {
    return fail(Code::kInvalid, "'bytes' is {}, but the shape needs {}", tensor.bytes,
                view_bytes(tensor.view));
  }
  MILLRACE_ASSIGN(tensor.view.index, get_uint_or(value, "index", UINT32_MAX, 0));
  MILLRACE_ASSIGN(const uint64_t begin, get_uint_or(value, "row_begin", UINT32_MAX, 0));
  MILLRACE_ASSIGN(const uint64_t step, get_uint_or(value, "row_step", UINT32_MAX, 1));
  tensor.view.row_begin = static_cast<uint32_t>(begin);
  tensor.view.row_step = static_cast<uint32_t>(step);
  if (tensor.view.layout.format == WeightFormat::kFP8_E4M3) {
    MILLRACE_ASSIGN(const uint64_t rows, get_uint(value, "scale_rows", UINT16_MAX));
    MILLRACE_ASSIGN(const uint64_t cols, get_uint(value, "scale_cols", UINT16_MAX));
    tensor.view.scale_rows = static_cast<uint16_t>(rows);
    tensor.view.scale_cols = static_cast<uint16_t>(cols);
  }
  MILLRACE_ASSIGN(names.weight, get_text(value, "weight"));
  const auto optional_text = [&](const char* key) {
    return value.contains(key) ? get_text(value, key) : Expected<std::string>();
  };
  MILLRACE_ASSIGN(names.scales, optional_text("scales"));
  MILLRACE_ASSIGN(names.biases, optional_text("biases"));
  return tensor;
}

Status check_tensors(const Piece& piece) {
  std::vector<const PieceTensor*> sorted;
  for (const PieceTensor& tensor : piece.tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, &PieceTensor::offset);
  uint64_t end = 0;
  for (const PieceTensor* tensor : sorted) {
    const std::string_view role = name(tensor->role);
    if (tensor->offset % 64 != 0) {
      return fail(Code::kInvalid, "tensor '{}': offset {} is no multiple of 64", role,
                  tensor->offset);
    }
    if (tensor->offset < end) {
      return fail(Code::kInvalid, "tensor '{}' at {} overlaps the one before it", role,
                  tensor->offset);
    }
    end = tensor->offset + tensor->bytes;
    if (end > piece.bytes) {
      return fail(Code::kInvalid, "tensor '{}' ends at {}, outside of the piece ({} bytes)", role,
                  end, piece.bytes);
    }
  }
  return {};
}

Expected<Piece> read_piece(const json& value, std::vector<TensorNames>& names) {
  Piece piece;
  MILLRACE_ASSIGN(piece.name, get_text(value, "name"));
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; };
  if (piece.name.empty() || std::ranges::any_of(piece.name, control)) {
    return fail(Code::kInvalid, "'name' is empty or holds control characters");
  }
  MILLRACE_ASSIGN(const std::string kind, get_text(value, "kind"));
  MILLRACE_ASSIGN(piece.kind, kind_from_name(kind));
  constexpr uint64_t kNone = UINT64_MAX;
  const auto optional_int = [&](const char* key) -> Expected<int32_t> {
    if (!value.contains(key)) return -1;
    MILLRACE_ASSIGN(const uint64_t number, get_uint(value, key, INT32_MAX));
    return static_cast<int32_t>(number);
  };
  MILLRACE_ASSIGN(piece.layer, optional_int("layer"));
  MILLRACE_ASSIGN(piece.expert, optional_int("expert"));
  MILLRACE_ASSIGN(const uint64_t row, get_uint_or(value, "row_begin", UINT32_MAX, 0));
  MILLRACE_ASSIGN(const uint64_t file, get_uint(value, "file", kNone));
  if (file > UINT32_MAX) return fail(Code::kInvalid, "'file' is {}", file);
  piece.row_begin = static_cast<uint32_t>(row);
  piece.file = static_cast<uint32_t>(file);
  MILLRACE_ASSIGN(piece.offset, get_uint(value, "offset", kMaxBytes));
  MILLRACE_ASSIGN(piece.bytes, get_uint(value, "bytes", kMaxBytes));
  if (piece.offset % kPackAlign != 0 || piece.bytes % kPackAlign != 0 || piece.bytes == 0) {
    return fail(Code::kInvalid, "offset {} or bytes {} is no multiple of {}", piece.offset,
                piece.bytes, kPackAlign);
  }
  MILLRACE_ASSIGN(const Hash128 hash, get_hash(value));
  piece.hash[0] = hash.low;
  piece.hash[1] = hash.high;
  MILLRACE_ASSIGN(const json* tensors, get_array(value, "tensors"));
  for (size_t i = 0; i < tensors->size(); ++i) {
    TensorNames tensor_names;
    auto tensor = read_tensor((*tensors)[i], tensor_names);
    if (!tensor) return with_context(fmt::format("tensor {}", i), std::move(tensor.error()));
    piece.tensors.push_back(*tensor);
    names.push_back(std::move(tensor_names));
  }
  MILLRACE_TRY(check_tensors(piece));
  return piece;
}

// Pieces are taken out of the document as they end: a large manifest never lies in memory as a
// tree.
struct PieceSink {
  Manifest* manifest;
  std::string top;  // key of the outermost object that is being read
  Status status;

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth == 1 && event == json::parse_event_t::key) top = parsed.get<std::string>();
    if (depth != 2 || event != json::parse_event_t::object_end || top != "pieces") return true;
    if (!status) return false;
    std::vector<TensorNames> names;
    auto piece = read_piece(parsed, names);
    if (piece) {
      manifest->table.pieces.push_back(std::move(*piece));
      manifest->names.push_back(std::move(names));
    } else {
      const auto named = parsed.find("name");
      const bool text = named != parsed.end() && named->is_string();
      status =
          with_context(fmt::format("piece {}{}{}", manifest->table.pieces.size(), text ? " " : "",
                                   text ? shown(named->get<std::string>()) : ""),
                       std::move(piece.error()));
    }
    return false;
  }
};

Status read_source(const json& root, Manifest& manifest) {
  MILLRACE_ASSIGN(const json* source, member(root, "source"));
  MILLRACE_ASSIGN(const std::string kind, get_text(*source, "kind"));
  if (kind != "gguf" && kind != "hugging_face") {
    return fail(Code::kInvalid, "unknown kind {}", shown(kind));
  }
  manifest.kind = kind == "gguf" ? SourceKind::kGguf : SourceKind::kHuggingFace;
  MILLRACE_ASSIGN(manifest.source_name, get_text(*source, "name"));
  MILLRACE_ASSIGN(const json* files, get_array(*source, "files"));
  std::set<std::string> seen;
  for (const json& value : *files) {
    ManifestFile file;
    MILLRACE_ASSIGN(file.name, get_text(value, "name"));
    if (!is_plain_name(file.name) || is_reserved_name(file.name)) {
      return fail(Code::kInvalid, "{} is no plain file name", shown(file.name));
    }
    if (!seen.insert(file.name).second) {
      return fail(Code::kInvalid, "file '{}' occurs twice", file.name);
    }
    MILLRACE_ASSIGN(file.bytes, get_uint(value, "bytes", kMaxBytes));
    MILLRACE_ASSIGN(file.data_begin, get_uint(value, "data_begin", file.bytes));
    MILLRACE_ASSIGN(file.hash, get_hash(value));
    manifest.files.push_back(std::move(file));
  }
  if (manifest.files.empty()) return fail(Code::kInvalid, "no files");

  MILLRACE_ASSIGN(const json* ranges, get_array(*source, "ranges"));
  uint64_t at = 0;
  uint32_t last_file = 0;
  uint64_t last_end = 0;
  for (size_t i = 0; i < ranges->size(); ++i) {
    const json& value = (*ranges)[i];
    const bool shaped = value.is_array() && value.size() == 5 && value[0].is_number_unsigned() &&
                        value[1].is_number_unsigned() && value[2].is_number_unsigned() &&
                        value[3].is_number_unsigned();
    if (!shaped) return fail(Code::kInvalid, "range {}: not [file, offset, bytes, at, hash]", i);
    const auto file = value[0].get<uint64_t>(), offset = value[1].get<uint64_t>(),
               bytes = value[2].get<uint64_t>();
    if (file >= manifest.files.size()) return fail(Code::kInvalid, "range {}: no file {}", i, file);
    const uint64_t size = manifest.files[file].bytes;
    if (bytes == 0 || bytes > size || offset > size - bytes) {
      return fail(Code::kInvalid, "range {}: {} bytes at {} lie outside of '{}' ({} bytes)", i,
                  bytes, offset, manifest.files[file].name, size);
    }
    if (file < last_file || (file == last_file && offset < last_end)) {
      return fail(Code::kInvalid, "range {}: overlaps the one before it, or is out of order", i);
    }
    if (value[3].get<uint64_t>() != at) {
      return fail(Code::kInvalid, "range {}: lies at {} of {}, should be {}", i,
                  value[3].get<uint64_t>(), kSourceBinName, at);
    }
    last_file = static_cast<uint32_t>(file);
    last_end = offset + bytes;
    auto hash = hash_from(value[4]);
    if (!hash) return with_context(fmt::format("range {}", i), std::move(hash.error()));
    manifest.ranges.push_back({{last_file, offset, bytes}, at, *hash});
    at += padded(bytes);
    if (at > kMaxBytes) return fail(Code::kInvalid, "range {}: too many bytes", i);
  }
  MILLRACE_ASSIGN(const json* bin, member(root, "source_bin"));
  MILLRACE_ASSIGN(manifest.source_bin_bytes, get_uint(*bin, "bytes", kMaxBytes));
  if (manifest.source_bin_bytes != at) {
    return fail(Code::kInvalid, "ranges end at {}, but {} has {} bytes", at, kSourceBinName,
                manifest.source_bin_bytes);
  }
  return {};
}

Status read_side_files(const json& root, Manifest& manifest) {
  MILLRACE_ASSIGN(const json* files, get_array(root, "side_files"));
  std::set<std::string> seen;
  for (const ManifestFile& file : manifest.files) seen.insert(file.name);
  for (const json& value : *files) {
    SideFile file;
    MILLRACE_ASSIGN(file.name, get_text(value, "name"));
    if (!is_side_name(file.name)) {
      return fail(Code::kInvalid, "{} is not the name of a side file", shown(file.name));
    }
    if (!seen.insert(file.name).second) {
      return fail(Code::kInvalid, "'{}' occurs twice", file.name);
    }
    MILLRACE_ASSIGN(file.bytes, get_uint(value, "bytes", kMaxBytes));
    MILLRACE_ASSIGN(file.hash, get_hash(value));
    manifest.side_files.push_back(std::move(file));
  }
  return {};
}

Status read_weights(const json& root, Manifest& manifest) {
  MILLRACE_ASSIGN(const json* weights, get_array(root, "weights"));
  for (const json& value : *weights) {
    const std::string wanted = weights_name(static_cast<uint32_t>(manifest.weights_bytes.size()));
    MILLRACE_ASSIGN(const std::string file, get_text(value, "file"));
    // The only name there can be: nothing that could lead out of the folder.
    if (file != wanted) return fail(Code::kInvalid, "file {} should be '{}'", shown(file), wanted);
    MILLRACE_ASSIGN(const uint64_t bytes, get_uint(value, "bytes", kMaxBytes));
    manifest.weights_bytes.push_back(bytes);
  }
  return {};
}

// Pieces have different names, lie inside their files, and follow each other without gap or
// overlap.
Status check_pieces(const Manifest& manifest) {
  const auto& pieces = manifest.table.pieces;
  std::unordered_set<std::string_view> names;
  std::vector<const Piece*> sorted;
  for (const Piece& piece : pieces) {
    if (!names.insert(piece.name).second) {
      return fail(Code::kInvalid, "piece '{}' occurs twice", piece.name);
    }
    if (piece.file >= manifest.weights_bytes.size()) {
      return fail(Code::kInvalid, "piece '{}': there is no weights file {}", piece.name,
                  piece.file);
    }
    const uint64_t size = manifest.weights_bytes[piece.file];
    if (piece.bytes > size || piece.offset > size - piece.bytes) {
      return fail(Code::kInvalid, "piece '{}': {} bytes at {} lie outside of {} ({} bytes)",
                  piece.name, piece.bytes, piece.offset, weights_name(piece.file), size);
    }
    sorted.push_back(&piece);
  }
  std::ranges::sort(sorted, [](const Piece* a, const Piece* b) {
    return std::pair(a->file, a->offset) < std::pair(b->file, b->offset);
  });
  std::vector<uint64_t> ends(manifest.weights_bytes.size(), 0);
  const Piece* last = nullptr;
  for (const Piece* piece : sorted) {
    uint64_t& end = ends[piece->file];
    if (piece->offset < end) {
      return fail(Code::kInvalid, "pieces '{}' and '{}' overlap in {} at {}", last->name,
                  piece->name, weights_name(piece->file), piece->offset);
    }
    if (piece->offset > end) {
      return fail(Code::kInvalid, "{}: no piece between {} and {} ('{}')",
                  weights_name(piece->file), end, piece->offset, piece->name);
    }
    end = piece->offset + piece->bytes;
    last = piece;
  }
  for (uint32_t i = 0; i < ends.size(); ++i) {
    if (ends[i] != manifest.weights_bytes[i]) {
      return fail(Code::kInvalid, "{}: pieces end at {}, the file at {}", weights_name(i), ends[i],
                  manifest.weights_bytes[i]);
    }
  }
  return {};
}

Status read_root(const json& root, Manifest& manifest) {
  MILLRACE_ASSIGN(const std::string format, get_text(root, "format"));
  if (format != "millrace-pack") return fail(Code::kInvalid, "'format' is {}", shown(format));
  MILLRACE_ASSIGN(const uint64_t version, get_uint(root, "version", UINT64_MAX));
  if (version != kPackVersion) {
    return fail(Code::kUnsupported, "pack version {}; this build reads version {}: pack it again",
                version, kPackVersion);
  }
  MILLRACE_ASSIGN(manifest.architecture, get_text(root, "architecture"));
  const auto in = [](const char* what, Status status) -> Status {
    if (!status) return with_context(what, std::move(status.error()));
    return {};
  };
  MILLRACE_TRY(in("source", read_source(root, manifest)));
  MILLRACE_TRY(in("side_files", read_side_files(root, manifest)));
  MILLRACE_TRY(in("weights", read_weights(root, manifest)));
  // Pieces were taken out while parsing; what is left must be the emptied array.
  MILLRACE_ASSIGN(const json* pieces, get_array(root, "pieces"));
  if (!pieces->empty()) return fail(Code::kInvalid, "'pieces' holds something else than objects");
  return check_pieces(manifest);
}

}  // namespace

Expected<Manifest> read_manifest_body(std::string_view path, std::string_view text) {
  Manifest manifest;
  PieceSink sink{&manifest, {}, {}};
  // By reference: the parser copies its callback.
  const json root = json::parse(
      text,
      [&sink](int depth, json::parse_event_t event, json& parsed) {
        return sink(depth, event, parsed);
      },
      false);
  if (!sink.status) return with_context(path, std::move(sink.status.error()));
  if (root.is_discarded()) return fail(Code::kInvalid, "{}: not valid JSON", path);
  Status status = read_root(root, manifest);
  if (!status) return with_context(path, std::move(status.error()));
  return manifest;
}

Expected<Manifest> read_manifest(std::string_view path, std::string_view text) {
  if (text.size() < kSealBytes) return fail(Code::kCorrupt, "{}: cut short", path);
  const std::string_view body = text.substr(0, text.size() - kSealBytes);
  const std::string_view seal = text.substr(body.size());
  if (!seal.starts_with(kSealStart) || !seal.ends_with("\"}\n")) {
    return fail(Code::kCorrupt, "{}: cut short, or not written by pack (its last line is no hash)",
                path);
  }
  if (seal.substr(kSealStart.size(), 32) != to_hex(hash_of(body))) {
    return fail(Code::kCorrupt, "{}: damaged or edited (its hash does not match)", path);
  }
  return read_manifest_body(path, text);
}

Expected<Manifest> open_manifest(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kManifestName);
  MILLRACE_ASSIGN(const std::string text, read_small(path, kMaxManifest));
  MILLRACE_ASSIGN(Manifest manifest, read_manifest(path, text));
  // Weights may be links: a model may be spread over disks so, and they are data with hashes.
  const auto check = [&](const std::string& name, uint64_t bytes, bool link = false) -> Status {
    MILLRACE_ASSIGN(const InFile file, InFile::open(folder + "/" + name, link, false));
    if (file.size() == bytes) return {};
    return fail(Code::kCorrupt, "{}: {} bytes, but the manifest says {}{}", file.path(),
                file.size(), bytes, file.size() < bytes ? " (cut short)" : "");
  };
  for (uint32_t i = 0; i < manifest.weights_bytes.size(); ++i) {
    MILLRACE_TRY(check(weights_name(i), manifest.weights_bytes[i], true));
  }
  MILLRACE_TRY(check(std::string(kSourceBinName), manifest.source_bin_bytes));
  for (const SideFile& file : manifest.side_files) MILLRACE_TRY(check(file.name, file.bytes));
  return manifest;
}

}  // namespace millrace::format
