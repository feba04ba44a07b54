// Bad input of every class ends in one error that names the thing, and never in a crash.
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/support/engine_run.h"
#include "tests/support/synth_gguf.h"

namespace millrace::test {
namespace {

using json = nlohmann::json;

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_all(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// The error of opening the model (and of running one token, where opening does not notice).
std::string error_of(const std::string& model, bool run = false) {
  EngineOptions options;
  options.model = model;
  options.threads = 1;
  auto engine = Engine::open(options);
  if (!engine) return engine.error().message;
  if (!run) return "(no error)";
  Request request;
  request.prompt_ids = {1, 2, 3};
  request.max_tokens = 1;
  auto done = (*engine)->generate(request);
  return done ? "(no error)" : done.error().message;
}

void expect_names(const std::string& message, const std::string& thing, const std::string& what) {
  EXPECT_NE(message.find(thing), std::string::npos) << what << ": " << message;
}

class Robust : public ::testing::Test {
 protected:
  std::string copy(const std::string& from) {
    const std::string to = temp_ / "model";
    fs::remove_all(to);
    fs::copy(repo(from), to, fs::copy_options::recursive);
    return to;
  }
  // Rewrites the header of a safetensors file.
  static void edit_header(const std::string& path, const std::function<void(json&)>& change) {
    const std::string bytes = read_all(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    json header = json::parse(bytes.substr(8, length));
    change(header);
    const std::string text = header.dump();
    length = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &length, 8);
    write_all(path, out + text + bytes.substr(8 + bytes_of_header(bytes)));
  }
  static uint64_t bytes_of_header(const std::string& bytes) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    return length;
  }
  TempFolder temp_;
};

TEST_F(Robust, SafetensorsCutShort) {
  const std::string model = copy("tests/data/golden/qwen3_moe"),
                    file = model + "/model.safetensors";
  const std::string whole = read_all(file);
  const uint64_t header = 8 + bytes_of_header(whole);
  for (const uint64_t size : {uint64_t{0}, uint64_t{7}, uint64_t{8}, header - 1, header,
                              uint64_t{whole.size() / 2}, uint64_t{whole.size() - 1}}) {
    write_all(file, whole.substr(0, size));
    expect_names(error_of(model), "model.safetensors", std::to_string(size));
  }
  write_all(file, whole + "x");
  expect_names(error_of(model), "model.safetensors", "one byte more");
  for (const uint64_t length : {uint64_t{0}, uint64_t{1} << 40, UINT64_MAX}) {
    std::string bytes = whole;
    std::memcpy(bytes.data(), &length, 8);
    write_all(file, bytes);
    expect_names(error_of(model), "model.safetensors", "header of " + std::to_string(length));
  }
}

TEST_F(Robust, SafetensorsHeader) {
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const std::vector<std::pair<std::string, std::function<void(json&)>>> changes = {
      {"renamed", [&](json& h) { h[name + "z"] = h[name], h.erase(name); }},
      {"transposed",
       [&](json& h) {
         h[name]["shape"] = {1, 64, 64};
       }},
      {"twice the rows", [&](json& h) { h[name]["shape"][0] = 2 * int(h[name]["shape"][0]); }},
      {"huge",
       [&](json& h) {
         h[name]["shape"] = {uint64_t{1} << 62, 8};
       }},
      {"negative",
       [&](json& h) {
         h[name]["shape"] = {-1, 8};
       }},
      {"no dimension", [&](json& h) { h[name]["shape"] = json::array(); }},
      {"wider dtype", [&](json& h) { h[name]["dtype"] = "F32"; }},
      {"integer dtype", [&](json& h) { h[name]["dtype"] = "I16"; }},
      {"unknown dtype", [&](json& h) { h[name]["dtype"] = "NOPE"; }},
      {"no dtype", [&](json& h) { h[name].erase("dtype"); }},
      {"overlap", [&](json& h) { h[name]["data_offsets"] = h["lm_head.weight"]["data_offsets"]; }},
      {"backwards",
       [&](json& h) {
         h[name]["data_offsets"] = {8, 0};
       }},
      {"an entry that is a number", [&](json& h) { h[name] = 5; }},
  };
  for (const auto& [what, change] : changes) {
    const std::string model = copy("tests/data/golden/qwen3_moe");
    edit_header(model + "/model.safetensors", change);
    expect_names(error_of(model), what == "overlap" ? "tensor" : name, what);
  }
}

TEST_F(Robust, Config) {
  const std::string model = copy("tests/data/golden/qwen3_moe"), file = model + "/config.json";
  const json whole = json::parse(read_all(file));
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                          "head_dim", "num_experts_per_tok", "moe_intermediate_size"}) {
    for (const json& value : {json(-1), json("x"), json(uint64_t{1} << 62), json(json::array())}) {
      json changed = whole;
      changed[key] = value;
      write_all(file, changed.dump());
      expect_names(error_of(model), key, value.dump());
    }
  }
  json changed = whole;
  changed["model_type"] = "unheard_of";
  write_all(file, changed.dump());
  expect_names(error_of(model), "unheard_of", "architecture");
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"),
                                  std::string(100000, '['), std::string("\xff\xfe")}) {
    write_all(file, text);
    expect_names(error_of(model), "config.json", text.substr(0, 5));
  }
  fs::remove(file);
  expect_names(error_of(model), "config.json", "missing");
}

