// Writing a manifest, and the names of layouts in it.
#include "format/manifest.h"

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

namespace millrace::format {
namespace {

using nlohmann::json;

constexpr std::string_view kScaleNames[] = {"f32", "f16", "bf16"};
constexpr std::string_view kAffine = "affine";

// Text as a JSON string; throws on bytes that are no UTF-8.
std::string quoted(const std::string& text) { return json(text).dump(); }

bool take_number(std::string_view& text, uint32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text.starts_with('0')) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

std::string tensor_text(const PieceTensor& tensor, const TensorNames& names) {
  const WeightView& view = tensor.view;
  std::string text =
      fmt::format(R"({{"role":"{}","layout":"{}","shape":{},"offset":{},"bytes":{},"weight":{})",
                  name(tensor.role), layout_name(view.layout),
                  view.vector ? fmt::format("[{}]", view.layout.cols)
                              : fmt::format("[{},{}]", view.layout.rows, view.layout.cols),
                  tensor.offset, tensor.bytes, quoted(names.weight));
  if (!names.scales.empty()) text += fmt::format(R"(,"scales":{})", quoted(names.scales));
  if (!names.biases.empty()) text += fmt::format(R"(,"biases":{})", quoted(names.biases));
  if (view.index != 0) text += fmt::format(R"(,"index":{})", view.index);
  if (view.row_begin != 0) text += fmt::format(R"(,"row_begin":{})", view.row_begin);
  if (view.row_step != 1) text += fmt::format(R"(,"row_step":{})", view.row_step);
  if (view.transposed) text += R"(,"transposed":true)";
  if (view.layout.format == WeightFormat::kFP8_E4M3)
    text += fmt::format(R"(,"scale_rows":{},"scale_cols":{})", view.scale_rows, view.scale_cols);
  return text + "}";
}

std::string piece_text(const Piece& piece, const std::vector<TensorNames>& names) {
  std::string text =
      fmt::format(R"({{"name":{},"kind":"{}")", quoted(piece.name), name(piece.kind));
  if (piece.layer >= 0) text += fmt::format(R"(,"layer":{})", piece.layer);
  if (piece.expert >= 0) text += fmt::format(R"(,"expert":{})", piece.expert);
  if (piece.row_begin != 0) text += fmt::format(R"(,"row_begin":{})", piece.row_begin);
  text +=
      fmt::format(R"(,"file":{},"offset":{},"bytes":{},"xxh3_128":"{}","tensors":[)", piece.file,
                  piece.offset, piece.bytes, to_hex({piece.hash[0], piece.hash[1]}));
  for (size_t i = 0; i < piece.tensors.size(); ++i) {
    if (i != 0) text += ",";
    text += tensor_text(piece.tensors[i], names[i]);
  }
  return text + "]}";
}

std::string named_hash(const std::string& name, uint64_t bytes, const Hash128& hash) {
  return fmt::format(R"({{"name":{},"bytes":{},"xxh3_128":"{}"}})", quoted(name), bytes,
                     to_hex(hash));
}

std::string body_text(const Manifest& manifest, const json* config) {
  std::string text =
      fmt::format("{{\n\"format\":\"millrace-pack\",\"version\":1,\"architecture\":{},\n",
                  quoted(manifest.architecture));
  text +=
      fmt::format("\"source\":{{\"kind\":\"{}\",\"name\":{},\"fingerprint\":\"{}\",\n \"files\":[",
                  manifest.kind == SourceKind::kGguf ? "gguf" : "hugging_face",
                  quoted(manifest.source_name), to_hex(fingerprint(manifest)));
  for (const char* comma = ""; const ManifestFile& file : manifest.files) {
    text += fmt::format("{}\n  {{\"name\":{},\"bytes\":{},\"data_begin\":{},\"xxh3_128\":\"{}\"}}",
                        comma, quoted(file.name), file.bytes, file.data_begin, to_hex(file.hash));
    comma = ",";
  }
  text += "],\n \"ranges\":[";
  for (const char* comma = ""; const ManifestRange& range : manifest.ranges) {
    text += fmt::format("{}\n  [{},{},{},{},\"{}\"]", comma, range.range.file, range.range.offset,
                        range.range.bytes, range.at, to_hex(range.hash));
    comma = ",";
  }
  text += fmt::format("]}},\n\"source_bin\":{{\"file\":\"{}\",\"bytes\":{}}},\n\"config\":{},\n",
                      kSourceBinName, manifest.source_bin_bytes,
                      config != nullptr ? config->dump() : "null");
  std::map<std::string, uint64_t> formats;
  for (const Piece& piece : manifest.table.pieces) {
    for (const PieceTensor& tensor : piece.tensors) {
      formats[layout_name(tensor.view.layout)] += tensor.bytes;
    }
  }
  text += fmt::format("\"quantization\":{},\n\"side_files\":[", json(formats).dump());
  for (const char* comma = ""; const SideFile& file : manifest.side_files) {
    text += fmt::format("{}\n {}", comma, named_hash(file.name, file.bytes, file.hash));
    comma = ",";
  }
  text += "],\n\"weights\":[";
  for (uint32_t i = 0; i < manifest.weights_bytes.size(); ++i) {
    text += fmt::format("{}\n {{\"file\":\"{}\",\"bytes\":{}}}", i == 0 ? "" : ",", weights_name(i),
                        manifest.weights_bytes[i]);
  }
  text += "],\n\"pieces\":[";
  for (size_t i = 0; i < manifest.table.pieces.size(); ++i) {
    text += i == 0 ? "\n " : ",\n ";
    text += piece_text(manifest.table.pieces[i], manifest.names[i]);
  }
  return text + "],\n";
}

}  // namespace

const SideFile* Manifest::side_file(std::string_view wanted) const {
  for (const SideFile& file : side_files) {
    if (file.name == wanted) return &file;
  }
  return nullptr;
}

Hash128 fingerprint(const Manifest& manifest) {
  Hasher hasher;
  for (const ManifestFile& file : manifest.files) {
    hasher.field(file.name);
    hasher.field(file.bytes);
    hasher.field(file.hash.low);
    hasher.field(file.hash.high);
  }
  return hasher.digest();
}

std::string layout_name(const WeightLayout& layout) {
  if (layout.format != WeightFormat::kAffine) return std::string(name(layout.format));
  return fmt::format("{}{}g{}_{}", kAffine, layout.bits, layout.group,
                     kScaleNames[static_cast<size_t>(layout.scale_type)]);
}

Expected<WeightLayout> layout_from_name(std::string_view text) {
  WeightLayout layout;
  std::string_view left = text;
  if (!left.starts_with(kAffine)) {
    MILLRACE_ASSIGN(layout.format, weight_format_from_name(text));
    return layout;
  }
  left.remove_prefix(kAffine.size());
  layout.format = WeightFormat::kAffine;
  uint32_t bits = 0, group = 0;
  const auto wrong = [&] { return fail(Code::kInvalid, "unknown layout '{}'", text); };
  if (!take_number(left, bits) || !left.starts_with('g')) return wrong();
  left.remove_prefix(1);
  if (!take_number(left, group) || !left.starts_with('_')) return wrong();
  left.remove_prefix(1);
  const bool known_bits = (bits >= 2 && bits <= 6) || bits == 8;
  if (!known_bits || (group != 32 && group != 64 && group != 128)) return wrong();
  layout.bits = static_cast<uint8_t>(bits);
  layout.group = static_cast<uint16_t>(group);
  for (size_t i = 0; i < std::size(kScaleNames); ++i) {
    if (left == kScaleNames[i]) {
      layout.scale_type = static_cast<ScaleType>(i);
      return layout;
    }
  }
  return wrong();
}

std::string seal_manifest(std::string_view body) {
  return fmt::format("{}\"xxh3_128\":\"{}\"}}\n", body, to_hex(hash_of(body)));
}

Expected<std::string> write_manifest(const Manifest& manifest, const json* config) {
  // The JSON library throws on a text that is no UTF-8; a file must not carry it either.
  try {
    return seal_manifest(body_text(manifest, config));
  } catch (const json::exception& error) {
    return fail(Code::kInvalid, "manifest: a name or config text is not valid UTF-8 ({})",
                error.what());
  }
}

}  // namespace millrace::format
