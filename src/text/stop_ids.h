// The ids that end a generation. Their sources disagree in the wild, and each can be a number or a
// list, so every one of them stops.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace {

// The contents of the two files, either can be empty. `eos_token_id` is also looked for in the
// text_config of a multimodal config. Sorted, without repetition.
Expected<std::vector<std::uint32_t>> stop_ids(std::string_view generation_config,
                                              std::string_view config, const Tokenizer& tokenizer);

// The same from a model folder.
Expected<std::vector<std::uint32_t>> stop_ids(const std::filesystem::path& folder,
                                              const Tokenizer& tokenizer);

}  // namespace millrace
