// Small text files of a model folder, read whole.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace millrace::text {

Expected<std::string> read_file(const std::filesystem::path& path);

// A null document if there is no such file.
Expected<nlohmann::json> read_json_if_present(const std::filesystem::path& path);

}  // namespace millrace::text
