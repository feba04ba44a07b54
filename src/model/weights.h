// From a spec and a source to pieces: which tensor serves which role, with the audit that none is
// missing, none is left over, and every shape is the one the spec asks for.
#pragma once

#include "format/piece.h"
#include "format/source.h"
#include "model/names.h"
#include "model/spec.h"

namespace millrace::model {

struct WeightAudit {
  std::vector<std::string> dropped;  // tensors left out on purpose
};

Expected<format::PieceTable> build_pieces(const format::ModelSource& source, const ModelSpec& spec,
                                          const NameRules& rules,
                                          const std::vector<std::string>& drops,
                                          WeightAudit* audit);

// Rows of one embedding or head piece for a layout: a multiple of 8, about 4 MiB.
uint32_t rows_per_piece(const format::WeightLayout& layout);

}  // namespace millrace::model
