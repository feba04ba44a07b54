// Copies of a model's files on other disks (EngineOptions::mirrors).
#pragma once

#include <string>
#include <vector>

#include "api/model_impl.h"

namespace millrace {

// The folders that hold the copies. Refused: what is not there, the model's own folder, a file that
// is no copy of the model's only one. Copies on the model's own disk are warned of.
Expected<std::vector<std::string>> mirror_folders(const Model::Impl& model,
                                                  const EngineOptions& options);

// What options ask of reading that this model cannot give.
Status check_reading(const Model::Impl& model, const EngineOptions& options);

}  // namespace millrace
