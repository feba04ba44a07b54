#include "model/weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/numeric.h"
#include "model/wants.h"

namespace millrace::model {
namespace {

using format::Piece;
using format::PieceKind;
using format::PieceTensor;
using format::QuantParams;
using format::Role;
using format::WeightView;

constexpr uint64_t kPieceAlign = 4096, kTensorAlign = 64;

bool ends_with_replace(const std::string& name, std::string_view from, std::string_view to,
                       std::string* out) {
  if (!name.ends_with(from)) return false;
  *out = name.substr(0, name.size() - from.size()).append(to);
  return true;
}

// Whether a tensor lies in one of the layers that predict further tokens, which come after the
// model's own ("{beyond}" in the pattern's place of a layer).
bool lies_beyond(std::string_view pattern, std::string_view name, const ModelSpec& spec) {
  const uint64_t layers = spec.layers.size();
  const size_t at = pattern.find("{beyond}");
  if (at == std::string_view::npos || !name.starts_with(pattern.substr(0, at))) return false;
  uint64_t layer = 0;
  size_t i = at;
  for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && layer < 1000000; ++i)
    layer = layer * 10 + static_cast<uint64_t>(name[i] - '0');
  return i > at && name.substr(i).starts_with('.') && layer >= layers &&
         layer < layers + spec.predicting;
}

class Builder {
 public:
  Builder(const format::ModelSource& source, const ModelSpec& spec, const NameRules& rules)
      : source_(source), spec_(spec), rules_(rules), used_(source.tensors.size(), 0) {}

  Expected<format::PieceTable> build(const std::vector<std::string>& drops, WeightAudit* audit);

 private:
  Status embedding(PieceKind kind, Role role, uint32_t cols);
  Status layer(uint32_t i);
  Status experts(uint32_t i, const MoeSpec& moe);
  Status add(Piece* piece, const Want& want);
  Expected<WeightView> resolve(const Piece& piece, const Want& want, const NameRule& rule,
                               uint32_t tensor);
  Expected<QuantParams> quant_of(const std::string& name) const;
  Status float_companions(uint32_t tensor, WeightView* view);
  void part_rows(const Piece& piece, const NameRule& rule, const Want& want, uint32_t* begin,
                 uint32_t* step, uint32_t* total) const;
  void close(Piece piece);

