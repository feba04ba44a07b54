// The reference models under tests/data/golden, by name.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/families/family.h"
#include "tests/support/engine_run.h"

namespace millrace::test {

inline std::string golden(const std::string& name) { return repo("tests/data/golden/" + name); }

inline std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(repo("tests/data/golden")))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline nlohmann::json config_of(const std::string& fixture) {
  nlohmann::json config;
  std::ifstream(golden(fixture) + "/config.json") >> config;
  return config;
}

// What a config alone says; fails the test when a family refuses it.
inline model::ModelSpec spec_of(const nlohmann::json& values) {
  model::ModelSpec spec;
  model::Config config(values, "config");
  auto family = model::find_family(config);
  if (!family) {
    ADD_FAILURE() << family.error().message;
    return spec;
  }
  auto built = (*family)->build(config, &spec);
  if (built) built = config.finish();
  if (!built) ADD_FAILURE() << built.error().message;
  return spec;
}

}  // namespace millrace::test
