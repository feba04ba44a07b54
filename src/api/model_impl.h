// What Model holds: source metadata, spec, piece table, tokenizer, template.
#pragma once

#include <optional>

#include "format/packed.h"
#include "format/piece.h"
#include "format/source.h"
#include "millrace/millrace.h"
#include "model/families/family.h"
#include "model/spec.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace millrace {

struct Model::Impl {
  ModelInfo info;
  std::optional<format::PackedModel> packed;  // its source is `source()`
  format::ModelSource in_place;
  model::ModelSpec spec;
  format::PieceTable table;
  model::WeightAudit audit;
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  std::vector<Token> stops;

  const format::ModelSource& source() const { return packed ? packed->source : in_place; }
};

// Spec and piece table of a source (the architecture's part of opening a model).
Status build_model(const format::ModelSource& source, model::ModelSpec* spec,
                   format::PieceTable* table, model::WeightAudit* audit);

// Tokenizer and template from a Hugging Face folder's files or from GGUF metadata.
Status load_text(const format::ModelSource& source, const std::string& folder, Model::Impl* model);

}  // namespace millrace
