// Shared by the engine's tests: small models, temporary folders, one-line runs.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "format/source.h"
#include "millrace/millrace.h"

namespace millrace::test {

namespace fs = std::filesystem;

inline std::string repo(const std::string& path) {
  return std::string(MILLRACE_SOURCE_DIR) + "/" + path;
}

// A folder that goes away with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "millrace-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// A sampler that needs all of it: another logit, another token.
inline void sample(Request& request) {
  request.sampling.temperature = 0.9f;
  request.sampling.top_p = 0.95f;
  request.sampling.seed = 7;
}

struct Outcome {
  std::vector<Token> ids;
  std::string text;
  Plan plan;
  IoReport io;
};

// Fails the test when the engine does.
inline std::optional<Outcome> generate(const EngineOptions& options, Request request) {
  auto engine = Engine::open(options);
  if (!engine) {
    ADD_FAILURE() << engine.error().message;
    return std::nullopt;
  }
  auto done = (*engine)->generate(std::move(request));
  if (!done) {
    ADD_FAILURE() << done.error().message;
    return std::nullopt;
  }
  return Outcome{done->token_ids, done->text, (*engine)->plan(), (*engine)->io()};
}

inline void pack_to(const std::string& source, const std::string& out) {
  PackOptions options;
  options.source = source;
  options.out = out;
  auto done = millrace::pack(options);
  ASSERT_TRUE(done) << done.error().message;
}

// A tensor of a small safetensors file, as elements of T.
template <class T>
std::vector<T> read_tensor(const std::string& path, const std::string& name,
                           std::vector<uint64_t>* shape = nullptr) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t begin = 0;
  auto tensors = format::parse_safetensors_header(path, bytes, bytes.size(), &begin);
  if (!tensors) {
    ADD_FAILURE() << tensors.error().message;
    return {};
  }
  for (const auto& tensor : *tensors) {
    if (tensor.name != name) continue;
    std::vector<T> out(tensor.bytes / sizeof(T));
    std::memcpy(out.data(), bytes.data() + tensor.offset, tensor.bytes);
    if (shape) *shape = tensor.shape;
    return out;
  }
  ADD_FAILURE() << path << ": no tensor " << name;
  return {};
}

// The models that `make test` takes from the package registry; empty when it could not.
inline std::string fetched_model(const std::string& file) {
  const std::string path = repo("build/models/" + file);
  return fs::exists(path) ? path : "";
}

}  // namespace millrace::test
