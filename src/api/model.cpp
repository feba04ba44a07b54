// Opening a model: packed folder, Hugging Face folder or GGUF file; no weights are read.
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "api/model_impl.h"
#include "base/status.h"
#include "model/families/samples.h"

namespace millrace {
namespace {

// "q4_0 + q6_K": formats of the weights, most bytes first.
std::string formats_of(const format::PieceTable& table) {
  std::map<std::string, uint64_t> bytes;
  for (const auto& piece : table.pieces) {
    for (const auto& tensor : piece.tensors) {
      if (tensor.view.vector) continue;
      std::string name(format::name(tensor.view.layout.format));
      if (tensor.view.layout.format == format::WeightFormat::kAffine)
        name += fmt::format("{}", tensor.view.layout.bits);
      bytes[name] += tensor.bytes;
    }
  }
  std::vector<std::pair<uint64_t, std::string>> order;
  for (const auto& [name, count] : bytes) order.emplace_back(count, name);
  std::sort(order.rbegin(), order.rend());
  std::string out;
  for (const auto& [count, name] : order) out += (out.empty() ? "" : " + ") + name;
  return out;
}

uint64_t parameters_of(const format::PieceTable& table) {
  uint64_t total = 0;
  for (const auto& piece : table.pieces) {
    for (const auto& tensor : piece.tensors)
      total += uint64_t{tensor.view.layout.rows} * tensor.view.layout.cols;
  }
  return total;
}

Status build_spec(model::Config& config, const model::Family& family, const model::NameRules& rules,
                  const format::ModelSource& source, model::ModelSpec* spec) {
  spec->family = family.name;
  MILLRACE_TRY(family.build(config, spec));
  if (!config.is_gguf() && !config.has("tie_word_embeddings")) {
    // Without the key, the file decides: a head of its own or none.
    const bool head = std::any_of(rules.begin(), rules.end(), [&](const model::NameRule& rule) {
      return rule.role == format::Role::kHead && source.find(rule.pattern) != nullptr;
    });
    spec->tied = !head;
  }
  return config.finish();
}

}  // namespace

Status build_model(const format::ModelSource& source, model::ModelSpec* spec,
                   format::PieceTable* table, model::WeightAudit* audit) {
  MILLRACE_ASSIGN(auto config, model::Config::from_source(source));
  MILLRACE_ASSIGN(const model::Family* family, model::find_family(config));
  model::NameRules rules = model::default_names(config.is_gguf());
  std::vector<std::string> drops = model::default_drops(config.is_gguf());
  if (family->names) family->names(config.is_gguf(), &rules, &drops);
  if (auto built = build_spec(config, *family, rules, source, spec); !built) {
    Error error = built.error();
    if (config.is_gguf()) error.message = model::in_gguf_terms(error.message, config.model_type());
    return tl::unexpected<Error>(std::move(error));
  }
  MILLRACE_ASSIGN(*table, model::build_pieces(source, *spec, rules, drops, audit));
  return {};
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
const ModelInfo& Model::info() const { return impl_->info; }
const std::vector<Token>& Model::stop_tokens() const { return impl_->stops; }

Expected<std::shared_ptr<Model>> Model::open(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return fail(Code::kNotFound,
                "{}: no such file or folder; a model is a packed folder, a Hugging Face folder, or "
                "a .gguf file",
                path);
  }
  auto impl = std::make_unique<Impl>();
  if (format::is_packed_folder(path)) {
    MILLRACE_ASSIGN(impl->packed, format::open_packed(path));
  } else {
    MILLRACE_ASSIGN(impl->in_place, format::open_source(path));
  }
  const format::ModelSource& source = impl->source();
  MILLRACE_TRY(build_model(source, &impl->spec, &impl->table, &impl->audit));
  if (impl->packed) MILLRACE_TRY(format::bind_packed(*impl->packed, &impl->table));
  MILLRACE_TRY(load_text(source, path, impl.get()));

  ModelInfo& info = impl->info;
  info.path = std::filesystem::absolute(path).lexically_normal().string();
  std::filesystem::path name = info.path;
  if (name.filename().empty()) name = name.parent_path();
  info.name = name.extension() == ".gguf" ? name.stem().string() : name.filename().string();
  info.architecture = impl->spec.family;
  info.format = formats_of(impl->table);
  info.layers = static_cast<uint32_t>(impl->spec.layers.size());
  info.hidden = impl->spec.hidden;
  info.vocab = impl->spec.vocab;
  info.max_context = impl->spec.max_context;
  for (const auto& layer : impl->spec.layers) {
    if (layer.ffn.moe)
      info.experts = layer.ffn.moe->experts, info.experts_used = layer.ffn.moe->used;
  }
  info.parameters = parameters_of(impl->table);
  info.packed = impl->packed.has_value();
  info.has_chat_template = impl->chat.has_value();
  malloc_trim(
      0);  // parsing headers and vocabularies leaves holes that would count against the ceiling
  return std::shared_ptr<Model>(new Model(std::move(impl)));
}

Expected<std::vector<Token>> Model::tokenize(std::string_view text, bool add_special,
                                             bool parse_special) const {
  if (!impl_->tokenizer)
    return fail(Code::kNotFound,
                "{}: there is no tokenizer.json, so text cannot be encoded; give --prompt-ids",
                impl_->info.path);
  EncodeOptions options;
  options.add_special = add_special;
  options.control = parse_special ? ControlText::kParse : ControlText::kLiteral;
  MILLRACE_ASSIGN(const auto ids, impl_->tokenizer->encode(text, options));
  return std::vector<Token>(ids.begin(), ids.end());
}

Expected<std::string> Model::detokenize(const std::vector<Token>& ids) const {
  if (!impl_->tokenizer)
    return fail(Code::kNotFound, "{}: there is no tokenizer.json, so ids cannot be decoded",
                impl_->info.path);
  return impl_->tokenizer->decode(std::vector<uint32_t>(ids.begin(), ids.end()),
                                  {.skip_special = false, .continuation = false});
}

Expected<std::string> Model::apply_chat_template(const std::string& messages_json,
                                                 bool add_generation_prompt) const {
  if (!impl_->chat)
    return fail(Code::kNotFound, "{}: the model has no chat template; use a plain prompt",
                impl_->info.path);
  ChatInput input;
  input.messages = messages_json;
  input.add_generation_prompt = add_generation_prompt;
  auto text = impl_->chat->render(input);
  // A template's own messages do not say where they come from.
  if (!text) return with_context("chat template", text.error());
  return text;
}

std::vector<FamilyInfo> families() {
  std::vector<FamilyInfo> rows;
  for (const auto& family : model::all_families()) {
    FamilyInfo row;
    row.name = family.name;
    row.aliases = fmt::format("{}", fmt::join(family.model_types, " "));
    row.gguf = fmt::format("{}", fmt::join(family.gguf_types, " "));
    row.fixtures = family.fixtures;
    if (const auto axes = model::axes_of(family)) {
      row.mixer = fmt::format("{}", fmt::join(axes->mixer, ", "));
      row.ffn = fmt::format("{}", fmt::join(axes->ffn, ", "));
      row.streaming = fmt::format("{}", fmt::join(axes->streaming, ", "));
      row.kv = fmt::format("{}", fmt::join(axes->kv, ", "));
      row.drafter_ports = fmt::format("{}", fmt::join(axes->ports, ", "));
    }
    rows.push_back(row);
  }
  return rows;
}

std::string_view version() { return MILLRACE_VERSION; }

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

}  // namespace millrace