  const format::ModelSource& source_;
  const ModelSpec& spec_;
  const NameRules& rules_;
  std::vector<uint32_t> activation_scales_;  // tensors that only other engines' kernels want
  std::vector<uint8_t> used_;                // by tensor: 0, or one more than the role it serves
  format::PieceTable table_;
};

// MLX writes {"quantization": {group_size, bits, mode, "<module>": {...} | false}}.
Expected<QuantParams> Builder::quant_of(const std::string& name) const {
  QuantParams params;
  if (!source_.config) return params;
  if (auto own = source_.config->find("quantization_config");
      own != source_.config->end() && own->is_object() && own->contains("weight_block_size")) {
    const auto& size = (*own)["weight_block_size"];
    const auto whole = [](const nlohmann::json& n) {
      return n.is_number_unsigned() && n.get<uint64_t>() >= 1 && n.get<uint64_t>() <= 32768;
    };
    if (!size.is_array() || size.size() != 2 || !whole(size[0]) || !whole(size[1])) {
      return fail(Code::kInvalid, "{}: 'weight_block_size' of 'quantization_config' is {}",
                  source_.path, size.dump());
    }
    params.scale_rows = size[0].get<uint16_t>();
    params.scale_cols = size[1].get<uint16_t>();
  }
  auto found = source_.config->find("quantization");
  if (found == source_.config->end() || !found->is_object()) return params;
  std::string module = name;
  ends_with_replace(name, ".weight", "", &module);
  auto read = [&](const nlohmann::json& object) -> Status {
    auto number = [&](const char* key) -> uint32_t {
      auto it = object.find(key);
      return it != object.end() && it->is_number_unsigned() ? it->get<uint32_t>() : 0;
    };
    if (number("bits")) params.bits = static_cast<uint8_t>(std::min(number("bits"), 255u));
    if (number("group_size"))
      params.group = static_cast<uint16_t>(std::min(number("group_size"), 65535u));
    if (auto it = object.find("mode"); it != object.end() && it->is_string()) {
      const auto mode = it->get<std::string>();
      if (mode != "affine" && mode != "mxfp4") {
        return fail(Code::kUnsupported,
                    "{}: quantization mode '{}' of '{}' is not supported (affine and mxfp4 are)",
                    source_.path, mode, module);
      }
      params.mxfp4 = mode == "mxfp4";
    }
    return {};
  };
  MILLRACE_TRY(read(*found));
  if (auto own = found->find(module); own != found->end() && own->is_object()) {
    params.mxfp4 = false;
    MILLRACE_TRY(read(*own));
  }
  return params;
}

// Scales of 8-bit floats (DeepSeek: X.weight_scale_inv) and of nvfp4 (modelopt: X.weight_scale and
// X.weight_scale_2). X.input_scale serves kernels that round activations to such floats; ours do not.
Status Builder::float_companions(uint32_t tensor, WeightView* view) {
  const auto& t = source_.tensors[tensor];
  const auto find = [&](std::string_view suffix) -> const uint32_t* {
    std::string name;
    if (!ends_with_replace(t.name, ".weight", suffix, &name)) return nullptr;
    const auto it = source_.by_name.find(name);
    return it == source_.by_name.end() ? nullptr : &it->second;
  };
  const auto missing = [&](std::string_view suffix) {
    return fail(Code::kNotFound, "{}: tensor '{}' ({}) needs its scales; '{}{}' is missing",
                source_.path, t.name, format::info(t.type).name,
                t.name.substr(0, t.name.size() - std::string_view(".weight").size()), suffix);
  };
  if (!t.name.ends_with(".weight")) return {};
  if (t.type == format::SourceType::kF8E4M3) {
    const uint32_t* scales = find(".weight_scale_inv");
    if (!scales) return missing(".weight_scale_inv");
    view->scales = *scales;
  } else if (t.type == format::SourceType::kU8) {
    const uint32_t *scales = find(".weight_scale"), *whole = find(".weight_scale_2");
    if (!scales) return missing(".weight_scale");
    if (!whole) return missing(".weight_scale_2");
    view->scales = *scales;
    view->biases = *whole;
  } else {
    return {};
  }
  if (const uint32_t* input = find(".input_scale")) activation_scales_.push_back(*input);
  return {};
}

// Source rows of the part: first, distance, and how many rows the whole tensor must have.
void Builder::part_rows(const Piece& piece, const NameRule& rule, const Want& want, uint32_t* begin,
                        uint32_t* step, uint32_t* total) const {
  const uint32_t rows = want.rows == 0 ? want.cols : want.rows;
  *begin = 0, *step = 1, *total = rows;
  if (rule.part == Part::kAll) return;
  if (rule.part == Part::kQ || rule.part == Part::kK || rule.part == Part::kV) {
    const auto& a = spec_.layers[static_cast<uint32_t>(piece.layer)].attention;
    const uint32_t q = a.heads * (a.gate ? a.key_dim + a.value_dim : a.key_dim),
                   k = a.kv_heads * a.key_dim, v = a.kv_heads * a.value_dim;
    *begin = rule.part == Part::kQ ? 0 : rule.part == Part::kK ? q : q + k;
    *total = q + k + v;
    return;
  }
  if (rule.part == Part::kHeadKey || rule.part == Part::kHeadValue) {
    const auto& m = *spec_.layers[static_cast<uint32_t>(piece.layer)].mla;
    const uint32_t both = m.nope_dim + m.value_dim;
    *begin = static_cast<uint32_t>(want.head) * both;
    if (rule.part == Part::kHeadValue) *begin += m.nope_dim;
    *total = m.heads * both;
    return;
  }
  if (rule.part == Part::kLayer) {
    *begin = static_cast<uint32_t>(piece.layer) * rows;
    *total = static_cast<uint32_t>(spec_.layers.size()) * rows;
    return;
  }
  *total = 2 * rows;
  if (rule.part == Part::kSecondHalf) *begin = rows;
  if (rule.part == Part::kOdd) *begin = 1;
  if (rule.part == Part::kEven || rule.part == Part::kOdd) *step = 2;
}

Expected<WeightView> Builder::resolve(const Piece& piece, const Want& want, const NameRule& rule,
                                      uint32_t tensor) {
  const auto& t = source_.tensors[tensor];
  WeightView view;
  view.weight = tensor;
  view.transposed = rule.transposed;
  const bool vector = want.rows == 0;
  const uint32_t outputs = vector ? want.cols : want.rows;
  uint32_t total = outputs;
  part_rows(piece, rule, want, &view.row_begin, &view.row_step, &total);
  if (rule.stacked) view.index = static_cast<uint64_t>(want.head < 0 ? piece.expert : want.head);

  auto shape_text = [&] { return fmt::format("[{}]", fmt::join(t.shape, ", ")); };
  auto mismatch = [&](const std::string& expected) {
    return fail(Code::kInvalid, "{}: tensor '{}' has shape {}, expected {}",
                source_.files[t.file].name, t.name, shape_text(), expected);
  };
  uint64_t stack = 0;
  if (rule.stacked) {
    const LayerSpec& of = spec_.layers[static_cast<uint32_t>(piece.layer)];
    stack = want.head < 0 ? of.ffn.moe->experts : of.mla->heads;
  }
  if (vector) {
    std::vector<uint64_t> expected, shape = t.shape;
    if (rule.stacked) expected.push_back(stack);
    if (want.inner) expected.push_back(total / want.inner);
    expected.push_back(want.inner ? want.inner : total);
    // Axes of length 1 say nothing, and a vector of two axes may come as one.
    std::erase(shape, 1u);
    const bool flat = want.inner && shape == std::vector<uint64_t>{total};
    auto bare = expected;
    std::erase(bare, 1u);
    if (shape != bare && !flat) return mismatch(fmt::format("[{}]", fmt::join(expected, ", ")));
    view.vector = true;
    view.layout.rows = 1;
    view.layout.cols = want.cols;
    switch (t.type) {
      case format::SourceType::kF32:
        view.layout.format = format::WeightFormat::kF32;
        break;
      case format::SourceType::kF16:
        view.layout.format = format::WeightFormat::kF16;
        break;
      case format::SourceType::kBF16:
        view.layout.format = format::WeightFormat::kBF16;
        break;
      default:
        return fail(Code::kUnsupported, "{}: tensor '{}' is {}; a vector must be f32, f16 or bf16",
                    source_.files[t.file].name, t.name, format::info(t.type).name);
    }
    return view;
  }
  // Companions of MLX and mxfp4 weights.
  std::string companion;
  uint32_t* slots[2] = {&view.scales, &view.biases};
  const char* suffixes[2] = {".scales", ".biases"};
  for (int s = 0; s < 2; ++s) {
    if (!ends_with_replace(t.name, ".weight", suffixes[s], &companion)) continue;
    if (auto it = source_.by_name.find(companion); it != source_.by_name.end())
      *slots[s] = it->second;
  }
  MILLRACE_TRY(float_companions(tensor, &view));
  if (ends_with_replace(t.name, "_blocks", "_scales", &companion)) {
    auto it = source_.by_name.find(companion);
    if (it == source_.by_name.end())
      return fail(Code::kNotFound, "{}: tensor '{}' is missing beside '{}'", source_.path,
                  companion, t.name);
    view.scales = it->second;
  }
  MILLRACE_ASSIGN(auto quant, quant_of(t.name));
  if (t.name.ends_with("_blocks")) quant.mxfp4 = true;
  if (t.type == format::SourceType::kF8E4M3) {
    view.scale_rows = quant.scale_rows;
    view.scale_cols = quant.scale_cols;
  }
  MILLRACE_ASSIGN(view.layout, format::layout_of(source_, tensor, view.scales, view.biases, quant));
  // layout_of looks at the last two axes; a transposed tensor's are the other way round.
  if (rule.transposed) std::swap(view.layout.rows, view.layout.cols);
  uint64_t outer = 1;
  const bool blocks = t.name.ends_with("_blocks");
  const size_t matrix_axes = blocks ? 3 : std::min<size_t>(2, t.shape.size());
  for (size_t axis = 0; axis + matrix_axes < t.shape.size(); ++axis) outer *= t.shape[axis];
  const bool stack_ok = rule.stacked ? outer == stack && t.shape.size() == matrix_axes + 1
                                     : t.shape.size() == matrix_axes;
  if (!stack_ok || view.layout.rows != total || view.layout.cols != want.cols) {
    return mismatch(rule.stacked ? fmt::format("{} matrices of {} x {}", stack, total, want.cols)
                                 : fmt::format("{} x {}", total, want.cols));
  }
  view.layout.rows = want.rows;
  if (auto status = format::check_layout(view.layout); !status) {
    return with_context(fmt::format("{}: tensor '{}'", source_.files[t.file].name, t.name),
                        status.error());
  }
  return view;
}

Status Builder::add(Piece* piece, const Want& want) {
  std::string tried;
  for (const NameRule& rule : rules_) {
    if (rule.role != want.role) continue;
    if (rule.stacked && piece->expert < 0 && want.head < 0) continue;
    if (piece->expert >= 0 && !rule.stacked && rule.pattern.find("{e}") == std::string::npos)
      continue;
    if (piece->expert < 0 && rule.pattern.find("{e}") != std::string::npos) continue;
    const std::string name = expand(rule.pattern, piece->layer, piece->expert);
    auto it = source_.by_name.find(name);
    if (it == source_.by_name.end()) {
      if (tried.find("'" + name + "'") == std::string::npos)
        tried += fmt::format("{}'{}'", tried.empty() ? "" : " or ", name);
      continue;
    }
    // A whole tensor has one role: what another family calls so is not what is missing here.
    const auto role = static_cast<uint8_t>(static_cast<uint8_t>(want.role) + 1);
    if (const uint8_t used = used_[it->second];
        used && used != role && rule.part == Part::kAll && !rule.stacked)
      continue;
    MILLRACE_ASSIGN(auto view, resolve(*piece, want, rule, it->second));
    used_[view.weight] = role;
    if (view.scales != format::kNoTensor) used_[view.scales] = role;
    if (view.biases != format::kNoTensor) used_[view.biases] = role;
    PieceTensor tensor;
    tensor.role = want.role;
    tensor.view = view;
    tensor.offset = round_up(piece->bytes, kTensorAlign);
    tensor.bytes = format::view_bytes(view);
    piece->bytes = tensor.offset + tensor.bytes;
    piece->tensors.push_back(tensor);
    return {};
  }
  if (want.optional) return {};
  return fail(Code::kNotFound, "{}: tensor {} is missing ({} of {})", source_.path, tried,
              format::name(want.role), piece->name);
}

void Builder::close(Piece piece) {
  piece.bytes = round_up(std::max<uint64_t>(piece.bytes, 1), kPieceAlign);
  table_.pieces.push_back(std::move(piece));
}

Status Builder::embedding(PieceKind kind, Role role, uint32_t cols) {
  Piece whole;
  whole.kind = kind;
  whole.name = std::string(format::name(kind));
  MILLRACE_TRY(add(&whole, {role, spec_.vocab, cols}));
  const WeightView& view = whole.tensors[0].view;
  const uint32_t rows = rows_per_piece(view.layout);
  for (uint32_t begin = 0; begin < spec_.vocab; begin += rows) {
    Piece piece;
    piece.kind = kind;
    piece.row_begin = begin;
    piece.name = fmt::format("{}.{}", format::name(kind), begin / rows);
    PieceTensor tensor = whole.tensors[0];
    tensor.view.row_begin = begin;
    tensor.view.layout.rows = std::min(rows, spec_.vocab - begin);
    tensor.bytes = format::view_bytes(tensor.view);
    piece.bytes = tensor.bytes;
    piece.tensors.push_back(tensor);
    close(std::move(piece));
  }
  return {};
}

Status Builder::experts(uint32_t i, const MoeSpec& moe) {
  for (uint32_t e = 0; e < moe.experts; ++e) {
    Piece piece;
    piece.kind = PieceKind::kExpert;
    piece.layer = static_cast<int32_t>(i);
    piece.expert = static_cast<int32_t>(e);
    piece.name = fmt::format("layers.{}.experts.{}", i, e);
    for (const Want& want : expert_wants(spec_, spec_.layers[i].ffn))
      MILLRACE_TRY(add(&piece, want));
    close(std::move(piece));
  }
  return {};
}

Status Builder::layer(uint32_t i) {
  const LayerSpec& layer = spec_.layers[i];
  if (layer.has_mixer()) {
    Piece mixer;
    mixer.kind = PieceKind::kMixer;
    mixer.layer = static_cast<int32_t>(i);
    mixer.name = fmt::format("layers.{}.mixer", i);
    for (const Want& want : mixer_wants(spec_, layer)) MILLRACE_TRY(add(&mixer, want));
    close(std::move(mixer));
  }
  if (!layer.has_ffn()) return {};

  Piece ffn;
  ffn.kind = layer.ffn.moe ? PieceKind::kRouter : PieceKind::kFfn;
  ffn.layer = static_cast<int32_t>(i);
  ffn.name = fmt::format("layers.{}.{}", i, layer.ffn.moe ? "router" : "ffn");
  for (const Want& want : ffn_wants(spec_, layer)) MILLRACE_TRY(add(&ffn, want));
  close(std::move(ffn));
  if (layer.ffn.moe) MILLRACE_TRY(experts(i, *layer.ffn.moe));
  return {};
}

Expected<format::PieceTable> Builder::build(const std::vector<std::string>& drops,
                                            WeightAudit* audit) {
  MILLRACE_TRY(embedding(PieceKind::kEmbedding, Role::kEmbedding, spec_.hidden));
  const auto layers = static_cast<uint32_t>(spec_.layers.size());
  if (spec_.layer_input)
    MILLRACE_TRY(embedding(PieceKind::kLookup, Role::kLayerTable, layers * spec_.layer_input));
  for (uint32_t i = 0; i < layers; ++i) MILLRACE_TRY(layer(i));
  Piece final;
  final.kind = PieceKind::kFinal;
  final.name = "final";
  MILLRACE_TRY(add(&final, {Role::kFinalNorm, 0, spec_.hidden}));
  if (spec_.layer_input) MILLRACE_TRY(add(&final, {Role::kLayerInNorm, 0, spec_.layer_input}));
  if (!spec_.ropes.empty())
    MILLRACE_TRY(add(&final, {Role::kRopeFactors, 0, spec_.ropes[0].dims / 2, true}));
  close(std::move(final));
  if (!spec_.tied) MILLRACE_TRY(embedding(PieceKind::kHead, Role::kHead, spec_.hidden));

  std::string unread;
  int count = 0;
  for (size_t t = 0; t < source_.tensors.size(); ++t) {
    if (used_[t]) continue;
    const std::string& name = source_.tensors[t].name;
    bool drop = spec_.tied && std::any_of(rules_.begin(), rules_.end(), [&](const NameRule& r) {
                  return r.role == Role::kHead && r.pattern == name;
                });
    drop = drop || std::find(activation_scales_.begin(), activation_scales_.end(), t) !=
                       activation_scales_.end();
    for (const auto& pattern : drops)
      drop = drop || matches(pattern, name) || lies_beyond(pattern, name, spec_);
    if (drop) {
      if (audit) audit->dropped.push_back(name);
    } else if (++count <= 4) {
      unread += fmt::format("{}'{}'", unread.empty() ? "" : ", ", name);
    }
  }
  if (count > 0) {
    return fail(
        Code::kUnsupported,
        "{}: {} tensor{} not used by family '{}': {}{}; the result would be wrong without {}",
        source_.path, count, count == 1 ? " is" : "s are", spec_.family, unread,
        count > 4 ? ", ..." : "", count == 1 ? "it" : "them");
  }
  return std::move(table_);
}

}  // namespace

uint32_t rows_per_piece(const format::WeightLayout& layout) {
  const uint64_t tiles =
      std::max<uint64_t>(1, (4u << 20) / std::max<uint64_t>(1, format::tile_bytes(layout)));
  return static_cast<uint32_t>(std::min<uint64_t>(tiles, 1u << 20)) * format::kTileRows;
}

Expected<format::PieceTable> build_pieces(const format::ModelSource& source, const ModelSpec& spec,
                                          const NameRules& rules,
                                          const std::vector<std::string>& drops,
                                          WeightAudit* audit) {
  return Builder(source, spec, rules).build(drops, audit);
}

}  // namespace millrace::model