TEST_F(Robust, FilesBesideTheWeights) {
  for (const char* file :
       {"model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}) {
    const std::string model = copy("models/tiny-moe-4bit");
    const std::string whole = read_all(model + "/" + file);
    for (const std::string& text : {std::string(), std::string("[]"), std::string("null"),
                                    whole.substr(0, whole.size() / 2)}) {
      write_all(model + "/" + file, text);
      expect_names(error_of(model), file, text.substr(0, 5));
    }
  }
  const std::string model = copy("models/tiny-moe-4bit");
  fs::remove(model + "/model-00002-of-00002.safetensors");
  expect_names(error_of(model), "model-00002-of-00002.safetensors", "missing shard");
}

TEST_F(Robust, Packed) {
  const std::string packed = temp_ / "packed";
  pack_to(repo("models/tiny-moe-4bit"), packed);
  const std::string weights = packed + "/weights-00001.bin", manifest = packed + "/manifest.json";
  const std::string bytes = read_all(weights), text = read_all(manifest);
  std::string flipped = bytes;
  flipped[100] ^= 4;  // in the embedding, which every run reads
  write_all(weights, flipped);
  expect_names(error_of(packed, true), "weights-00001.bin: piece 'embedding.0' at offset 0",
               "flip");
  auto verified = verify(packed);
  ASSERT_FALSE(verified);
  expect_names(verified.error().message, "weights-00001.bin: piece 'embedding.0'", "verify");
  write_all(weights, bytes.substr(0, bytes.size() - 1));
  expect_names(error_of(packed), "weights-00001.bin", "cut short");
  write_all(weights, bytes);
  for (const std::string& bad : {std::string(), text.substr(0, text.size() / 2), text + "x"}) {
    write_all(manifest, bad);
    expect_names(error_of(packed), "manifest.json", "manifest");
  }
  for (size_t at = 40; at < text.size(); at += text.size() / 40) {
    std::string bad = text;
    bad[at] ^= 1;
    write_all(manifest, bad);
    auto result = verify(packed);
    ASSERT_FALSE(result) << at;
    expect_names(result.error().message, "manifest.json", std::to_string(at));
  }
}

TEST_F(Robust, Gguf) {
  const std::string model = temp_ / "a model.gguf";
  write_synth_gguf(model, {.layers = 2,
                           .hidden = 64,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_dim = 32,
                           .vocab = 128,
                           .experts = 4,
                           .used = 2,
                           .width = 64});
  const std::string whole = read_all(model);
  for (const size_t size : {size_t{0}, size_t{3}, size_t{8}, size_t{23}, size_t{24}, size_t{200},
                            whole.size() / 2, whole.size() - 1}) {
    write_all(model, whole.substr(0, size));
    expect_names(error_of(model), "a model.gguf", std::to_string(size));
  }
  for (const size_t at : {size_t{8}, size_t{16}, size_t{24}}) {  // tensors, keys, length of a key
    for (const uint64_t value : {uint64_t{1} << 40, UINT64_MAX}) {
      std::string bad = whole;
      std::memcpy(bad.data() + at, &value, 8);
      write_all(model, bad);
      expect_names(error_of(model), "a model.gguf", std::to_string(at));
    }
  }
  // One bit anywhere in the header: an error or a model, never a crash.
  for (size_t at = 0; at < 2000; at += 13) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    write_all(model, bad);
    EXPECT_FALSE(error_of(model).empty());
  }
}

// The number in the refusal works, whatever was asked for.
TEST_F(Robust, TheSmallestMemoryWorks) {
  EngineOptions options;
  options.model = repo("models/tiny-moe-4bit");
  auto model = Model::open(options.model);
  ASSERT_TRUE(model);
  for (const uint64_t memory : {uint64_t{1}, uint64_t{20} << 20, uint64_t{40} << 20}) {
    options.memory = memory;
    auto refused = make_plan(**model, options);
    ASSERT_TRUE(refused);
    ASSERT_FALSE(refused->fits);
    options.memory = refused->smallest_memory;
    auto plan = make_plan(**model, options);
    ASSERT_TRUE(plan);
    EXPECT_TRUE(plan->fits) << plan->why;
  }
}

}  // namespace
}  // namespace millrace::test
